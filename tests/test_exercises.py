"""Each check accepts a right answer, names typical mistakes, and says what to do when unfilled."""

import math

import pytest
import torch

from companion import additive_score, masked_softmax
from companion.exercises import (
    check_ceiling,
    check_chunks,
    check_effective_weights,
    check_half_life,
    check_masked_weights,
    check_weighted_sum,
)


def half_life_bias(steps):
    f = 0.5 ** (1 / steps)
    return math.log(f / (1 - f))


def powers(a, length):
    return [a ** (length - 1 - t) for t in range(length)]


def simulated_ceiling(pairs, values):
    draws = torch.randint(values, (100_000, pairs), generator=torch.Generator().manual_seed(1))
    counts = torch.stack([(draws == value).sum(1) for value in range(values)])
    return counts.max(0).values.double().mean().item() / pairs


def context_of(scores, values):
    exponentials = [math.exp(score) for score in scores]
    return sum(e * v for e, v in zip(exponentials, values, strict=True)) / sum(exponentials)


def in_chunks(query, key, w_query, w_key, v):
    return additive_score(query, key, w_query, w_key, v, chunk_size=8)


RIGHT = {
    check_half_life: half_life_bias,
    check_effective_weights: powers,
    check_ceiling: simulated_ceiling,
    check_weighted_sum: context_of,
    check_masked_weights: masked_softmax,
    check_chunks: in_chunks,
}

WRONG = [
    (check_half_life, math.log, "ln(steps)"),
    (check_half_life, lambda steps: 0.5 ** (1 / steps), "the gate f itself"),
    (check_half_life, lambda steps: 1.0, "solve f**steps"),
    (check_effective_weights, lambda a, n: powers(a, n)[::-1], "order is reversed"),
    (check_effective_weights, lambda a, n: [a * w for w in powers(a, n)], "one step too many"),
    (check_effective_weights, lambda a, n: [1.0] * n, "expected [0.729"),
    (check_ceiling, lambda pairs, values: 1 / values, "blind guessing"),
    (check_ceiling, lambda pairs, values: 1.0, "largest count"),
    (
        check_weighted_sum,
        lambda scores, values: sum(s * v for s, v in zip(scores, values, strict=True)),
        "not weights yet",
    ),
    (
        check_weighted_sum,
        lambda scores, values: sum(math.exp(s) * v for s, v in zip(scores, values, strict=True)),
        "do not add up to 1",
    ),
    (check_masked_weights, lambda scores, mask: masked_softmax(scores, ~mask), "wrong way round"),
    (
        check_masked_weights,
        lambda scores, mask: masked_softmax(scores.T, mask.T).T,
        "over the queries",
    ),
    (check_masked_weights, lambda scores, mask: scores.softmax(-1) * mask, "no longer add up"),
    (check_masked_weights, lambda scores, mask: (scores * mask).softmax(-1), "exp(0)"),
    (
        check_masked_weights,
        lambda scores, mask: scores.masked_fill(~mask, -torch.inf).softmax(-1),
        "gives NaN",
    ),
    (
        check_masked_weights,
        lambda scores, mask: scores.masked_fill(~mask, -1e9).softmax(-1),
        "uniform weights",
    ),
    (check_masked_weights, lambda scores, mask: scores.softmax(-1)[0], "expected a tensor"),
    (check_chunks, additive_score, "whole grid"),
    (check_chunks, lambda *inputs: in_chunks(*inputs).softmax(-1), "before the softmax"),
    (check_chunks, lambda *inputs: -in_chunks(*inputs), "differ from"),
    (check_chunks, lambda *inputs: in_chunks(*inputs).T[:3], "expected a tensor"),
]


@pytest.mark.parametrize("check", RIGHT, ids=lambda check: check.__name__)
def test_right_answers_pass(check):
    verdict = check(RIGHT[check])
    assert verdict.right, verdict


@pytest.mark.parametrize(("check", "answer", "mistake"), WRONG)
def test_typical_mistakes_are_named(check, answer, mistake):
    verdict = check(answer)
    assert verdict.right is False
    assert mistake in verdict.message


@pytest.mark.parametrize("check", RIGHT, ids=lambda check: check.__name__)
@pytest.mark.parametrize("unfilled", [None, ...])
def test_unfilled_cells_say_what_to_do(check, unfilled):
    verdict = check(lambda *_: unfilled)
    assert verdict.right is None
    assert repr(verdict).startswith("To do: return ")
