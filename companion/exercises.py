"""Checks of the exercises: each says whether an answer is right, and if not, which mistake it is.

An exercise's cell ends with a call such as ``check_half_life(my_answer)``. Left unfilled, it says
what to do. The usual wrong answers are recognised and named.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from companion.additive import additive_score
from companion.attention import masked_softmax
from companion.cost import largest_tensor_bytes

Answer = Callable[..., Any]


@dataclass(frozen=True)
class Verdict:
    """What a check found: ``right`` is True, False, or None while the cell is unfilled."""

    right: bool | None
    message: str

    def __repr__(self) -> str:
        return f"{ {True: 'Right', False: 'Not yet', None: 'To do'}[self.right] }: {self.message}"


def check_half_life(answer: Answer) -> Verdict:
    """Check chapter 1's exercise "half-life".

    Args:
        answer: ``answer(steps)`` returns the forget bias with which an LSTM's cell keeps half of
            its content after that many steps.

    >>> check_half_life(lambda steps: None)
    To do: return the forget bias, a number.
    >>> check_half_life(lambda steps: math.log(steps))
    Not yet: after 10 steps the cell keeps 0.39; ln(steps) is the bias that keeps about 1/e.
    """
    for steps in (10, 100, 1000):
        bias = answer(steps)
        if _unfilled(bias):
            return Verdict(None, "return the forget bias, a number.")
        bias = float(bias)
        kept = (1 / (1 + math.exp(-bias))) ** steps
        if math.isclose(kept, 0.5, abs_tol=1e-3):
            continue
        hint = "solve f**steps = 1/2 for f, then f = 1 / (1 + exp(-b)) for b."
        if math.isclose(bias, math.log(steps), rel_tol=1e-6):
            hint = "ln(steps) is the bias that keeps about 1/e."
        elif math.isclose(bias, 0.5 ** (1 / steps), rel_tol=1e-6):
            hint = "this is the gate f itself; the bias is what the logistic function turns into f."
        return Verdict(False, f"after {steps} steps the cell keeps {kept:.2f}; {hint}")
    return Verdict(True, "the cell keeps one half after 10, 100 and 1000 steps.")


def check_effective_weights(answer: Answer) -> Verdict:
    """Check chapter 1's exercise "a recurrent network is a fixed weighting".

    Args:
        answer: ``answer(a, length)`` returns the weights ``w`` with which the last state of
            ``h[t] = a * h[t - 1] + x[t]`` is ``sum(w[t] * x[t])``, first input first.

    >>> check_effective_weights(lambda a, length: [a**t for t in range(length)])
    Not yet: the order is reversed: w[0] belongs to the first input, which is multiplied most often.
    """
    for a, length in ((0.9, 4), (-0.5, 7), (1.0, 3)):
        weights = answer(a, length)
        if _unfilled(weights):
            return Verdict(None, "return a list of weights, one for each input.")
        weights = [float(weight) for weight in weights]
        expected = [a ** (length - 1 - t) for t in range(length)]
        if _close(weights, expected):
            continue
        if _close(weights[::-1], expected):
            return Verdict(
                False,
                "the order is reversed: w[0] belongs to the first input, "
                "which is multiplied most often.",
            )
        if _close(weights, [a * weight for weight in expected]):
            return Verdict(False, "one step too many: the last input is added, not multiplied.")
        return Verdict(False, f"for a = {a}, length {length}, expected {_short(expected)}.")
    return Verdict(True, "the weights are the same for every input, as a fixed encoding's are.")


def check_ceiling(answer: Answer) -> Verdict:
    """Check chapter 1's exercise "the ceiling for other sizes".

    Args:
        answer: ``answer(pairs, values)`` returns the best accuracy on associative recall with
            equal weights over unbound pairs, to within 0.01.

    >>> check_ceiling(lambda pairs, values: 1 / values)
    Not yet: for 8 pairs and 8 values expected about 0.32, got 0.12: that is blind guessing; \
a model can see which values occur, and how often.
    """
    for pairs, values in ((8, 8), (2, 8), (8, 2), (1, 5)):
        accuracy = answer(pairs, values)
        if _unfilled(accuracy):
            return Verdict(None, "return an accuracy between 0 and 1.")
        accuracy, expected = float(accuracy), _ceiling(pairs, values)
        if abs(accuracy - expected) < 0.01:
            continue
        hint = "average the largest count of a value, over the number of pairs."
        if math.isclose(accuracy, 1 / values):
            hint = "that is blind guessing; a model can see which values occur, and how often."
        return Verdict(
            False,
            f"for {pairs} pairs and {values} values expected about {expected:.2f}, "
            f"got {accuracy:.2f}: {hint}",
        )
    return Verdict(True, "no read-out of an equally weighted sum can do better than this.")


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
        if _unfilled(context):
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
    if _unfilled(weights):
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
        return Verdict(True, "hidden keys get exactly 0, also when nothing is left to attend to.")
    return Verdict(False, _explain_masked(weights, scores, mask))


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
    if _unfilled(scores):
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


def _unfilled(answer: object) -> bool:
    return answer is None or answer is ...


def _close(got: Sequence[float], expected: Sequence[float]) -> bool:
    return len(got) == len(expected) and all(
        math.isclose(g, e, rel_tol=1e-6, abs_tol=1e-9) for g, e in zip(got, expected, strict=True)
    )


def _short(numbers: Sequence[float]) -> str:
    return "[" + ", ".join(f"{number:.3g}" for number in numbers) + "]"


def _ceiling(pairs: int, values: int) -> float:
    """Average, over all ways to draw the values, the largest count over the number of pairs."""
    total = sum(max(counts) * ways for counts, ways in _counts(pairs, values))
    ceiling: float = total / values**pairs / pairs
    return ceiling


def _counts(pairs: int, values: int) -> Iterator[tuple[tuple[int, ...], int]]:
    """Yield how often each value can occur, and in how many orders of the pairs it does."""
    if values == 1:
        yield (pairs,), 1
        return
    for first in range(pairs + 1):
        for rest, ways in _counts(pairs - first, values - 1):
            yield (first, *rest), ways * math.comb(pairs, first)
