"""Associative recall: the smallest task that needs attention, used by several chapters.

Eight keys, each paired with a value, in random order. Given one of the keys, name its value.
Guessing is right one time in eight. The answer is *in* the input; the only question is whether a
model can find it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from companion.attention import attend, check_inputs, check_positive

NUM_PAIRS = 8
NUM_VALUES = 8
Looks = Literal["nowhere", "position", "query"]


@dataclass(frozen=True)
class RecallBatch:
    """A batch of recall problems.

    Attributes:
        query: ``(B, 1, 8)``, one-hot: the key that is asked for.
        items: ``(B, 8, 16)``: for each pair the key's one-hot and the value's one-hot, joined.
        answer: ``(B,)``, the value's index.
    """

    query: Float[Tensor, "B 1 8"]
    items: Float[Tensor, "B 8 16"]
    answer: Int[Tensor, "B"]


def recall_batch(batch_size: int, generator: torch.Generator) -> RecallBatch:
    """Draw recall problems: keys in random order, values drawn with replacement.

    Raises:
        TypeError, ValueError: ``batch_size`` is not a positive integer.

    Source: after Ba et al. 2016, section 4.1, without the recurrence. Chapter: 1.

    >>> batch = recall_batch(2, torch.Generator().manual_seed(0))
    >>> batch.query.shape, batch.items.shape, batch.answer.shape
    (torch.Size([2, 1, 8]), torch.Size([2, 8, 16]), torch.Size([2]))
    """
    check_positive(batch_size=batch_size)
    shape = (batch_size, NUM_PAIRS)
    keys = torch.rand(shape, generator=generator).argsort(dim=-1)
    values = torch.randint(NUM_VALUES, shape, generator=generator)
    asked = torch.randint(NUM_PAIRS, (batch_size, 1), generator=generator)
    one_hot = torch.cat([F.one_hot(keys, NUM_PAIRS), F.one_hot(values, NUM_VALUES)], dim=-1)
    return RecallBatch(
        query=F.one_hot(keys.gather(1, asked), NUM_PAIRS).double(),
        items=one_hot.double(),
        answer=values.gather(1, asked).squeeze(1),
    )


class FixedWeights(nn.Module):
    """Attention that never looks at the keys: its weights are the same whatever the input holds.

    Args:
        looks: what the scores may depend on. ``"nowhere"``: nothing, all weights are equal;
            ``"position"``: a learned score per position; ``"query"``: a linear function of the
            query, one score per position.
        num_keys: ``L_k``, how many positions there are.
        query_dim: features of a query.

    Raises:
        TypeError, ValueError: sizes that are not positive integers; an unknown ``looks``.

    Chapter: 1.

    >>> query, items = torch.randn(2, 1, 4), torch.randn(2, 3, 5)
    >>> _, weights = FixedWeights("nowhere", num_keys=3, query_dim=4)(query, items, items)
    >>> weights[0]
    tensor([[0.3333, 0.3333, 0.3333]])
    """

    def __init__(self, looks: Looks, *, num_keys: int, query_dim: int) -> None:
        super().__init__()
        check_positive(num_keys=num_keys, query_dim=query_dim)
        if looks not in get_args(Looks):
            raise ValueError(f"looks must be one of {', '.join(get_args(Looks))}, got {looks!r}")
        self.per_position = nn.Parameter(torch.zeros(num_keys), looks != "nowhere")
        self.per_query = nn.Linear(query_dim, num_keys, bias=False) if looks == "query" else None

    def forward(
        self,
        query: Float[Tensor, "*batch L_q d_q"],
        key: Float[Tensor, "*batch L_k d_k"],
        value: Float[Tensor, "*batch L_k d_v"],
        *,
        mask: Bool[Tensor, "..."] | None = None,
        need_weights: bool = True,
    ) -> tuple[Float[Tensor, "*batch L_q d_v"], Float[Tensor, "*batch L_q L_k"] | None]:
        """Average the values with weights that do not depend on key or value.

        Raises:
            TypeError: inputs that are not floating point; a floating mask.
            ValueError: sizes that do not fit together, or another number of keys than the module
                was built for.
        """
        check_inputs(query, key, value)
        if key.shape[-2] != len(self.per_position):
            raise ValueError(
                f"key must have {len(self.per_position)} positions, got {key.shape[-2]}"
            )
        scores = self.per_position.expand(*query.shape[:-1], -1)  # (..., L_q, L_k)
        if self.per_query is not None:
            scores = scores + self.per_query(query)
        output, weights = attend(scores, value, mask)
        return output, weights if need_weights else None


class RecallModel(nn.Module):
    """Embed the query and the items, attend from one to the others, and name a value.

    Args:
        attention: called as ``attention(query, key, value)``; returns ``(output, weights)``.
        query_dim: features of the embedded query.
        item_dim: features of the embedded items, which serve as keys and as values.
        unit_variance: start from normal weights with which every feature of a query and of an item
            has variance 1, instead of from those of :class:`torch.nn.Linear`.

    Raises:
        TypeError, ValueError: sizes that are not positive integers.

    Chapters: 1 to 4.
    """

    def __init__(
        self,
        attention: nn.Module,
        *,
        query_dim: int = 40,
        item_dim: int = 24,
        unit_variance: bool = False,
    ) -> None:
        super().__init__()
        check_positive(query_dim=query_dim, item_dim=item_dim)
        self.embed_query = nn.Linear(NUM_PAIRS, query_dim)
        self.embed_item = nn.Linear(NUM_PAIRS + NUM_VALUES, item_dim)
        if unit_variance:
            for embed, ones in ((self.embed_query, 1), (self.embed_item, 2)):  # ones in an input
                nn.init.normal_(embed.weight, std=ones**-0.5)
                nn.init.zeros_(embed.bias)
        self.attention = attention
        self.readout = nn.Sequential(
            nn.Linear(query_dim + item_dim, 64), nn.Tanh(), nn.Linear(64, NUM_VALUES)
        )

    def forward(
        self, query: Float[Tensor, "B 1 8"], items: Float[Tensor, "B 8 16"]
    ) -> tuple[Float[Tensor, "B 8"], Float[Tensor, "B 8"]]:
        """Return ``(logits, weights)``: ``(B, 8)`` over the values, ``(B, 8)`` over the items."""
        embedded, memory = self.embed_query(query), self.embed_item(items)
        context, weights = self.attention(embedded, memory, memory)
        logits = self.readout(torch.cat([context, embedded], dim=-1))
        return logits.squeeze(1), weights.squeeze(1)


@dataclass(frozen=True)
class RecallRun:
    """A trained recall model, the loss of each step, and its accuracy on new problems."""

    model: RecallModel
    losses: list[float]
    accuracy: float


def run_recall(
    make: Callable[[], nn.Module],
    *,
    seed: int,
    steps: int = 300,
    query_dim: int = 40,
    item_dim: int = 24,
    unit_variance: bool = False,
) -> RecallRun:
    """Build an attention, train a recall model around it in float64, and test it.

    Args:
        make: called without arguments; returns an attention for :class:`RecallModel`.
        seed: of the initial weights and of the training problems.
        steps: training steps.
        query_dim: as in :class:`RecallModel`, and so the next two.
        item_dim: features of the embedded items.
        unit_variance: start with features of variance 1.

    Raises:
        TypeError, ValueError: sizes that are not positive integers.

    >>> from companion import AdditiveAttention
    >>> run_recall(lambda: AdditiveAttention(40, 24, 16), seed=0).accuracy
    1.0
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = RecallModel(
            make(), query_dim=query_dim, item_dim=item_dim, unit_variance=unit_variance
        ).double()
    losses = train_recall(model, steps=steps, seed=seed)
    return RecallRun(model, losses, recall_accuracy(model))


def train_recall(
    model: RecallModel,
    *,
    steps: int = 300,
    batch_size: int = 64,
    learning_rate: float = 1e-2,
    seed: int = 0,
) -> list[float]:
    """Train a recall model in place with Adam.

    Returns:
        The cross-entropy of each step, in nats; guessing gives ``ln 8``, about 2.08.

    Raises:
        TypeError, ValueError: sizes that are not positive integers.
    """
    check_positive(steps=steps, batch_size=batch_size)
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=learning_rate)
    losses = []
    for _ in range(steps):
        batch = recall_batch(batch_size, generator)
        logits, _ = model(batch.query, batch.items)
        loss = F.cross_entropy(logits, batch.answer)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(loss.item())
    return losses


@torch.no_grad()
def recall_accuracy(model: RecallModel, *, problems: int = 4000, seed: int = 1) -> float:
    """Test a recall model on new problems; returns the share that is right, 0 to 1.

    >>> untrained = RecallModel(FixedWeights("nowhere", num_keys=8, query_dim=40)).double()
    >>> recall_accuracy(untrained) < 0.3
    True
    """
    batch = recall_batch(problems, torch.Generator().manual_seed(seed))
    logits, _ = model(batch.query, batch.items)
    return float((logits.argmax(dim=-1) == batch.answer).double().mean())
