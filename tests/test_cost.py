"""Costs: whose time and memory is measured, and that it is."""

import time

import pytest
import torch

from companion.cost import largest_tensor_bytes, median_seconds


def test_functions_take_turns_with_one_round_to_warm_up():
    calls = []
    seconds = median_seconds({name: lambda n=name: calls.append(n) for name in "ab"}, rounds=2)
    assert calls == list("ababab")
    assert list(seconds) == ["a", "b"]


def test_the_median_ignores_one_slow_call_and_the_first():
    pauses = iter([0.1, 0.0, 0.1, 0.0])
    seconds = median_seconds({"a": lambda: time.sleep(next(pauses))}, rounds=3)
    assert 0 < seconds["a"] < 0.05


@pytest.mark.parametrize(("rounds", "error"), [(0, ValueError), (2.5, TypeError)])
def test_rounds_are_checked(rounds, error):
    with pytest.raises(error, match="rounds must be "):
        median_seconds({}, rounds=rounds)


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda: torch.zeros(10, dtype=torch.float64), 80),
        (lambda: torch.zeros(10, dtype=torch.float16), 20),
        (lambda: torch.zeros(3, 1) + torch.zeros(1, 5), 60),  # an intermediate result
        (lambda: (torch.zeros(3, 1) + torch.zeros(1, 5)).sum(), 60),
        (lambda: torch.zeros(1, 4).expand(1000, 4), 16),  # a view keeps nothing
        (lambda: torch.zeros(2, 8).split(4, dim=1), 64),
        (lambda: None, 0),
    ],
)
def test_the_largest_result_is_counted(function, expected):
    assert largest_tensor_bytes(function) == expected


def test_a_view_of_what_was_there_before_is_not_a_cost():
    before = torch.zeros(1000)
    assert largest_tensor_bytes(lambda: before[:2] + 1) == 8


def test_memory_is_measured_without_gradients_and_the_switch_is_set_back():
    weight, results = torch.ones(2, requires_grad=True), []
    largest_tensor_bytes(lambda: results.append(weight * 2))
    assert not results[0].requires_grad
    assert (weight * 2).requires_grad
