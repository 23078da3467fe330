"""Answers to the exercises of chapter 4."""

import math

import torch

from companion import ScaledDotProductAttention, masked_softmax
from companion.exercises import check_scaled_attention, check_score_spread, check_softmax_backward


def scaled(query, key, value, mask=None, *, divisor=None, weigh=masked_softmax):
    scores = query @ key.mT / (divisor or math.sqrt(key.shape[-1]))
    return weigh(scores, mask) @ value


def backward(weights, gradient):
    weighted = weights * gradient
    return weighted - weights * weighted.sum(-1, keepdim=True)


def written_out(weights, gradient):
    jacobian = torch.diag_embed(weights) - weights[:, :, None] * weights[:, None, :]
    return (jacobian @ gradient[:, :, None]).squeeze(-1)


RIGHT = {
    check_score_spread: lambda d, query_std, key_std: math.sqrt(d) * query_std * key_std,
    check_scaled_attention: lambda q, k, v, mask=None: ScaledDotProductAttention()(
        q, k, v, mask=mask
    ),
    check_softmax_backward: backward,
}

WRONG = [
    (check_score_spread, lambda d, q, k: d * q**2 * k**2, "this is the variance"),
    (check_score_spread, lambda d, q, k: d**0.5, "multiply by both of theirs"),
    (check_score_spread, lambda d, q, k: d * q * k, "variances add up, not standard"),
    (check_score_spread, lambda d, q, k: q * k, "add them up"),
    (
        check_scaled_attention,
        lambda *i, mask=None: scaled(*i, mask, divisor=1),
        "not divided at all",
    ),
    (check_scaled_attention, lambda *i, mask=None: scaled(*i, mask, divisor=16), "not by its root"),
    (
        check_scaled_attention,
        lambda q, k, v, mask=None: scaled(q, k, v, mask, divisor=1 / math.sqrt(q.shape[-1])),
        "multiplied by",
    ),
    (
        check_scaled_attention,
        lambda *i, mask=None: scaled(
            *i, mask, weigh=lambda e, m: masked_softmax(e, None if m is None else ~m)
        ),
        '"mask_polarity" fails',
    ),
    (
        check_scaled_attention,
        lambda *i, mask=None: scaled(*i, mask, weigh=lambda e, m: e.softmax(-2)),
        "softmax",
    ),
    (
        check_scaled_attention,
        lambda *i, mask=None: scaled(
            *i,
            mask,
            weigh=lambda e, m: (e if m is None else e.masked_fill(~m, -torch.inf)).softmax(-1),
        ),
        '"fully_masked_rows" fails',
    ),
    (check_scaled_attention, lambda q, k, v, mask=None: q, "fails"),
    (check_softmax_backward, lambda p, g: p * g, "the part with p pᵀ is missing"),
    (check_softmax_backward, lambda p, g: p * (1 - p) * g, "only the diagonal"),
    (check_softmax_backward, lambda p, g: -backward(p, g), "differs from autograd's"),
    (check_softmax_backward, written_out, "the Jacobian is written out"),
    (check_softmax_backward, lambda p, g: backward(p, g)[0], "expected a tensor of shape"),
]
