"""What the length of vectors does to a softmax, and what the scale does about it (chapter 4)."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from companion.explore.explorer import Explorer, plain_table

POWERS = tuple(range(2, 11))
SHOWN, QUERIES, KEYS = 6, 2000, 8


def explore_scale() -> Explorer:
    r"""Show the weights of random queries, and the slope of their softmax, as vectors get longer.

    It is the ideal case of chapter 4: products of d parts with variance 1 have the variance d. So
    one set of scores with variance 1 is drawn, with a fixed seed, and multiplied by
    :math:`\sqrt d`: exact in variance, and in distribution for large d. Dividing by
    :math:`\sqrt d` takes the factor away, at every d. The slope is the largest singular value of
    the softmax's Jacobian: how far the weights move, at most, for a step of length 1.

    Source: Vaswani et al. 2017, section 3.2.1, footnote 4. Chapter: 4.

    >>> print(*repr(explore_scale()).splitlines()[:2], sep="\n")
    Median slope of the softmax over 2,000 random queries of 8 keys
    d = 4: 0.31 without the scale, 0.28 with it
    """
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(QUERIES, KEYS, dtype=torch.float64, generator=generator)
    scores = scores.mul(100).round().div(100)  # what the page holds is what is computed with
    factors = [2 ** (power / 2) for power in POWERS]
    slopes = torch.stack([_slope((scores * f).softmax(-1)) for f in [*factors, 1.0]], dim=1)
    medians = [f"{value:.2g}" for value in slopes.quantile(0.5, dim=0).tolist()]
    rows = [[f"d = {2**p}", m, medians[-1]] for p, m in zip(POWERS, medians, strict=False)]
    head = f"Median slope of the softmax over {QUERIES:,} random queries of {KEYS} keys"
    text = "\n".join([head, *(f"{d}: {a} without the scale, {b} with it" for d, a, b in rows)])
    data = {
        "scores": scores[:SHOWN].tolist(),
        "slopes": [[f"{value:.2g}" for value in row] for row in slopes[:SHOWN].tolist()],
        "medians": medians,
    }
    table = plain_table(head, ["features", "without the scale", "with it"], rows)
    return Explorer("What do longer vectors do to a softmax?", text, table, "scale.js", data)


def _slope(weights: Float[Tensor, "*B L"]) -> Float[Tensor, "*B"]:
    # The sum of the other weights, not 1 minus this one: that would round to 0.
    others = weights @ (1 - torch.eye(weights.shape[-1], dtype=weights.dtype))
    outer = weights[..., :, None] * weights[..., None, :]
    jacobian = torch.diag_embed(weights * others) - outer.tril(-1) - outer.triu(1)
    largest: Tensor = torch.linalg.eigvalsh(jacobian)[..., -1]  # symmetric, never negative
    return largest
