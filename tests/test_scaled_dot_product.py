"""Scaled dot-product attention: q^T k / sqrt(d_k)."""

import math

import pytest
import torch
import torch.nn.functional as F

from companion import (
    ScaledDotProductAttention,
    causal_mask,
    dot_product_score,
    scaled_dot_product_score,
)
from companion.cost import largest_tensor_bytes
from tests.properties import make_problem

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}
# The first query sees two keys, the second one key, the third nothing.
MASK = torch.tensor([[1, 0, 1, 0], [0, 1, 0, 0], [0, 0, 0, 0]]).bool()
SIZES = [(3, 3), (3, 5), (5, 3), (1, 4), (4, 1)]  # (L_q, L_k)

each_path = pytest.mark.parametrize("need_weights", [True, False], ids=["weights", "fused"])
each_dtype = pytest.mark.parametrize("dtype", TOLERANCE, ids=str)


def scaled_products_in_a_loop(query, key):
    """The formula, one query, one key and one feature at a time."""
    rows = [
        [
            sum(float(a) * float(b) for a, b in zip(q, k, strict=True)) / math.sqrt(len(k))
            for k in key
        ]
        for q in query
    ]
    return torch.tensor(rows, dtype=query.dtype)


def assert_equal(actual, expected, dtype=torch.float64):
    torch.testing.assert_close(actual, expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


# The score


def test_score_by_hand():
    query = torch.tensor([[1.0, 2.0, 0.0, -1.0]])
    key = torch.tensor([[3.0, 1.0, 7.0, -3.0], [0.0, -1.0, 5.0, 4.0]])
    expected = torch.tensor([[8.0 / 2, -6.0 / 2]])  # the root of 4 features is 2
    torch.testing.assert_close(scaled_dot_product_score(query, key), expected, rtol=0, atol=0)


@each_dtype
def test_score_agrees_with_a_loop(dtype):
    problem = make_problem((), d_k=5, dtype=dtype)
    scores = scaled_dot_product_score(problem.query, problem.key)
    assert_equal(scores, scaled_products_in_a_loop(problem.query, problem.key), dtype)


@pytest.mark.parametrize("d_k", [1, 2, 9, 64, 1024])
def test_scores_of_unit_variance_have_unit_variance(d_k):
    problem = make_problem((), 200, 200, d_k, d_k)
    assert scaled_dot_product_score(problem.query, problem.key).var().item() == pytest.approx(
        1.0, abs=0.25
    )


@pytest.mark.parametrize("batch", [(), (2,), (2, 3)], ids=str)
def test_score_is_the_dot_product_over_the_root_of_the_features(batch):
    problem = make_problem(batch, d_k=5)
    scores = scaled_dot_product_score(problem.query, problem.key)
    assert scores.shape == (*batch, 3, 4)
    assert_equal(scores * math.sqrt(5), dot_product_score(problem.query, problem.key))


def test_gradients_of_the_score():
    problem = make_problem(d_k=5)
    inputs = [t.requires_grad_() for t in (problem.query, problem.key)]
    assert torch.autograd.gradcheck(scaled_dot_product_score, inputs)


def test_score_does_not_change_the_query():
    problem = make_problem(d_k=5)
    before = problem.query.clone()
    scaled_dot_product_score(problem.query, problem.key)
    assert torch.equal(problem.query, before)


@pytest.mark.parametrize(
    ("query_shape", "key_shape", "message"),
    [
        ((3, 5), (4, 2), r"got 5 and 2: project the query first, with torch\.nn\.Linear\(5, 2\)"),
        ((5,), (4, 5), r"\(\.\.\., length, features\), got \(5,\) and \(4, 5\)"),
        ((3, 5), (5,), r"\(\.\.\., length, features\), got \(3, 5\) and \(5,\)"),
    ],
)
def test_score_refuses_sizes_without_a_product(query_shape, key_shape, message):
    with pytest.raises(ValueError, match=message):
        scaled_dot_product_score(torch.zeros(query_shape), torch.zeros(key_shape))


# The module


@each_path
def test_module_by_hand(need_weights):
    query = torch.tensor([[1.0, 0.0, 0.0, 0.0]])
    key = torch.tensor([[2 * math.log(3.0), 7.0, 7.0, 7.0], [0.0, -9.0, 1.0, 5.0]])
    value = torch.tensor([[4.0], [8.0]])
    output, weights = ScaledDotProductAttention()(query, key, value, need_weights=need_weights)
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
    )
    output, _ = ScaledDotProductAttention()(
        problem.query, problem.key, problem.value, mask=mask, need_weights=need_weights
    )
    assert_equal(output, expected, dtype)


@each_path
def test_module_agrees_with_torch_for_heads(need_weights):
    problem = make_problem((2, 3), 6, 6, 5, 5)
    inputs = (problem.query, problem.key, problem.value)
    output, _ = ScaledDotProductAttention()(*inputs, is_causal=True, need_weights=need_weights)
    assert_equal(output, F.scaled_dot_product_attention(*inputs, is_causal=True))


@each_path
def test_a_query_that_sees_nothing_gets_0_with_finite_gradients(need_weights):
    problem = make_problem((2,), d_k=5)
    inputs = [t.requires_grad_() for t in problem.tensors]
    with torch.autograd.set_detect_anomaly(True):
        output, weights = ScaledDotProductAttention()(*inputs, mask=MASK, need_weights=need_weights)
        output.square().sum().backward()
    assert (output[:, 2] == 0).all()
    assert weights is None or (weights[:, 2] == 0).all()
    assert (inputs[0].grad[:, 2] == 0).all()
    assert all(t.grad.isfinite().all() for t in inputs)


@pytest.mark.parametrize("mask", [None, MASK], ids=["none", "rows"])
def test_both_paths_have_the_same_gradients(mask):
    gradients = []
    for need_weights in (True, False):
        inputs = [t.requires_grad_() for t in make_problem(d_k=5).tensors]
        output, _ = ScaledDotProductAttention()(*inputs, mask=mask, need_weights=need_weights)
        gradients.append(torch.autograd.grad(output.square().sum(), inputs))
    for with_weights, fused in zip(*gradients, strict=True):
        assert_equal(fused, with_weights)


# Causal


@each_path
@pytest.mark.parametrize(("l_q", "l_k"), SIZES)
def test_is_causal_means_the_causal_mask(l_q, l_k, need_weights):
    problem = make_problem((2,), l_q, l_k, 5, 5)
    attention = ScaledDotProductAttention()
    output, weights = attention(*problem.tensors, is_causal=True, need_weights=need_weights)
    expected, expected_weights = attention(*problem.tensors, mask=causal_mask(l_q, l_k))
    assert_equal(output, expected)
    if need_weights:
        assert torch.equal(weights, expected_weights)
        assert (weights[:, ~causal_mask(l_q, l_k)] == 0).all()


@each_path
@pytest.mark.parametrize("as_dtype", [torch.bool, torch.int64], ids=str)
@pytest.mark.parametrize(("l_q", "l_k"), SIZES)
@pytest.mark.parametrize("whole", [True, False], ids=["L_q L_k", "L_k"])
def test_is_causal_holds_together_with_a_mask(l_q, l_k, whole, as_dtype, need_weights):
    problem = make_problem((2,), l_q, l_k, 5, 5, mask_shape=(l_q, l_k) if whole else (l_k,))
    attention = ScaledDotProductAttention()
    output, weights = attention(
        *problem.tensors,
        mask=problem.mask.to(as_dtype),
        is_causal=True,
        need_weights=need_weights,
    )
    both = problem.mask & causal_mask(l_q, l_k)
    expected, expected_weights = attention(*problem.tensors, mask=both)
    assert_equal(output, expected)
    assert weights is None or torch.equal(weights, expected_weights)


@each_path
def test_the_last_query_sees_every_key_and_earlier_ones_see_less(need_weights):
    value = torch.eye(4)  # so that the output is the weights
    output, _ = ScaledDotProductAttention()(
        torch.zeros(2, 3), torch.zeros(4, 3), value, is_causal=True, need_weights=need_weights
    )
    expected = torch.tensor([[1 / 3, 1 / 3, 1 / 3, 0], [1 / 4, 1 / 4, 1 / 4, 1 / 4]])
    torch.testing.assert_close(output, expected)


# Dropout


@each_path
def test_dropout_acts_in_training_alone(need_weights):
    attention = ScaledDotProductAttention(dropout=0.5)
    problem = make_problem(l_k=50, d_k=5)
    plain, _ = ScaledDotProductAttention()(*problem.tensors)
    assert_equal(attention.eval()(*problem.tensors, need_weights=need_weights)[0], plain)
    torch.manual_seed(0)
    first, second = (
        attention.train()(*problem.tensors, need_weights=need_weights)[0] for _ in range(2)
    )
    assert (first - plain).abs().max() > 0.01
    assert (first - second).abs().max() > 0.01


def test_weights_are_those_before_dropout():
    problem = make_problem(d_k=5)
    _, expected = ScaledDotProductAttention()(*problem.tensors)
    _, weights = ScaledDotProductAttention(dropout=0.5).train()(*problem.tensors)
    assert torch.equal(weights, expected)


@each_path
def test_dropout_keeps_the_mean(need_weights):
    torch.manual_seed(1)
    query, key, value = torch.zeros(1, 1, 4), torch.zeros(1, 10_000, 4), torch.ones(1, 10_000, 1)
    output, _ = ScaledDotProductAttention(dropout=0.25)(
        query, key, value, need_weights=need_weights
    )
    assert output.item() != pytest.approx(1.0, abs=1e-5)
    assert output.item() == pytest.approx(1.0, abs=0.03)


# Cost, repr, errors


def test_without_weights_no_scores_are_held():
    attention = ScaledDotProductAttention()
    query = torch.zeros(1, 1, 512, 8)

    def largest(need_weights):
        return largest_tensor_bytes(
            lambda: attention(query, query, query, need_weights=need_weights)
        )

    assert largest(need_weights=True) == 512 * 512 * 4
    assert largest(need_weights=False) == 512 * 8 * 4


def test_module_has_no_parameters():
    assert not list(ScaledDotProductAttention().parameters())
    assert repr(ScaledDotProductAttention(0.1)) == "ScaledDotProductAttention(dropout=0.1)"


@pytest.mark.parametrize("dropout", [-0.1, 1.0, 1.5, math.nan])
def test_module_refuses_a_dropout_that_is_no_probability(dropout):
    with pytest.raises(ValueError, match=r"dropout must be in \[0, 1\), got"):
        ScaledDotProductAttention(dropout)


@each_path
@pytest.mark.parametrize("is_causal", [False, True], ids=["all", "causal"])
def test_module_refuses_inputs_that_do_not_belong_together(is_causal, need_weights):
    def attend(query, key, value, **options):
        attention = ScaledDotProductAttention()
        options |= {"need_weights": need_weights, "is_causal": is_causal}
        return attention(query, key, value, **options)

    query, key, value = make_problem(d_k=5).tensors
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
