"""Checks of the exercises of chapter 2."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from companion.additive import additive_score
from companion.attention import masked_softmax
from companion.checks import check_attention
from companion.cost import largest_tensor_bytes
from companion.exercises.verdict import Answer, Verdict, unfilled


def check_weighted_sum(answer: Answer) -> Verdict:
    """Check chapter 2's exercise "attention in plain Python".

    Args:
        answer: ``answer(scores, values)`` for two lists of numbers returns the context: the sum of
            the values, weighted by the softmax of the scores.

    >>> check_weighted_sum(lambda scores, values: sum(s * v for s, v in zip(scores, values)))
    Not yet: for scores [0.0, 0.0] expected 15.000, got 0.000: the scores are not weights yet; \
exponentiate them and divide by their sum.
    """
    for scores, values in (([0.0, 0.0], [10.0, 20.0]), ([1.0, 0.0, -1.0], [10.0, 20.0, 30.0])):
        context = answer(scores, values)
        if unfilled(context):
            return Verdict(None, "return the context, a number.")
        exponentials = [math.exp(score) for score in scores]
        raw = sum(e * v for e, v in zip(exponentials, values, strict=True))
        expected, context = raw / sum(exponentials), float(context)
        if math.isclose(context, expected, rel_tol=1e-6):
            continue
        hint = "score, softmax, weighted sum: check each step on its own."
        if math.isclose(context, raw, rel_tol=1e-6):
            hint = "the weights do not add up to 1; divide by the sum of the exponentials."
        elif math.isclose(context, sum(s * v for s, v in zip(scores, values, strict=True))):
            hint = "the scores are not weights yet; exponentiate them and divide by their sum."
        return Verdict(
            False, f"for scores {scores} expected {expected:.3f}, got {context:.3f}: {hint}"
        )
    return Verdict(True, "equal scores give the mean, and a higher score gives more weight.")


def check_masked_weights(answer: Answer) -> Verdict:
    """Check chapter 2's exercise "a softmax that respects a mask".

    Args:
        answer: ``answer(scores, mask)`` returns weights of the scores' shape ``(L_q, L_k)``, for a
            boolean mask of that shape in which True means "may attend".

    >>> check_masked_weights(lambda scores, mask: (scores * mask).softmax(-1))
    Not yet: a hidden key has weight 0.39: a score of 0 is not "no weight", since exp(0) is 1; \
hide before the softmax, with a very low score.
    """
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(3, 4, generator=generator, dtype=torch.float64)
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [0, 1, 1, 1]]).bool()
    weights = answer(scores.clone(), mask.clone())
    if unfilled(weights):
        return Verdict(None, "return the weights, a tensor of the shape of the scores.")
    if not isinstance(weights, Tensor) or weights.shape != scores.shape:
        got = tuple(weights.shape) if isinstance(weights, Tensor) else type(weights).__name__
        return Verdict(False, f"expected a tensor of shape {tuple(scores.shape)}, got {got}.")
    expected = masked_softmax(scores, mask)
    if torch.allclose(weights, expected, atol=1e-6):
        empty = answer(scores.clone(), torch.zeros_like(mask))
        if empty.isnan().any():
            return Verdict(
                False, "a query that may attend to nothing gives NaN; it must give weights 0."
            )
        if empty.abs().max() > 0:
            return Verdict(
                False,
                "a query that may attend to nothing gets uniform weights; set hidden weights to 0 "
                "once more after the softmax.",
            )
        report = check_attention(_attention_with(answer), fully_masked="zero")
        if report.failed:
            first = report.failed[0]
            hint = report[first].hint
            return Verdict(False, f"right for these scores, but not in general ({first}): {hint}")
        return Verdict(True, "hidden keys get exactly 0, also when nothing is left to attend to.")
    return Verdict(False, _explain_masked(weights, scores, mask))


def _attention_with(answer: Answer) -> Answer:
    """Attend with the answer's weights, one item of the batch at a time."""

    def attention(
        query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        scores = query @ key.mT / math.sqrt(key.shape[-1])
        shown = torch.ones_like(scores, dtype=torch.bool) if mask is None else mask
        weights = torch.stack([answer(*item) for item in zip(scores, shown, strict=True)])
        return weights @ value, weights

    return attention


def _explain_masked(weights: Tensor, scores: Tensor, mask: Tensor) -> str:
    if torch.allclose(weights, masked_softmax(scores, ~mask), atol=1e-6):
        return "the mask is read the wrong way round: True means may attend."
    if torch.allclose(weights, masked_softmax(scores.T, mask.T).T, atol=1e-6):
        return "the softmax runs over the queries; the keys are the last axis, dim=-1."
    if torch.allclose(weights, scores.softmax(-1) * mask, atol=1e-6):
        return "the rows no longer add up to 1: hide before the softmax, not after it."
    hidden = weights[~mask].max()
    if hidden > 1e-6:
        return (
            f'a hidden key has weight {hidden:.2f}: a score of 0 is not "no weight", since exp(0) '
            "is 1; hide before the softmax, with a very low score."
        )
    return "the weights of the keys that may be attended to differ from their softmax."


def check_chunks(answer: Answer) -> Verdict:
    """Check chapter 2's exercise "the same scores in less memory".

    Args:
        answer: ``answer(query, key, w_query, w_key, v)`` returns the additive scores
            ``(L_q, L_k)``, without making a tensor that holds more than 8 queries' grids.

    >>> check_chunks(additive_score)
    Not yet: the scores are right, but the largest tensor has 2048 KiB and 256 are allowed: the \
whole grid is made at once; go through the queries a few at a time.
    """
    draw = torch.Generator().manual_seed(0)
    query, key = torch.randn(2, 64, 32, generator=draw, dtype=torch.float64)
    w_query, w_key = torch.randn(2, 64, 32, generator=draw, dtype=torch.float64) / 8
    v = torch.randn(64, generator=draw, dtype=torch.float64)
    inputs = (query, key, w_query, w_key, v)
    scores = answer(*inputs)
    if unfilled(scores):
        return Verdict(None, "return the scores, a tensor (L_q, L_k).")
    expected = additive_score(*inputs)
    if not isinstance(scores, Tensor) or scores.shape != expected.shape:
        got = tuple(scores.shape) if isinstance(scores, Tensor) else type(scores).__name__
        return Verdict(False, f"expected a tensor of shape {tuple(expected.shape)}, got {got}.")
    if not torch.allclose(scores, expected):
        if torch.allclose(scores, expected.softmax(-1)):
            return Verdict(False, "these are the weights; return the scores before the softmax.")
        return Verdict(False, "the scores differ from those of companion.additive_score.")
    allowed = 8 * len(key) * len(v) * query.element_size()
    largest = largest_tensor_bytes(lambda: answer(*inputs))
    if largest > allowed:
        return Verdict(
            False,
            f"the scores are right, but the largest tensor has {largest // 1024} KiB and "
            f"{allowed // 1024} are allowed: the whole grid is made at once; go through the "
            "queries a few at a time.",
        )
    return Verdict(True, f"the same scores, and no tensor larger than {largest // 1024} KiB.")
