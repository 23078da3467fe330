"""Costs: whose time and memory is measured, and that it is."""

import time

import pytest
import torch

from companion import MultiHeadAttention, SelfAttention
from companion.cost import (
    kept_bytes,
    largest_tensor_bytes,
    longest_chain,
    median_seconds,
    multiplications,
)


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


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda x: x.tanh(), 32),  # keeps its result
        (lambda x: x + 1, 0),  # needs nothing
        (lambda x: x * x, 32),  # the same tensor twice
        (lambda x: x.view(2, 2) @ x.view(2, 2), 32),  # two views of one tensor
        (lambda x: x.tanh().tanh(), 64),
        (lambda x: x.detach().tanh(), 0),  # no gradient flows
        (lambda x: None, 0),
    ],
)
def test_what_the_backward_pass_needs_is_counted_once(function, expected):
    x = torch.ones(4, dtype=torch.float64, requires_grad=True)
    with torch.no_grad():  # it switches gradients on by itself, and back
        assert kept_bytes(lambda: function(x)) == expected
        assert not (x * 2).requires_grad


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda: torch.ones(2, 3) @ torch.ones(3, 5), 30),
        (lambda: torch.ones(7, 2, 3) @ torch.ones(7, 3, 5), 210),
        (lambda: torch.nn.Linear(3, 5)(torch.ones(2, 3)), 30),
        (lambda: torch.nn.GRU(3, 5, batch_first=True)(torch.ones(2, 7, 3)), 2 * 7 * 15 * (3 + 5)),
        (lambda: torch.ones(3) * torch.ones(3), 0),  # not a matrix product
        (lambda: None, 0),
    ],
)
def test_multiplications_of_matrix_products_are_counted(function, expected):
    assert multiplications(function) == expected


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("need_weights", [True, False])
def test_fused_attention_counts_like_its_steps(need_weights, dtype):
    n, d = 10, 8
    x = torch.randn(1, n, d, dtype=dtype)
    one, many = SelfAttention(d).to(dtype), MultiHeadAttention(d, 2).to(dtype)
    assert multiplications(lambda: one(x, need_weights=need_weights)) == (
        3 * n * d**2 + 2 * n**2 * d
    )
    assert multiplications(lambda: many(x, x, x, need_weights=need_weights)) == (
        4 * n * d**2 + 2 * n**2 * d
    )


def test_multiplications_are_counted_without_gradients():
    weight, results = torch.ones(2, 2, requires_grad=True), []
    multiplications(lambda: results.append(weight @ weight))
    assert not results[0].requires_grad


def test_the_longest_chain_is_what_must_wait():
    x = torch.ones(2, requires_grad=True)
    assert longest_chain(x.exp()) == 1
    assert longest_chain(x.exp() + x.exp().log().exp()) == 4  # the longer branch, then the sum
    assert longest_chain(torch.stack([x.exp() for _ in range(9)])) == 2  # side by side
    deep = x
    for _ in range(5000):  # deeper than Python's recursion goes
        deep = deep * 2
    assert longest_chain(deep) == 5000


def test_a_chain_needs_a_graph():
    with pytest.raises(ValueError, match="result must come from a computation with gradients"):
        longest_chain(torch.ones(2))
