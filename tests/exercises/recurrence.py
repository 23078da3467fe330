"""Answers to the exercises of chapter 1."""

import math

import torch

from companion.exercises import check_ceiling, check_effective_weights, check_half_life


def half_life_bias(steps):
    f = 0.5 ** (1 / steps)
    return math.log(f / (1 - f))


def powers(a, length):
    return [a ** (length - 1 - t) for t in range(length)]


def simulated_ceiling(pairs, values):
    draws = torch.randint(values, (100_000, pairs), generator=torch.Generator().manual_seed(1))
    counts = torch.stack([(draws == value).sum(1) for value in range(values)])
    return counts.max(0).values.double().mean().item() / pairs


RIGHT = {
    check_half_life: half_life_bias,
    check_effective_weights: powers,
    check_ceiling: simulated_ceiling,
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
]
