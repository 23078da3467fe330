"""The models of the scoreboard: what each is called, and how it is built."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch

from companion.additive import AdditiveAttention
from companion.dot_product import DotProductAttention
from companion.g2p.models import RecurrentG2P
from companion.g2p.transformer import TransformerG2P
from companion.scaled_dot_product import ScaledDotProductAttention

G2PModel: TypeAlias = RecurrentG2P | TransformerG2P


@dataclass(frozen=True)
class Recipe:
    """A named model: how to build and train it, and where the book introduces it.

    Attributes:
        label: what the scoreboard calls it.
        chapter: the number of the chapter that introduces it.
        build: makes the model, with random weights.
        teachers: named models; it learns what they expect in place of the dictionary's phonemes,
            for the words of the training split and for words that have no pronunciation there.
        options: arguments of ``training_steps``, the training loop, that are not its defaults.
    """

    label: str
    chapter: int
    build: Callable[[], G2PModel]
    teachers: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)


TEACHERS = ("recurrent", "additive", "scaled_dot_product", "self_attention", "multi_head")

# Where the attention has fewer parameters, wider states make up for it: all have about 1.3 million,
# but for the last, which learns from others.
RECIPES: Mapping[str, Recipe] = {
    "recurrent": Recipe(
        "Fixed context (GRU encoder-decoder)", 1, lambda: RecurrentG2P(d_model=280, dropout=0.2)
    ),
    "additive": Recipe(
        "Additive attention",
        2,
        lambda: RecurrentG2P(AdditiveAttention(256, 256, 128), d_model=256, dropout=0.2),
    ),
    "additive_unidirectional": Recipe(
        "Additive attention, encoder reads left to right only",
        2,
        lambda: RecurrentG2P(
            AdditiveAttention(320, 320, 128), d_model=320, bidirectional=False, dropout=0.2
        ),
    ),
    "dot_product": Recipe(
        "Dot-product attention",
        3,
        lambda: RecurrentG2P(DotProductAttention(), d_model=264, dropout=0.2),
    ),
    "scaled_dot_product": Recipe(
        "Scaled dot-product attention",
        4,
        lambda: RecurrentG2P(ScaledDotProductAttention(), d_model=264, dropout=0.2),
    ),
    "self_attention": Recipe(
        "Self-attention (Transformer, one head)", 5, lambda: TransformerG2P(1, dropout=0.1)
    ),
    "multi_head": Recipe(
        "Multi-head attention (Transformer, 4 heads)", 6, lambda: TransformerG2P(4, dropout=0.1)
    ),
    "multi_head_distilled": Recipe(
        "Multi-head attention, distilled (Transformer, 4 heads, 4 layers)",
        6,
        lambda: TransformerG2P(4, num_layers=4, dropout=0.05),
        teachers=TEACHERS,
        options={"batch_size": 256, "dtype": torch.bfloat16},
    ),
}


def recipe(name: str) -> Recipe:
    """Look up a model by name.

    Raises:
        ValueError: no model has that name; the message lists those that exist.
    """
    if name not in RECIPES:
        raise ValueError(f"no model is called {name!r}; there are {', '.join(RECIPES)}")
    return RECIPES[name]
