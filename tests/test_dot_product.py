"""Dot-product attention: q^T k."""

import itertools
import math

import pytest
import torch
import torch.nn.functional as F

from companion import DotProductAttention, dot_product_score
from companion.cost import largest_tensor_bytes
from tests.properties import make_problem

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}
# The first query sees two keys, the second one key, the third nothing.
MASK = torch.tensor([[1, 0, 1, 0], [0, 1, 0, 0], [0, 0, 0, 0]]).bool()

each_path = pytest.mark.parametrize("need_weights", [True, False], ids=["weights", "fused"])
each_dtype = pytest.mark.parametrize("dtype", TOLERANCE, ids=str)


def products_in_a_loop(query, key):
    """The formula, one query, one key and one feature at a time."""
    rows = [
        [sum(float(a) * float(b) for a, b in zip(q, k, strict=True)) for k in key] for q in query
    ]
    return torch.tensor(rows, dtype=query.dtype)


# The score


def test_score_by_hand():
    query, key = torch.tensor([[1.0, 2.0], [0.0, -1.0]]), torch.tensor([[3.0, 0.5], [-2.0, 1.0]])
    expected = torch.tensor([[4.0, 0.0], [-0.5, -1.0]])
    torch.testing.assert_close(dot_product_score(query, key), expected, rtol=0, atol=0)


@each_dtype
def test_score_agrees_with_a_loop(dtype):
    problem = make_problem((), d_k=5, dtype=dtype)
    torch.testing.assert_close(
        dot_product_score(problem.query, problem.key),
        products_in_a_loop(problem.query, problem.key),
        rtol=TOLERANCE[dtype],
        atol=TOLERANCE[dtype],
    )


@pytest.mark.parametrize("batch", [(), (2,), (2, 3)], ids=str)
def test_score_of_batches_is_that_of_each_item(batch):
    problem = make_problem(batch, d_k=5)
    scores = dot_product_score(problem.query, problem.key)
    assert scores.shape == (*batch, 3, 4)
    for item in itertools.product(*map(range, batch)):
        expected = products_in_a_loop(problem.query[item], problem.key[item])
        torch.testing.assert_close(scores[item], expected)


def test_score_is_length_times_length_times_cosine():
    problem = make_problem((), d_k=5)
    lengths = problem.query.norm(dim=-1)[:, None] * problem.key.norm(dim=-1)
    cosines = F.cosine_similarity(problem.query[:, None], problem.key[None], dim=-1)
    torch.testing.assert_close(dot_product_score(problem.query, problem.key), lengths * cosines)


def test_gradients_of_the_score():
    problem = make_problem(d_k=5)
    inputs = [t.requires_grad_() for t in (problem.query, problem.key)]
    assert torch.autograd.gradcheck(dot_product_score, inputs)


def test_score_never_makes_a_tensor_with_all_three_axes():
    query, key = torch.zeros(64, 32), torch.zeros(48, 32)
    assert largest_tensor_bytes(lambda: dot_product_score(query, key)) == 64 * 48 * 4


@pytest.mark.parametrize(
    ("query_shape", "key_shape", "message"),
    [
        ((3, 5), (4, 2), r"got 5 and 2: project the query first, with torch\.nn\.Linear\(5, 2\)"),
        ((3, 2), (4, 5), r"got 2 and 5: project the query first, with torch\.nn\.Linear\(2, 5\)"),
        ((5,), (4, 5), r"\(\.\.\., length, features\), got \(5,\) and \(4, 5\)"),
        ((3, 5), (5,), r"\(\.\.\., length, features\), got \(3, 5\) and \(5,\)"),
    ],
)
def test_score_refuses_sizes_without_a_product(query_shape, key_shape, message):
    with pytest.raises(ValueError, match=message):
        dot_product_score(torch.zeros(query_shape), torch.zeros(key_shape))


# The module


@each_path
def test_module_by_hand(need_weights):
    query, key = torch.tensor([[1.0, 0.0]]), torch.tensor([[math.log(3.0), 7.0], [0.0, -9.0]])
    value = torch.tensor([[4.0], [8.0]])
    output, weights = DotProductAttention()(query, key, value, need_weights=need_weights)
    torch.testing.assert_close(output, torch.tensor([[5.0]]))  # 3/4 of 4, 1/4 of 8
    if need_weights:
        torch.testing.assert_close(weights, torch.tensor([[0.75, 0.25]]))
    else:
        assert weights is None


@each_path
@each_dtype
@pytest.mark.parametrize("batch", [(), (2,), (2, 3)], ids=str)
@pytest.mark.parametrize("mask", [None, MASK, MASK[0], MASK.int()], ids=str)
def test_module_agrees_with_torch(batch, mask, dtype, need_weights):
    problem = make_problem(batch, d_k=5, dtype=dtype)
    expected = F.scaled_dot_product_attention(
        problem.query,
        problem.key,
        problem.value,
        attn_mask=None if mask is None else mask.bool().expand(3, 4),
        scale=1.0,
    )
    output, _ = DotProductAttention()(
        problem.query, problem.key, problem.value, mask=mask, need_weights=need_weights
    )
    torch.testing.assert_close(output, expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


@each_path
def test_a_query_that_sees_nothing_gets_0_with_finite_gradients(need_weights):
    problem = make_problem((2,), d_k=5)
    inputs = [t.requires_grad_() for t in (problem.query, problem.key, problem.value)]
    with torch.autograd.set_detect_anomaly(True):
        output, weights = DotProductAttention()(*inputs, mask=MASK, need_weights=need_weights)
        output.square().sum().backward()
    assert (output[:, 2] == 0).all()
    assert weights is None or (weights[:, 2] == 0).all()
    assert (inputs[0].grad[:, 2] == 0).all()
    assert all(t.grad.isfinite().all() for t in inputs)


def test_a_large_score_does_not_overflow():
    query, key = torch.full((1, 4), 1e4), torch.tensor([[1e4] * 4, [-1e4] * 4])
    output, weights = DotProductAttention()(query, key, torch.eye(2))
    assert weights.tolist() == [[1.0, 0.0]]
    assert output.tolist() == [[1.0, 0.0]]


@pytest.mark.parametrize("mask", [None, torch.ones(1, 512).bool()], ids=["none", "mask"])
@pytest.mark.parametrize("batch", [(), (1,), (1, 1)], ids=str)
def test_without_weights_no_scores_are_held(batch, mask):
    attention = DotProductAttention()
    query = key = torch.zeros(*batch, 512, 8)

    def largest(need_weights):
        return largest_tensor_bytes(
            lambda: attention(query, key, key, mask=mask, need_weights=need_weights)
        )

    assert largest(need_weights=True) == 512 * 512 * 4
    assert largest(need_weights=False) == 512 * 8 * 4


def test_module_has_no_parameters():
    assert not list(DotProductAttention().parameters())
    assert repr(DotProductAttention()) == "DotProductAttention()"


@each_path
def test_module_refuses_inputs_that_do_not_belong_together(need_weights):
    def attend(query, key, value, **options):
        return DotProductAttention()(query, key, value, need_weights=need_weights, **options)

    query, key, value = (problem := make_problem(d_k=5)).query, problem.key, problem.value
    with pytest.raises(ValueError, match="same number of features for a dot product, got 5 and 4"):
        attend(query, key[..., :4], value)
    with pytest.raises(ValueError, match="the same batch axes, got"):
        attend(query[:1], key, value)
    with pytest.raises(ValueError, match="the same length L_k, got 4 and 3"):
        attend(query, key, value[:, :3])
    with pytest.raises(ValueError, match=r"query must have shape .*, got \(5,\)"):
        attend(query[0, 0], key, value)
    with pytest.raises(TypeError, match="value must be a floating-point tensor, got "):
        attend(query, key, value.long())
    with pytest.raises(TypeError, match="mask must be boolean"):
        attend(query, key, value, mask=torch.zeros(3, 4))
    with pytest.raises(ValueError, match=r"mask must broadcast to the scores \(2, 3, 4\)"):
        attend(query, key, value, mask=MASK.T)
