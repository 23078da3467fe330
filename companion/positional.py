"""Positions: what tells attention in which order its inputs stand (chapter 5)."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn

from companion.attention import check_dropout, check_features, check_positive


def sinusoidal_encoding(
    length: int,
    d_model: int,
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
) -> Float[Tensor, "length d_model"]:
    r"""One vector for each position: sines and cosines of many wavelengths.

    .. math::
        p_{t,\,2i} = \sin\!\big(t / 10000^{2i/d}\big), \qquad
        p_{t,\,2i+1} = \cos\!\big(t / 10000^{2i/d}\big)

    Args:
        length: number of positions, from 0.
        d_model: features; odd sizes end with a sine.
        dtype: of the result; by default torch's default.
        device: where the result is made.

    Returns:
        ``(length, d_model)``, every entry between -1 and 1.

    Raises:
        TypeError, ValueError: sizes that are not positive integers.

    Source: Vaswani et al. 2017, section 3.5. Chapter: 5, self-attention.

    >>> sinusoidal_encoding(2, 4)  # position 0; position 1: sin 1, cos 1, sin 0.01, cos 0.01
    tensor([[0.0000, 1.0000, 0.0000, 1.0000],
            [0.8415, 0.5403, 0.0100, 0.9999]])
    """
    check_positive(length=length, d_model=d_model)
    position = torch.arange(length, dtype=torch.float64, device=device)
    even = torch.arange(0, d_model, 2, dtype=torch.float64, device=device)
    angles = position[:, None] * torch.exp(even * (-math.log(10_000.0) / d_model))
    waves = torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)[:, :d_model]
    return waves.to(torch.get_default_dtype() if dtype is None else dtype)


class SinusoidalPositionalEncoding(nn.Module):
    r"""Add to each input the vector of its position.

    .. math:: y_t = x_t + p_t

    It has no parameters, and knows every position up to any length.

    Args:
        d_model: features of the inputs.
        dropout: probability of dropping a feature of the sum, in training.

    Raises:
        TypeError, ValueError: a size that is not a positive integer; dropout outside ``[0, 1)``.

    Source: Vaswani et al. 2017, section 3.5. Chapter: 5, self-attention.

    >>> SinusoidalPositionalEncoding(4)(torch.zeros(1, 2, 4))[0, 1]
    tensor([0.8415, 0.5403, 0.0100, 0.9999])
    """

    def __init__(self, d_model: int, dropout: float = 0.0) -> None:
        super().__init__()
        check_positive(d_model=d_model)
        check_dropout(dropout)
        self.d_model = d_model
        self.dropout = nn.Dropout(dropout)

    def forward(
        self, x: Float[Tensor, "*batch L d_model"], *, start: int = 0
    ) -> Float[Tensor, "*batch L d_model"]:
        """Add the positions.

        Args:
            x: ``(..., L, d_model)``.
            start: position of the first input; not 0 where a sequence is continued.

        Returns:
            ``(..., L, d_model)``.

        Raises:
            TypeError: ``start`` is not an integer.
            ValueError: another number of features; a negative start.
        """
        check_features("x", x, self.d_model)
        check_positive(at_least=0, start=start)
        end = start + x.shape[-2]
        encoding = sinusoidal_encoding(end, self.d_model, dtype=x.dtype, device=x.device)
        added: Tensor = self.dropout(x + encoding[start:])
        return added
