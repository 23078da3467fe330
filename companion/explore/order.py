"""A word in any order, and what self-attention makes of it (chapter 5)."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from companion.explore.explorer import Explorer, plain_table
from companion.positional import sinusoidal_encoding
from companion.scaled_dot_product import scaled_dot_product_score

FEATURES, SHOWN = 8, 3
LONGEST = 12


def explore_order(word: str = "listen", other: str = "silent") -> Explorer:
    r"""Show what happens to the letters' vectors when a word is put in another order.

    The layer is self-attention with one head and random matrices from a fixed seed. It is computed
    in the page, on numbers rounded to hundredths, so every order can be tried. Positions are
    sinusoidal, and added to the letters where asked for.

    Args:
        word: the order to start from, up to 12 letters.
        other: the same letters in another order, offered by a button.

    Raises:
        TypeError: words that are not strings.
        ValueError: fewer than 2 or more than 12 letters; ``other`` has not the same letters.

    Source: Vaswani et al. 2017, section 3.5. Chapter: 5.

    >>> explore_order()
    Vectors of the letters of 'listen', after self-attention, in the order of 'silent'
    without positions: 0 of 6 are changed
    with positions: 6 of 6 are changed
    """
    for name, value in {"word": word, "other": other}.items():
        if not isinstance(value, str):
            raise TypeError(f"{name} must be a string, got {type(value).__name__}")
    if not 2 <= len(word) <= LONGEST:
        raise ValueError(f"word must have 2 to {LONGEST} letters, got {len(word)}")
    if sorted(word) != sorted(other):
        raise ValueError(f"other must have the letters of {word!r}, got {other!r}")
    order = _order(word, other)
    scores, values = _layer(word)
    kinds = {"without positions": False, "with positions": True}
    vectors = {
        name: [_attend(scores, values, o, placed) for o in (list(range(len(word))), order)]
        for name, placed in kinds.items()
    }
    changed = {
        name: int(((before[order] - now).abs().amax(-1) > 1e-9).sum())
        for name, (before, now) in vectors.items()
    }
    head = f"Vectors of the letters of {word!r}, after self-attention, in the order of {other!r}"
    counts = (f"{name}: {count} of {len(word)} are changed" for name, count in changed.items())
    table = plain_table(
        head,
        ["letter", *(f"in {w}, {name}" for name in kinds for w in (word, other))],
        [
            [letter, *(_write(v) for pair in vectors.values() for v in (pair[0][i], pair[1][j]))]
            for i, letter in enumerate(word)
            for j in [order.index(i)]
        ],
    )
    data = {
        "word": list(word),
        "other": order,
        "scores": _hundredths(scores),
        "values": _hundredths(values),
    }
    title = "Does a letter's vector depend on where it stands?"
    return Explorer(title, "\n".join([head, *counts]), table, "order.js", data)


def _order(word: str, other: str) -> list[int]:
    """Say which letter of ``word`` stands where in ``other``; equal letters keep their order."""
    left = list(range(len(word)))
    return [left.pop([word[i] for i in left].index(letter)) for letter in other]


def _layer(word: str) -> tuple[Float[Tensor, "2L 2L"], Float[Tensor, "2L d_v"]]:
    """Project each letter and each place, alone: sums of these are what a layer computes with."""
    generator = torch.Generator().manual_seed(0)
    alphabet = sorted(set(word))
    table = torch.randn(LONGEST, FEATURES, dtype=torch.float64, generator=generator)
    letters = table[[alphabet.index(letter) for letter in word]]
    places = sinusoidal_encoding(len(word), FEATURES, dtype=torch.float64)
    x = torch.cat([letters, places])
    matrices = torch.randn(3, FEATURES, FEATURES, dtype=torch.float64, generator=generator)
    w_query, w_key, w_value = matrices / FEATURES**0.5
    scores = scaled_dot_product_score(x @ w_query, x @ w_key)
    return (100 * scores).round() / 100, (100 * x @ w_value[:, :SHOWN]).round() / 100


def _attend(scores: Tensor, values: Tensor, order: list[int], placed: bool) -> Tensor:
    letters = torch.tensor(order)
    score, value = scores[letters][:, letters], values[letters]
    if placed:
        n = len(order)
        score = score + scores[n:, n:] + scores[letters][:, n:] + scores[n:][:, letters]
        value = value + values[n:]
    return score.softmax(-1) @ value


def _write(vector: Tensor) -> str:
    return "  ".join(f"{number:.2f}".replace("-", "−") for number in vector.tolist())


def _hundredths(matrix: Tensor) -> list[list[int]]:
    rows: list[list[int]] = (100 * matrix).round().long().tolist()
    return rows
