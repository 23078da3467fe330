"""Attention in blocks: the same numbers and gradients, by a rule that can be switched off."""

import contextlib
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import scaled_dot_product_attention

from companion import AdditiveAttention, ScaledDotProductAttention, attend, blocked, causal_mask
from companion.attention import additive_mask, attend_in_place, fused_attention, is_plain
from companion.blocked import additive_score_in_blocks, attend_in_blocks, use_blocks
from companion.cost import kept_bytes, largest_tensor_bytes
from tests.properties import KINDS, PROPERTIES, problems

(SCALED,) = (kind for kind in KINDS if kind.name == "scaled_dot_product")
(ADDITIVE,) = (kind for kind in KINDS if kind.name == "additive")
BATCHES = [(), (2,), (2, 3), (2, 1, 3)]


@contextlib.contextmanager
def blocks_of(elements, *, skip_future_from=1024):
    """Everything in blocks, and these of few elements."""
    small = {
        "SCORES_ABOVE": 0,
        "_SMALLEST_ITEM": 0,
        "_BLOCK": elements,
        "_TANH_BLOCK": elements,
        "_SKIP_FUTURE_FROM": skip_future_from,
        "_CAUSAL_ROWS": 2,
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in small.items():
            patch.setattr(blocked, name, value)
        yield


@pytest.fixture(autouse=True)
def one_thread():
    assert torch.get_num_threads() == 1  # tests/conftest.py; else nothing here is in blocks


def inputs(batch=(2, 3), l_q=5, l_k=7, d=4, d_v=2, dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    shapes = ((*batch, l_q, d), (*batch, l_k, d), (*batch, l_k, d_v))
    return [
        torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()
        for shape in shapes
    ]


def masks(batch, l_q=5, l_k=7):
    """Masks of every shape. Each hides everything from some query."""
    shapes = [(l_k,), (l_q, l_k), (1, l_k), (*batch, l_q, l_k), (*batch, 1, l_k), (*batch, l_q, 1)]
    if len(batch) > 1:
        shapes += [(*batch[:-1], 1, 1, l_k), (batch[-1], l_q, l_k)]
    for shape in shapes:
        mask = torch.rand(shape, generator=torch.Generator().manual_seed(1)) < 0.5
        mask.view(-1, shape[-1])[-1] = False
        yield mask


def whole(query, key, value, mask, scale, is_causal):
    if is_causal:
        causal = causal_mask(query.shape[-2], key.shape[-2])
        mask = causal if mask is None else mask & causal
    return attend(scale * query @ key.mT, value, mask)


# Scaled dot products in blocks


@pytest.mark.parametrize("elements", [1, 20, 80, 10**6])
@pytest.mark.parametrize("batch", BATCHES, ids=str)
@pytest.mark.parametrize("is_causal", [False, True], ids=["all", "causal"])
def test_blocks_give_the_same_numbers_and_gradients(batch, is_causal, elements):
    tensors = inputs(batch)
    for mask in [None, *masks(batch)]:
        for skip_future_from in (1, 1024):
            with blocks_of(elements, skip_future_from=skip_future_from):
                results = attend_in_blocks(*tensors, mask, scale=0.7, is_causal=is_causal)
                above = [torch.randn_like(result) for result in results]
                gradients = torch.autograd.grad(results, tensors, above)
            expected = whole(*tensors, mask, 0.7, is_causal)
            torch.testing.assert_close(results, expected)
            torch.testing.assert_close(gradients, torch.autograd.grad(expected, tensors, above))


@pytest.mark.parametrize("kept", [0, 1], ids=["output", "weights"])
def test_one_of_the_two_results_may_have_a_gradient(kept):
    tensors = inputs()
    with blocks_of(20):
        result = attend_in_blocks(*tensors, scale=0.7)[kept]
        expected = whole(*tensors, None, 0.7, False)[kept]
        for actual, wanted in zip(
            torch.autograd.grad(result.square().sum(), tensors, materialize_grads=True),
            torch.autograd.grad(
                expected.square().sum(), tensors, allow_unused=True, materialize_grads=True
            ),
            strict=True,
        ):
            torch.testing.assert_close(actual, wanted)


@pytest.mark.parametrize("is_causal", [False, True], ids=["mask", "causal"])
def test_gradients_in_blocks_and_theirs(is_causal):
    mask = None if is_causal else torch.tensor([[1, 0, 1, 0], [0, 1, 0, 0], [0, 0, 0, 0]]).bool()

    def function(*tensors):
        return attend_in_blocks(*tensors, mask, scale=0.7, is_causal=is_causal)

    with blocks_of(8, skip_future_from=1):
        tensors = inputs((2,), l_q=3, l_k=4, d=2)
        assert torch.autograd.gradcheck(function, tensors)
        assert torch.autograd.gradgradcheck(function, tensors)


def test_second_gradients_where_one_input_is_fixed():
    query, key, value = inputs((2,))
    with blocks_of(8):
        output, _ = attend_in_blocks(query.detach(), key, value, scale=0.7)
        (gradient,) = torch.autograd.grad(output.square().sum(), key, create_graph=True)
    expected, _ = whole(query.detach(), key, value, None, 0.7, False)
    (wanted,) = torch.autograd.grad(expected.square().sum(), key, create_graph=True)
    torch.testing.assert_close(gradient, wanted)
    torch.testing.assert_close(
        torch.autograd.grad(gradient.square().sum(), value),
        torch.autograd.grad(wanted.square().sum(), value),
    )


@pytest.mark.parametrize("kind", [SCALED, ADDITIVE], ids=lambda kind: kind.name)
@pytest.mark.parametrize("elements", [1, 12, 10**6])
@pytest.mark.parametrize("holds", PROPERTIES, ids=lambda holds: holds.__name__)
@settings(max_examples=8)
@given(data=st.data())
def test_property_in_blocks(holds, elements, kind, data):
    with blocks_of(elements, skip_future_from=1):
        holds(kind, data.draw(problems(kind)))


def test_in_blocks_the_strides_of_the_inputs_do_not_matter():
    tensors = inputs()
    strided = [t.detach().transpose(-2, -3).contiguous().transpose(-2, -3) for t in tensors]
    with blocks_of(20):
        torch.testing.assert_close(
            attend_in_blocks(*strided, scale=0.7), attend_in_blocks(*tensors, scale=0.7)
        )


def test_of_the_size_of_the_scores_only_the_weights_are_kept():
    attention, tensors = (
        ScaledDotProductAttention(),
        inputs((1, 2), 1024, 1024, 4, 4, torch.float32),
    )
    scores = 2 * 1024 * 1024 * 4
    for options in ({}, {"mask": torch.ones(1024).bool()}, {"is_causal": True}):
        assert kept_bytes(lambda options=options: attention(*tensors, **options)) < 1.05 * scores
    with torch.no_grad(), blocks_of(2**12):
        assert largest_tensor_bytes(lambda: attention(*tensors)) == scores
    loss = attention(*tensors)[0].sum()
    gradients = largest_tensor_bytes(lambda: torch.autograd.grad(loss, tensors))
    assert gradients <= 4 * blocked._BLOCK < scores


# The rule


def choice(**options):
    attended = inputs(
        **{"batch": (1, 2), "l_q": 513, "l_k": 513, "dtype": torch.float32, **options}
    )
    return use_blocks(*attended, dropout_p=0.0)


def test_the_rule():
    assert choice()
    assert choice(dtype=torch.float64)
    assert choice(batch=(2,))
    assert not choice(l_q=512, l_k=512)  # 2^19 scores: not above
    assert not choice(dtype=torch.bfloat16)
    assert not choice(batch=(1000, 2), l_q=20, l_k=20)  # many tiny items
    assert not use_blocks(*inputs((1, 2), 600, 600), dropout_p=0.1)
    mixed = inputs((1, 2), 600, 600)
    assert not use_blocks(mixed[0].float(), *mixed[1:], dropout_p=0.0)


def test_the_rule_wants_one_thread():
    torch.set_num_threads(2)
    try:
        assert not choice()
    finally:
        torch.set_num_threads(1)
    assert choice()


def test_blocks_can_be_switched_off(monkeypatch):
    monkeypatch.setattr(blocked, "SCORES_ABOVE", math.inf)
    assert not choice()


def test_the_module_follows_the_rule():
    tensors = inputs((1, 2), 600, 600)
    for options, in_blocks in (({}, True), ({"need_weights": False}, False)):
        output, _ = ScaledDotProductAttention()(*tensors, **options)
        name = type(output.grad_fn).__name__
        assert name.startswith("_AttendInBlocks") == in_blocks
    output, _ = ScaledDotProductAttention(dropout=0.1)(*tensors)
    assert not type(output.grad_fn).__name__.startswith("_AttendInBlocks")


def test_plain_tensors_are_ordinary_and_computed_at_once():
    x, seen = torch.ones(2), []
    look = lambda t: seen.append(is_plain(t)) or t  # noqa: E731
    assert is_plain(x, torch.nn.Parameter(x))
    assert not is_plain(x, x.to("meta"))
    torch.func.vmap(look)(x)
    torch.func.grad(lambda t: look(t).sum())(x)
    with torch.autocast("cpu", torch.bfloat16):
        look(x)
    with torch.autograd.forward_ad.dual_level():
        look(x)
    assert seen == [False] * 4
    assert is_plain(x)


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")  # torch's own, in jvp
@pytest.mark.parametrize("need_weights", [True, False], ids=["weights", "output"])
@pytest.mark.parametrize("kind", [SCALED, ADDITIVE], ids=lambda kind: kind.name)
def test_blocks_do_not_stand_in_the_way_of_transforms(kind, need_weights):
    problem = kind.problem(mask_shape=(3, 4), dtype=torch.float32)
    module = kind.make(problem)

    def function(query, key, value):
        return module(query, key, value, mask=problem.mask, need_weights=need_weights)[0]

    tensors = (problem.query, problem.key, problem.value)
    with blocks_of(8):
        torch.testing.assert_close(torch.func.vmap(function)(*tensors), function(*tensors))
        if need_weights or kind is ADDITIVE:  # torch's fused kernel has no forward derivative
            tangents = tuple(map(torch.ones_like, tensors))
            _, forwards = torch.func.jvp(function, tensors, tangents)
            _, backwards = torch.autograd.functional.jvp(function, tensors, tangents)
            torch.testing.assert_close(forwards, backwards)
        torch.compiler.reset()
        compiled = torch.compile(function, backend="eager", fullgraph=True)
        torch.testing.assert_close(compiled(*tensors), function(*tensors))
        with torch.autocast("cpu", torch.bfloat16):
            assert function(*tensors).isfinite().all()


# What comes before and after: masks that are added, weights that overwrite scores


def test_a_mask_becomes_0_and_minus_infinity_in_its_own_shape():
    mask = torch.tensor([[[True, False]], [[True, True]]])
    bias, blind = additive_mask(mask, torch.bfloat16)
    assert torch.equal(bias, torch.tensor([[[0, -math.inf]], [[0, 0]]], dtype=torch.bfloat16))
    assert blind is None
    bias, blind = additive_mask(~mask, torch.float32)
    assert torch.equal(bias, torch.tensor([[[-math.inf, 0.0]], [[0.0, 0.0]]]))
    assert torch.equal(blind, torch.tensor([[[False]], [[True]]]))
    assert additive_mask(torch.ones(3).bool(), torch.float32)[0].shape == (1, 3)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("requires_grad", [False, True], ids=["inference", "training"])
def test_attending_in_place_gives_the_same(dtype, requires_grad):
    query, key, value = inputs(dtype=dtype)
    for mask in [None, *masks((2, 3))]:
        with torch.set_grad_enabled(requires_grad):
            scores = query @ key.mT
            expected = attend(scores, value, mask)
            actual = attend_in_place(scores.clone(), value, mask)
        torch.testing.assert_close(actual, expected)


def test_without_gradients_the_scores_become_the_weights():
    scores = torch.zeros(2, 3)
    _, weights = attend_in_place(scores, torch.ones(3, 1), torch.tensor([True, True, False]))
    assert weights.data_ptr() == scores.data_ptr()


# Low precision: the path is chosen by measurement


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("length", [384, 385])
@pytest.mark.parametrize("training", [True, False], ids=["training", "inference"])
def test_short_training_in_16_bits_uses_products(monkeypatch, dtype, length, training):
    calls = []
    monkeypatch.setattr(
        "companion.attention.F.scaled_dot_product_attention",
        lambda *args, **options: calls.append(1) or scaled_dot_product_attention(*args, **options),
    )
    query, key, value = inputs((), length, length, dtype=dtype)
    with torch.set_grad_enabled(training):
        fused_attention(query, key, value, scale=0.5)
    assert bool(calls) != (training and length == 384 and dtype != torch.float32)


@pytest.mark.parametrize("masked", [False, True], ids=["none", "mask"])
@pytest.mark.parametrize("is_causal", [False, True], ids=["all", "causal"])
def test_products_give_the_fused_output(masked, is_causal):
    query, key, value = inputs(dtype=torch.bfloat16)
    mask = torch.rand(5, 7, generator=torch.Generator().manual_seed(0)) < 0.6 if masked else None
    trained = fused_attention(query, key, value, mask, scale=0.5, is_causal=is_causal)
    with torch.no_grad():
        fused = fused_attention(query, key, value, mask, scale=0.5, is_causal=is_causal)
    # Rounding a score of size 4 to bfloat16 shifts its weight by 4 eps.
    torch.testing.assert_close(trained, fused, rtol=0, atol=4 * 2**-7)


# Additive scores in blocks


@pytest.mark.parametrize("elements", [1, 60, 200, 10**6])
@pytest.mark.parametrize("batch", BATCHES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_additive_blocks_give_the_same_numbers_and_gradients(batch, elements, dtype):
    query, key, _ = inputs(batch, dtype=dtype)
    v = torch.tensor([1.0, -2.0, 0.5, 3.0], dtype=dtype, requires_grad=True)
    expected = (query.unsqueeze(-2) + key.unsqueeze(-3)).tanh() @ v
    with blocks_of(elements):
        scores = additive_score_in_blocks(query, key, v)
        above = torch.randn_like(scores)
        gradients = torch.autograd.grad(scores, (query, key, v), above)
    wanted = torch.autograd.grad(expected, (query, key, v), above)
    # Sums of up to 210 bfloat16 terms, rounded in another order, differ by more than one rounding.
    tolerance = {"rtol": 0.05, "atol": 0.2} if dtype == torch.bfloat16 else {}
    torch.testing.assert_close(scores, expected, **tolerance)
    torch.testing.assert_close(gradients, wanted, **tolerance)


def test_gradients_of_additive_blocks_and_theirs():
    query, key, _ = inputs((2,), l_q=3, l_k=4, d=2)
    v = torch.tensor([1.0, -2.0], dtype=torch.float64, requires_grad=True)
    with blocks_of(8):
        assert torch.autograd.gradcheck(additive_score_in_blocks, (query, key, v))
        assert torch.autograd.gradgradcheck(additive_score_in_blocks, (query, key, v))


def test_additive_scores_need_no_tensor_of_queries_times_keys_times_units():
    attention = AdditiveAttention(4, 4, 256)
    query, key = torch.randn(2, 512, 4), torch.randn(2, 64, 4)
    projected, pairs = 2 * 512 * 256 * 4, 2 * 512 * 64 * 256 * 4  # bytes

    def attended(need_weights=False):
        return attention(query, key, key, need_weights=need_weights)[0]

    assert largest_tensor_bytes(attended) <= projected
    loss = attended().sum()
    assert largest_tensor_bytes(lambda: torch.autograd.grad(loss, attention.v)) <= projected
    assert kept_bytes(attended) < 3 * projected
    assert kept_bytes(lambda: attended(need_weights=True)) > pairs
