"""Two symbols at once: the smallest task that asks one position to look at two places (chapter 6).

A sequence of random symbols. At each position, name the symbol one place back *and* the symbol
three places back. Guessing gets one of them right one time in 12, and both one time in 144.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from companion.attention import check_positive
from companion.multi_head import MultiHeadAttention

NUM_SYMBOLS = 12
LENGTH = 8
NEAR, FAR = 1, 3  # how many places back


class TwoSymbols(nn.Module):
    """Embed symbols and their positions, attend once, and read both symbols off the output.

    Whatever the number of heads, the number of parameters is the same.

    Args:
        num_heads: heads of the attention, a divisor of ``d_model``.
        d_model: features of a position.
        hidden: with a number, the readout is a network with one hidden layer of that size, rather
            than linear.

    Raises:
        TypeError, ValueError: sizes that are not positive integers, or heads that do not divide
            ``d_model``.

    Chapter: 6.

    >>> logits, weights = TwoSymbols(num_heads=2)(draw_symbols(5, torch.Generator()))
    >>> logits.shape, weights.shape
    (torch.Size([5, 5, 2, 12]), torch.Size([5, 2, 5, 8]))
    """

    def __init__(self, num_heads: int, *, d_model: int = 32, hidden: int | None = None) -> None:
        super().__init__()
        self.embedding = nn.Embedding(NUM_SYMBOLS, d_model)
        self.positions = nn.Embedding(LENGTH, d_model)
        self.attention = MultiHeadAttention(d_model, num_heads)
        self.readout: nn.Module = nn.Linear(d_model, 2 * NUM_SYMBOLS)
        if hidden is not None:
            check_positive(hidden=hidden)
            self.readout = nn.Sequential(
                nn.Linear(d_model, hidden), nn.ReLU(), nn.Linear(hidden, 2 * NUM_SYMBOLS)
            )

    def forward(
        self, symbols: Int[Tensor, "B L"]
    ) -> tuple[Float[Tensor, "B L-3 2 num_symbols"], Float[Tensor, "B H L-3 L"]]:
        """Name both symbols at each position that has three before it.

        Args:
            symbols: ``(B, 8)`` indices below 12.

        Returns:
            ``(logits, weights)``: ``(B, 5, 2, 12)``, for the symbol one place back and for the one
            three places back; and ``(B, H, 5, 8)``.
        """
        x = self.embedding(symbols) + self.positions.weight
        output, weights = self.attention(x[:, FAR:], x, x, is_causal=True)
        return self.readout(output).unflatten(-1, (2, NUM_SYMBOLS)), weights


def draw_symbols(batch_size: int, generator: torch.Generator) -> Int[Tensor, "B L"]:
    """Draw random sequences of 8 symbols."""
    return torch.randint(NUM_SYMBOLS, (batch_size, LENGTH), generator=generator)


def _answers(symbols: Tensor) -> Tensor:
    return torch.stack([symbols[:, FAR - NEAR : -NEAR], symbols[:, :-FAR]], dim=-1)


def train_two_symbols(
    num_heads: int, *, seed: int, steps: int = 300, hidden: int | None = None
) -> TwoSymbols:
    """Train a model with Adam, in float64.

    Args:
        num_heads: as in :class:`TwoSymbols`, and so ``hidden``.
        seed: of the initial parameters and of the sequences.
        steps: training steps, of 64 sequences each.
        hidden: hidden units of the readout; None for a linear one.

    Raises:
        TypeError, ValueError: as :class:`TwoSymbols`; ``steps`` that is not a positive integer.

    >>> name_both(train_two_symbols(2, seed=0))
    (1.0, 1.0, 1.0)
    """
    check_positive(steps=steps)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = TwoSymbols(num_heads, hidden=hidden).double()
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(steps):
        symbols = draw_symbols(64, generator)
        logits, _ = model(symbols)
        loss = F.cross_entropy(logits.flatten(0, 2), _answers(symbols).flatten())
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return model


@torch.no_grad()
def name_both(model: TwoSymbols, *, sequences: int = 500, seed: int = 1) -> tuple[float, ...]:
    """Test a model on new sequences.

    Returns:
        Share of positions at which the near symbol is named rightly, the far one, and both.
    """
    symbols = draw_symbols(sequences, torch.Generator().manual_seed(seed))
    right = model(symbols)[0].argmax(dim=-1) == _answers(symbols)  # (B, L - 3, 2)
    near, far = right.unbind(dim=-1)
    return tuple(float(share.double().mean()) for share in (near, far, near & far))
