"""Checks of the exercises of chapter 1."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from companion.exercises.verdict import Answer, Verdict, unfilled


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
        if unfilled(bias):
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
        if unfilled(weights):
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
        if unfilled(accuracy):
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
