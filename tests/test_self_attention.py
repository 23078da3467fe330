"""Self-attention: one sequence is queries, keys and values."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from companion import SelfAttention, causal_mask, padding_mask
from companion.checks import check_attention

MASKS = {
    "none": None,
    "keys": torch.tensor([1, 1, 0, 1, 0]).bool(),
    "causal": causal_mask(5),
    "padding": padding_mask(torch.tensor([2, 5])),
    "items": torch.rand(2, 5, 5, generator=torch.Generator().manual_seed(0)) < 0.7,
}
each_mask = pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)


def make(d_model=6, dtype=torch.float64, **options):
    torch.manual_seed(0)
    attention = SelfAttention(d_model, **options).to(dtype)
    with torch.no_grad():
        for parameter in attention.parameters():
            parameter.copy_(torch.randn_like(parameter))
    return attention


def sequence(*shape, dtype=torch.float64):
    return torch.randn(shape or (2, 5, 6), generator=torch.Generator().manual_seed(1)).to(dtype)


def equal(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-12)


def test_by_hand():
    """Queries and keys are the inputs, values are 10 times the inputs; d_k = 1."""
    attention = make(1, bias=False)
    with torch.no_grad():
        for layer, factor in zip(
            (attention.query_projection, attention.key_projection, attention.value_projection),
            (1.0, 1.0, 10.0),
            strict=True,
        ):
            layer.weight.fill_(factor)
    output, weights = attention(torch.tensor([[0.0], [torch.log(torch.tensor(3.0))]]).double())
    equal(weights[0], torch.tensor([0.5, 0.5]).double())
    e = torch.tensor(3.0).double().log()
    p = (e * e).exp() / (1 + (e * e).exp())
    torch.testing.assert_close(weights[1], torch.stack([1 - p, p]), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(output[1], 10 * e * p[None], rtol=1e-6, atol=1e-6)


@each_mask
@pytest.mark.parametrize("sizes", [{}, {"d_k": 3}, {"d_v": 7}, {"d_k": 2, "d_v": 4}], ids=str)
def test_it_is_torchs_attention_between_projections(mask, sizes):
    attention, x = make(**sizes), sequence()
    q, k, v = (
        F.linear(x, layer.weight, layer.bias)
        for layer in (
            attention.query_projection,
            attention.key_projection,
            attention.value_projection,
        )
    )
    expected = F.scaled_dot_product_attention(
        q, k, v, attn_mask=None if mask is None else mask.expand(2, 5, 5)
    )
    output, weights = attention(x, mask=mask)
    equal(output, expected)
    equal(weights @ v, output)
    fused, nothing = attention(x, mask=mask, need_weights=False)
    assert nothing is None
    equal(fused, output)


@each_mask
def test_is_causal_is_a_causal_mask_as_well(mask):
    attention, x = make(), sequence()
    both = causal_mask(5) if mask is None else mask & causal_mask(5)
    for flagged, masked in zip(
        attention(x, mask=mask, is_causal=True), attention(x, mask=both), strict=True
    ):
        equal(flagged, masked)


def test_permuting_the_sequence_permutes_the_output():
    attention, x = make(), sequence()
    order = torch.tensor([3, 1, 4, 0, 2])
    output, weights = attention(x)
    permuted, permuted_weights = attention(x[:, order])
    equal(permuted, output[:, order])
    equal(permuted_weights, weights[:, order][:, :, order])


def test_causal_attention_passes_no_gradient_from_the_future():
    attention, x = make(), sequence(5, 6).requires_grad_()
    for i in range(5):
        (gradient,) = torch.autograd.grad(attention(x, is_causal=True)[0][i].sum(), x)
        assert (gradient[i + 1 :] == 0).all()
        assert (gradient[: i + 1].abs().sum(-1) > 0).all()


@pytest.mark.parametrize("causal", [False, True], ids=["all", "causal"])
@pytest.mark.parametrize("need_weights", [True, False], ids=["weights", "output"])
@pytest.mark.parametrize("options", [{}, {"d_k": 16, "d_v": 24}, {"bias": False}], ids=str)
def test_it_passes_every_check(causal, need_weights, options):
    attention = SelfAttention(64, **options)

    def attend(x, mask=None):
        output, weights = attention(x, mask=mask, is_causal=causal, need_weights=need_weights)
        return (output, weights) if need_weights else output

    report = check_attention(attend, kind="self", query_dim=64, causal=causal, fully_masked="zero")
    assert not report.failed, report


@pytest.mark.parametrize("need_weights", [True, False])
def test_compile_and_export_accept_it(need_weights):
    attention, x = make(), sequence()
    expected = attention(x, mask=causal_mask(5), need_weights=need_weights)
    torch.compiler.reset()
    compiled = torch.compile(attention, backend="eager", fullgraph=True)
    torch.testing.assert_close(
        compiled(x, mask=causal_mask(5), need_weights=need_weights), expected
    )
    options = {"mask": causal_mask(5), "need_weights": need_weights}
    exported = torch.export.export(attention, (x,), options)
    torch.testing.assert_close(exported.module()(x, **options), expected)


@pytest.mark.parametrize("need_weights", [True, False])
def test_gradients(need_weights):
    attention, x = make(d_k=3), sequence(1, 4, 6).requires_grad_()

    def function(x, *_):
        output, weights = attention(x, is_causal=True, need_weights=need_weights)
        return (output, weights) if need_weights else output

    assert torch.autograd.gradcheck(function, (x, *attention.parameters()), fast_mode=True)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_it_keeps_the_dtype(dtype):
    output, weights = SelfAttention(6).to(dtype)(sequence(dtype=dtype), is_causal=True)
    assert output.dtype == weights.dtype == dtype
    assert output.isfinite().all()


@pytest.mark.parametrize("name", ["d_model", "d_k", "d_v"])
def test_sizes_must_be_positive_integers(name):
    with pytest.raises(ValueError, match=f"{name} must be at least 1, got 0"):
        SelfAttention(**{"d_model": 4, name: 0})
    with pytest.raises(TypeError, match=f"{name} must be an integer, got float"):
        SelfAttention(**{"d_model": 4, name: 2.0})


def test_wrong_inputs_are_refused():
    attention = make()
    with pytest.raises(ValueError, match="x must have 6 features on its last axis, got 5"):
        attention(sequence(2, 5, 5))
    with pytest.raises(TypeError, match=r"must be a floating-point tensor, got torch\.int64"):
        attention(torch.zeros(2, 5, 6).long())
    with pytest.raises(ValueError, match=r"mask must broadcast to the scores \(2, 5, 5\)"):
        attention(sequence(), mask=torch.ones(4).bool())
    with pytest.raises(TypeError, match="mask must be boolean"):
        attention(sequence(), mask=torch.zeros(5, 5))


def test_without_biases_there_are_three_parameters():
    names = {name for name, _ in SelfAttention(4, bias=False).named_parameters()}
    assert names == {f"{part}_projection.weight" for part in ("query", "key", "value")}
    assert isinstance(SelfAttention(4).value_projection, nn.Linear)
