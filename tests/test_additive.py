"""Additive attention: v^T tanh(W_1 q_i + W_2 k_j)."""

import math

import pytest
import torch

from companion import AdditiveAttention, additive_score
from companion.cost import largest_tensor_bytes
from tests.properties import make_problem

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}


def parameters(d_q=5, d_k=2, hidden=3, dtype=torch.float64):
    generator = torch.Generator().manual_seed(7)
    shapes = ((hidden, d_q), (hidden, d_k), (hidden,))
    return [torch.randn(s, generator=generator, dtype=torch.float64).to(dtype) for s in shapes]


def bahdanau_in_a_loop(query, key, w_query, w_key, v):
    """The formula, one query, one key and one hidden unit at a time."""
    rows = [
        [
            sum(
                v[unit].item()
                * math.tanh(float(w_query[unit] @ query_i) + float(w_key[unit] @ key_j))
                for unit in range(len(v))
            )
            for key_j in key
        ]
        for query_i in query
    ]
    return torch.tensor(rows, dtype=query.dtype)


# The score


def test_score_by_hand():
    query, key = torch.tensor([[1.0], [0.0]]), torch.tensor([[0.0], [2.0]])
    w_query, w_key = torch.tensor([[1.0], [0.0]]), torch.tensor([[1.0], [-1.0]])
    scores = additive_score(query, key, w_query, w_key, torch.tensor([1.0, 3.0]))
    # tanh(q + k) + 3 tanh(-k)
    expected = [
        [math.tanh(1), math.tanh(3) - 3 * math.tanh(2)],
        [0.0, math.tanh(2) - 3 * math.tanh(2)],
    ]
    torch.testing.assert_close(scores, torch.tensor(expected))


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_score_agrees_with_a_loop(dtype):
    problem, weights = make_problem((), dtype=dtype), parameters(dtype=dtype)
    torch.testing.assert_close(
        additive_score(problem.query, problem.key, *weights),
        bahdanau_in_a_loop(problem.query, problem.key, *weights),
        rtol=TOLERANCE[dtype],
        atol=TOLERANCE[dtype],
    )


@pytest.mark.parametrize("batch", [(), (2,), (2, 3)], ids=str)
@pytest.mark.parametrize("chunk_size", [1, 2, 5, 99])
def test_chunks_give_the_same_scores(batch, chunk_size):
    problem, weights = make_problem(batch, l_q=5), parameters()
    whole = additive_score(problem.query, problem.key, *weights)
    chunked = additive_score(problem.query, problem.key, *weights, chunk_size=chunk_size)
    assert whole.shape == (*batch, 5, 4)
    torch.testing.assert_close(chunked, whole, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("chunk_size", [None, 2])
def test_gradients_of_the_score(chunk_size):
    problem = make_problem()
    inputs = [t.requires_grad_() for t in (problem.query, problem.key, *parameters())]
    assert torch.autograd.gradcheck(lambda *t: additive_score(*t, chunk_size=chunk_size), inputs)


def test_a_score_is_bounded_by_the_sum_of_v():
    problem, (w_query, w_key, v) = make_problem(), parameters()
    scores = additive_score(1e6 * problem.query, problem.key, w_query, w_key, v)
    assert scores.abs().max() <= v.abs().sum() + 1e-12


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("w_query", (3, 4), r"w_query must have shape .* = \(3, 5\), got \(3, 4\)"),
        ("w_query", (5, 3), r"w_query must have shape .* = \(3, 5\), got \(5, 3\)"),
        ("w_key", (4, 2), r"w_key must have shape .* = \(3, 2\), got \(4, 2\)"),
        ("v", (3, 1), r"v must have shape \(d_hidden,\), got \(3, 1\)"),
        ("v", (), r"v must have shape \(d_hidden,\), got \(\)"),
    ],
)
def test_score_names_the_parameter_that_does_not_fit(name, shape, message):
    problem = make_problem()
    weights = dict(zip(("w_query", "w_key", "v"), parameters(), strict=True))
    weights[name] = torch.zeros(shape, dtype=torch.float64)
    with pytest.raises(ValueError, match=message):
        additive_score(problem.query, problem.key, **weights)


@pytest.mark.parametrize("chunk_size", [0, -3])
def test_score_refuses_chunks_that_are_not_positive(chunk_size):
    problem = make_problem()
    with pytest.raises(ValueError, match=f"chunk_size must be at least 1, got {chunk_size}"):
        additive_score(problem.query, problem.key, *parameters(), chunk_size=chunk_size)


# The module


def test_module_by_hand():
    attention = AdditiveAttention(query_dim=1, key_dim=1, hidden_dim=1)
    with torch.no_grad():
        for parameter, number in zip(attention.parameters(), (1.0, 1.0, 2.0), strict=True):
            parameter.fill_(number)
    key, value = torch.tensor([[0.0], [9.0]]), torch.tensor([[0.0], [1.0]])
    output, weights = attention(torch.zeros(1, 1), key, value)
    sigmoid = 1 / (1 + math.exp(-2 * math.tanh(9)))  # softmax of two scores, 0 and 2 tanh(9)
    torch.testing.assert_close(weights, torch.tensor([[1 - sigmoid, sigmoid]]))
    torch.testing.assert_close(output, torch.tensor([[sigmoid]]))


def test_module_uses_the_formula():
    problem = make_problem()
    attention = AdditiveAttention(5, 2, 3).double()
    scores = additive_score(
        problem.query, problem.key, attention.w_query, attention.w_key, attention.v
    )
    output, weights = problem.apply(attention)
    torch.testing.assert_close(weights, scores.softmax(-1))
    torch.testing.assert_close(output, weights @ problem.value)


def test_parameters_are_those_of_the_formula():
    shapes = {name: tuple(p.shape) for name, p in AdditiveAttention(40, 24, 16).named_parameters()}
    assert shapes == {"w_query": (16, 40), "w_key": (16, 24), "v": (16,)}


def test_parameters_start_as_linear_layers_do():
    attention = AdditiveAttention(100, 400, 900)
    for parameter, bound in zip(attention.parameters(), (1 / 10, 1 / 20, 1 / 30), strict=True):
        assert 0.95 * bound < parameter.abs().max() <= bound
        assert abs(parameter.mean()) < 0.1 * bound


def test_repr_shows_the_sizes():
    expected = "AdditiveAttention(query_dim=40, key_dim=24, hidden_dim=16)"
    assert repr(AdditiveAttention(40, 24, 16)) == expected


def test_without_weights_the_largest_tensor_is_smaller():
    attention = AdditiveAttention(4, 4, 512)
    query, key = torch.zeros(1024, 4), torch.zeros(64, 4)

    def largest(need_weights):
        return largest_tensor_bytes(lambda: attention(query, key, key, need_weights=need_weights))

    assert largest(need_weights=False) < largest(need_weights=True) / 50


@pytest.mark.parametrize("name", ["query_dim", "key_dim", "hidden_dim"])
def test_module_refuses_wrong_sizes(name):
    sizes = {"query_dim": 2, "key_dim": 2, "hidden_dim": 2}
    for wrong in (0, -1):
        with pytest.raises(ValueError, match=f"{name} must be at least 1, got {wrong}"):
            AdditiveAttention(**{**sizes, name: wrong})
    for wrong, got in ((2.0, "float"), ("2", "str"), (True, "bool")):
        with pytest.raises(TypeError, match=f"{name} must be an integer, got {got}"):
            AdditiveAttention(**{**sizes, name: wrong})


def test_module_names_the_input_with_the_wrong_features():
    attention, problem = AdditiveAttention(2, 5, 3).double(), make_problem()
    with pytest.raises(ValueError, match="query must have 2 features on its last axis, got 5"):
        problem.apply(attention)
    with pytest.raises(ValueError, match="key must have 5 features on its last axis, got 2"):
        attention(problem.key, problem.key, problem.value)


def test_module_checks_that_inputs_belong_together():
    attention, problem = AdditiveAttention(5, 2, 3).double(), make_problem()
    with pytest.raises(ValueError, match="the same batch axes, got"):
        attention(problem.query[:1], problem.key, problem.value)
    with pytest.raises(ValueError, match="the same length L_k, got 4 and 3"):
        attention(problem.query, problem.key, problem.value[:, :3])
    with pytest.raises(TypeError, match="value must be a floating-point tensor, got "):
        attention(problem.query, problem.key, problem.value.long())
