"""The step that every attention shares, and what holds for every kind of it."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from companion import attend, causal_mask, masked_softmax
from companion.attention import check_inputs
from tests.properties import KINDS, PROPERTIES, Problem, make_problem, problems

DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}
each_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)
# The first query sees two keys, the second one key, the third nothing.
MASK = torch.tensor([[1, 0, 1, 0], [0, 1, 0, 0], [0, 0, 0, 0]]).bool()


# masked_softmax and attend, by hand


def test_masked_softmax_by_hand():
    scores = torch.tensor([[0.0, math.log(3.0)], [5.0, 5.0]])
    torch.testing.assert_close(masked_softmax(scores), torch.tensor([[0.25, 0.75], [0.5, 0.5]]))
    mask = torch.tensor([[True, True], [False, True]])
    torch.testing.assert_close(masked_softmax(scores, mask), torch.tensor([[0.25, 0.75], [0, 1]]))


def test_attend_by_hand():
    scores = torch.tensor([[0.0, math.log(3.0)], [0.0, 0.0]])
    value = torch.tensor([[4.0, 0.0], [0.0, 8.0]])
    output, weights = attend(scores, value, torch.tensor([[True, True], [True, False]]))
    torch.testing.assert_close(weights, torch.tensor([[0.25, 0.75], [1.0, 0.0]]))
    torch.testing.assert_close(output, torch.tensor([[1.0, 6.0], [4.0, 0.0]]))


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_masked_softmax_agrees_with_torch(dtype):
    scores = torch.randn(2, 3, 5, 4, generator=torch.Generator().manual_seed(0)).to(dtype)
    mask = torch.rand(3, 5, 4, generator=torch.Generator().manual_seed(1)) < 0.7
    expected = scores.masked_fill(~mask, -torch.inf).softmax(-1).nan_to_num(0.0)
    torch.testing.assert_close(
        masked_softmax(scores, mask), expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype]
    )
    torch.testing.assert_close(masked_softmax(scores), scores.softmax(-1), rtol=0, atol=0)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("mask", [None, MASK, causal_mask(3, 4)], ids=["none", "rows", "causal"])
def test_attend_agrees_with_torchs_attention(mask, dtype):
    problem = make_problem((2,), 3, 4, 6, 6, 5, dtype=dtype)
    scores = problem.query @ problem.key.mT / math.sqrt(6)
    expected = F.scaled_dot_product_attention(
        problem.query, problem.key, problem.value, attn_mask=mask
    )
    output, _ = attend(scores, problem.value, mask)
    torch.testing.assert_close(output, expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


# Rows that see nothing, extreme numbers


def test_a_row_that_sees_nothing_is_0_with_finite_gradients():
    scores = torch.tensor([[1e4, -1e4, 0.0, 5.0]] * 3, requires_grad=True)
    value = torch.ones(4, 2, requires_grad=True)
    with torch.autograd.set_detect_anomaly(True):
        output, weights = attend(scores, value, MASK)
        (output.sum() + weights.square().sum()).backward()
    assert (weights[2] == 0).all()
    assert (output[2] == 0).all()
    assert (scores.grad[2] == 0).all()
    assert scores.grad.isfinite().all()
    assert value.grad.isfinite().all()


@pytest.mark.parametrize("hidden", [math.nan, math.inf, -math.inf, 1e30])
def test_a_hidden_score_may_be_anything(hidden):
    scores = torch.tensor([[0.0, hidden], [hidden, hidden]], requires_grad=True)
    weights = masked_softmax(scores, torch.tensor([[True, False], [False, False]]))
    weights.square().sum().backward()
    assert torch.equal(weights, torch.tensor([[1.0, 0.0], [0.0, 0.0]]))
    assert torch.equal(scores.grad, torch.zeros(2, 2))


@each_dtype
def test_large_scores_stay_finite_in_their_own_dtype(dtype):
    scores = torch.tensor([[1e4, -1e4, 0.0, 9984.0]] * 3, dtype=dtype)
    output, weights = attend(scores, torch.ones(4, 1, dtype=dtype), MASK)
    assert weights.dtype == output.dtype == dtype
    assert torch.equal(weights, torch.tensor([[1, 0, 0, 0], [0, 1, 0, 0], [0] * 4]).to(dtype))


@pytest.mark.parametrize("shift", [-1e4, 1e4])
def test_adding_a_constant_to_a_row_changes_nothing(shift):
    scores = torch.randn(3, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    torch.testing.assert_close(
        masked_softmax(scores + shift, MASK), masked_softmax(scores, MASK), rtol=1e-10, atol=1e-12
    )


# Dropout


def test_dropout_spares_the_returned_weights_and_keeps_the_mean():
    torch.manual_seed(0)
    scores, value = torch.zeros(1, 10_000), torch.ones(10_000, 1)
    output, weights = attend(scores, value, dropout_p=0.25)
    torch.testing.assert_close(weights, torch.full((1, 10_000), 1e-4))
    assert output.item() != pytest.approx(1.0, abs=1e-5)
    assert output.item() == pytest.approx(1.0, abs=0.03)


# Gradients


@pytest.mark.parametrize("mask", [None, MASK], ids=["none", "rows"])
def test_gradients_of_attend(mask):
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(2, 3, 4, generator=generator, dtype=torch.float64, requires_grad=True)
    value = torch.randn(2, 4, 2, generator=generator, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda s, v: attend(s, v, mask), (scores, value))
    assert torch.autograd.gradgradcheck(lambda s, v: attend(s, v, mask), (scores, value))


# What holds for every kind of attention


@each_kind
@pytest.mark.parametrize("holds", PROPERTIES, ids=lambda holds: holds.__name__)
@settings(max_examples=12)
@given(data=st.data())
def test_property(holds, kind, data):
    holds(kind, data.draw(problems(kind)))


@each_kind
@pytest.mark.parametrize("mask", [None, MASK], ids=["none", "rows"])
@pytest.mark.parametrize("need_weights", [True, False], ids=["weights", "output"])
def test_gradients(kind, mask, need_weights):
    problem = make_problem((2,), 3, 4, 2, 2, 2)
    module = kind.make(problem)

    def function(query, key, value, *_):
        output, weights = module(query, key, value, mask=mask, need_weights=need_weights)
        return (output, weights) if need_weights else output

    inputs = [t.requires_grad_() for t in (problem.query, problem.key, problem.value)]
    parameters = [p for p in module.parameters() if p.requires_grad]
    assert torch.autograd.gradcheck(function, (*inputs, *parameters), fast_mode=True)


@each_kind
@each_dtype
def test_module_keeps_the_dtype(kind, dtype):
    problem = kind.problem(mask_shape=(2, 3, 4), dtype=dtype)
    module = kind.make(problem)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.mul_(kind.largest_factor)
    output, weights = problem.apply(module)
    assert output.dtype == weights.dtype == dtype
    assert output.isfinite().all()
    assert weights.isfinite().all()
    # Rounding a score of size 8 shifts its weight by 8 eps; outputs are averages of the values.
    bound = 8 * torch.finfo(dtype).eps * problem.value.abs().max()
    fused, _ = problem.apply(module, need_weights=False)
    torch.testing.assert_close(fused, output, rtol=0, atol=bound.item())


@each_kind
@pytest.mark.parametrize("mask_shape", [None, (3, 4)], ids=["none", "mask"])
def test_compile_accepts_every_module(kind, mask_shape):
    problem = kind.problem(mask_shape=mask_shape)
    module = kind.make(problem)
    torch.compiler.reset()
    compiled = torch.compile(module, backend="eager", fullgraph=True)
    for options in ({}, {"need_weights": False}):
        torch.testing.assert_close(
            problem.apply(compiled, **options), problem.apply(module, **options)
        )


@each_kind
@pytest.mark.parametrize("need_weights", [True, False], ids=["weights", "output"])
def test_export_accepts_every_module_with_batches_of_any_size(kind, need_weights):
    problem = kind.problem(mask_shape=(3, 4))
    other = kind.problem((5,), mask_shape=(3, 4), seed=1)
    module, options = kind.make(problem), {"need_weights": need_weights}
    exported = torch.export.export(
        module,
        (problem.query, problem.key, problem.value),
        {"mask": problem.mask, **options},
        dynamic_shapes=(*[{0: torch.export.Dim.DYNAMIC}] * 3, None, None),
    )
    torch.testing.assert_close(
        other.apply(exported.module(), **options), other.apply(module, **options)
    )


# Errors


@each_kind
def test_module_refuses_a_floating_mask(kind):
    problem = kind.problem()
    mask = torch.zeros(3, 4)
    with pytest.raises(TypeError, match=r"mask must be boolean .*float32.*mask == 0.*mask != 0"):
        Problem(problem.query, problem.key, problem.value, mask).apply(kind.make(problem))


@pytest.mark.parametrize("shape", [(2,), (4, 4), (2, 2, 3, 4), (3, 1, 4)])
@each_kind
def test_module_refuses_a_mask_that_does_not_broadcast(kind, shape):
    problem = kind.problem()
    mask = torch.ones(shape, dtype=torch.bool)
    with pytest.raises(ValueError, match=r"mask must broadcast to the scores \(2, (1, )?3, 4\)"):
        Problem(problem.query, problem.key, problem.value, mask).apply(kind.make(problem))


def test_masked_softmax_refuses_integers():
    with pytest.raises(TypeError, match=r"scores must be floating point, got dtype torch\.int64"):
        masked_softmax(torch.tensor([[1, 2]]))


@pytest.mark.parametrize("mask", [[True, False], True], ids=["list", "bool"])
def test_masked_softmax_refuses_what_is_no_mask(mask):
    with pytest.raises(TypeError, match="mask must be a tensor, got"):
        masked_softmax(torch.zeros(1, 2), mask)


def test_attend_refuses_values_of_another_length():
    with pytest.raises(ValueError, match=r"agree on L_k, got \(3, 4\) and \(5, 2\)"):
        attend(torch.zeros(3, 4), torch.zeros(5, 2))


@pytest.mark.parametrize("shapes", [((4,), (4, 2)), ((3, 4), (4,)), ((), ())])
def test_attend_refuses_vectors(shapes):
    with pytest.raises(ValueError, match=r"scores \(..., L_q, L_k\) and value \(..., L_k, d_v\)"):
        attend(*map(torch.zeros, shapes))


@pytest.mark.parametrize("dropout_p", [-0.1, 1.0, 1.5, math.nan])
def test_attend_refuses_a_dropout_that_is_no_probability(dropout_p):
    with pytest.raises(ValueError, match=r"dropout must be in \[0, 1\), got"):
        attend(torch.zeros(1, 2), torch.zeros(2, 1), dropout_p=dropout_p)


GOOD = {"query": torch.zeros(2, 3, 5), "key": torch.zeros(2, 4, 6), "value": torch.zeros(2, 4, 7)}


@pytest.mark.parametrize("name", GOOD)
def test_check_inputs_names_the_wrong_argument(name):
    for wrong, got in ((torch.zeros(2, 3, 5).long(), "torch.int64"), ([[0.0]], "list")):
        with pytest.raises(TypeError, match=f"{name} must be a floating-point tensor, got {got}"):
            check_inputs(**{**GOOD, name: wrong})
    with pytest.raises(ValueError, match=rf"{name} must have shape \(..., length, features\), got"):
        check_inputs(**{**GOOD, name: torch.zeros(5)})


def test_check_inputs_refuses_batches_and_lengths_that_differ():
    with pytest.raises(ValueError, match=r"same batch axes, got \(1, 3, 5\), \(2, 4, 6\) and"):
        check_inputs(**{**GOOD, "query": torch.zeros(1, 3, 5)})
    with pytest.raises(ValueError, match="same length L_k, got 4 and 3"):
        check_inputs(**{**GOOD, "value": torch.zeros(2, 3, 7)})
