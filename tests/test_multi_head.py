"""Multi-head attention: the split, the sum over heads, and torch's module."""

import itertools

import pytest
import torch
from torch import nn

from companion import (
    MultiHeadAttention,
    ScaledDotProductAttention,
    causal_mask,
    merge_heads,
    padding_mask,
    split_heads,
    to_torch_attn_mask,
    without_heads,
)
from companion.checks import check_attention
from tests.properties import make_problem

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}
MASKS = {
    "none": None,
    "keys": torch.tensor([1, 1, 0, 1, 0]).bool(),
    "causal": causal_mask(3, 5),
    "padding": padding_mask(torch.tensor([2, 5])),
    "items": torch.rand(2, 3, 5, generator=torch.Generator().manual_seed(0)) < 0.7,
    "heads": torch.rand(2, 4, 3, 5, generator=torch.Generator().manual_seed(1)) < 0.7,
}
each_mask = pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)


def make(d_model=12, num_heads=4, dtype=torch.float64, **options):
    torch.manual_seed(0)
    attention = MultiHeadAttention(d_model, num_heads, **options).to(dtype)
    with torch.no_grad():
        for parameter in attention.parameters():  # also the biases, which start at 0
            parameter.copy_(torch.randn_like(parameter) / 3)
    return attention


def problem(d_model=12, key_dim=12, value_dim=12, dtype=torch.float64):
    return make_problem((2,), 3, 5, d_model, key_dim, value_dim, dtype=dtype).tensors


def equal(actual, expected, dtype=torch.float64):
    torch.testing.assert_close(actual, expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


# Splitting and merging


def test_a_head_gets_the_same_features_at_every_position():
    x = torch.arange(24).view(1, 4, 6)
    heads = split_heads(x, 3)
    for head, position in itertools.product(range(3), range(4)):
        assert heads[0, head, position].tolist() == x[0, position, 2 * head : 2 * head + 2].tolist()


@pytest.mark.parametrize("shape", [(5, 12), (2, 5, 12), (2, 3, 5, 12), (2, 0, 12)])
def test_merging_undoes_splitting(shape):
    x = torch.randn(shape)
    assert torch.equal(merge_heads(split_heads(x, 4)), x)


# What it computes


def one_head_at_a_time(attention, query, key, value, mask):
    """The formula: cut the matrices by head, attend, and add up what each contributes."""
    width = attention.query_projection.out_features // attention.num_heads
    output = torch.zeros(*query.shape[:-1], attention.output_projection.out_features).to(query)
    for head in range(attention.num_heads):
        rows = slice(head * width, (head + 1) * width)
        q, k, v = (
            x @ layer.weight[rows].T + layer.bias[rows]
            for x, layer in (
                (query, attention.query_projection),
                (key, attention.key_projection),
                (value, attention.value_projection),
            )
        )
        of_head = mask[:, head] if mask is not None and mask.ndim == 4 else mask
        context, _ = ScaledDotProductAttention()(q, k, v, mask=of_head)
        output += context @ attention.output_projection.weight[:, rows].T
    return output + attention.output_projection.bias


@each_mask
def test_it_is_a_sum_over_heads(mask):
    attention, inputs = make(), problem()
    equal(attention(*inputs, mask=mask)[0], one_head_at_a_time(attention, *inputs, mask))


def test_one_head_is_attention_between_projections():
    attention, (query, key, value) = make(num_heads=1), problem()
    output, weights = attention(query, key, value)
    expected, expected_weights = ScaledDotProductAttention()(
        attention.query_projection(query),
        attention.key_projection(key),
        attention.value_projection(value),
    )
    equal(output, attention.output_projection(expected))
    equal(weights[:, 0], expected_weights)


@each_mask
@pytest.mark.parametrize("is_causal", [False, True])
def test_both_paths_give_the_same_output(mask, is_causal):
    attention, inputs = make(), problem()
    output, weights = attention(*inputs, mask=mask, is_causal=is_causal)
    fused, nothing = attention(*inputs, mask=mask, is_causal=is_causal, need_weights=False)
    assert weights.shape == (2, 4, 3, 5)
    assert nothing is None
    equal(fused, output)


@each_mask
def test_is_causal_is_a_causal_mask_as_well(mask):
    attention, inputs = make(), problem()
    both = causal_mask(3, 5) if mask is None else mask & causal_mask(3, 5)
    for flagged, masked in zip(
        attention(*inputs, mask=mask, is_causal=True), attention(*inputs, mask=both), strict=True
    ):
        equal(flagged, masked)


@pytest.mark.parametrize("need_weights", [True, False])
def test_a_query_that_sees_nothing_gets_the_bias(need_weights):
    attention, inputs = make(), problem()
    mask = torch.ones(2, 3, 5).bool()
    mask[1, 2] = False
    output, weights = attention(*inputs, mask=mask, need_weights=need_weights)
    equal(output[1, 2], attention.output_projection.bias)
    assert weights is None or (weights[1, :, 2] == 0).all()
    output.sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in attention.parameters())


def test_a_sequence_without_a_batch_gives_the_same():
    attention, inputs = make(), problem()
    output, weights = attention(*inputs, is_causal=True)
    for item in range(2):
        alone = [tensor[item] for tensor in inputs]
        output_alone, weights_alone = attention(*alone, mask=causal_mask(3, 5))
        equal(output_alone, output[item])
        equal(weights_alone, weights[item])


def test_keys_and_values_can_be_kept_from_step_to_step():
    attention, x = make(), problem()[1]
    whole, _ = attention(x, x, x, is_causal=True)
    keys, values = attention.project(x[:, :2], x[:, :2])
    for step in range(2, 5):
        new = x[:, step : step + 1]
        new_keys, new_values = attention.project(new, new)
        keys, values = torch.cat([keys, new_keys], -2), torch.cat([values, new_values], -2)
        output, _ = attention.attend(new, keys, values, is_causal=True)
        equal(output, whole[:, step : step + 1])


def test_dropout_drops_weights_in_training_only():
    attention, inputs = make(dropout=0.5), problem()
    output, weights = attention(*inputs)
    assert not torch.equal(output, attention(*inputs)[0])
    equal(weights.sum(-1), torch.ones(2, 4, 3).double())
    attention.eval()
    assert torch.equal(attention(*inputs)[0], attention(*inputs)[0])


# torch's module


def torch_module(dtype=torch.float64, **options):
    torch.manual_seed(1)
    module = nn.MultiheadAttention(12, 4, batch_first=True, **options).to(dtype)
    for name, parameter in module.named_parameters():
        if "bias" in name:
            nn.init.normal_(parameter)
    return module


@each_mask
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("options", [{}, {"bias": False}, {"kdim": 7, "vdim": 9}], ids=str)
def test_it_computes_what_torchs_module_computes(mask, dtype, options):
    theirs = torch_module(dtype, **options)
    inputs = problem(12, options.get("kdim", 12), options.get("vdim", 12), dtype)
    ours = MultiHeadAttention.from_torch(theirs)
    attn_mask = None
    if mask is not None:
        attn_mask = to_torch_attn_mask(mask, batch_size=2, num_heads=4, q_len=3)
    for need_weights in (True, False):
        expected, their_weights = theirs(
            *inputs,
            attn_mask=attn_mask,
            need_weights=need_weights,
            average_attn_weights=False,
        )
        output, weights = ours(*inputs, mask=mask, need_weights=need_weights)
        seen = ~expected.isnan()  # torch gives NaN where a query sees nothing
        equal(output[seen], expected[seen], dtype)
        if need_weights:
            equal(weights, their_weights.nan_to_num(0.0), dtype)


@pytest.mark.parametrize("options", [{}, {"bias": False}, {"kdim": 7, "vdim": 9}], ids=str)
def test_weights_survive_the_way_there_and_back(options):
    theirs = torch_module(torch.float32, dropout=0.3, **options).eval()
    back = MultiHeadAttention.from_torch(theirs).to_torch()
    assert back.state_dict().keys() == theirs.state_dict().keys()
    for name, tensor in theirs.state_dict().items():
        assert torch.equal(back.state_dict()[name], tensor), name
    assert (back.dropout, back.training, back.batch_first) == (0.3, False, True)


def test_from_torch_copies_and_does_not_share():
    theirs = torch_module()
    ours = MultiHeadAttention.from_torch(theirs)
    before = ours.key_projection.weight.clone()
    nn.init.zeros_(theirs.in_proj_weight)
    assert torch.equal(ours.key_projection.weight, before)


def test_from_torch_accepts_sequence_first():
    theirs = nn.MultiheadAttention(12, 4).double()
    query, key, value = problem()
    expected, _ = theirs(*(t.transpose(0, 1) for t in (query, key, value)))
    equal(MultiHeadAttention.from_torch(theirs)(query, key, value)[0], expected.transpose(0, 1))


@pytest.mark.parametrize("options", [{"add_bias_kv": True}, {"add_zero_attn": True}], ids=str)
def test_from_torch_refuses_what_we_do_not_have(options):
    with pytest.raises(ValueError, match=r"no bias_k, no bias_v and add_zero_attn=False"):
        MultiHeadAttention.from_torch(nn.MultiheadAttention(12, 4, **options))


def test_from_torch_refuses_other_modules():
    with pytest.raises(TypeError, match=r"must be a torch.nn.MultiheadAttention, got Linear"):
        MultiHeadAttention.from_torch(nn.Linear(2, 2))


# The battery


@pytest.mark.parametrize("need_weights", [True, False], ids=["weights", "output"])
@pytest.mark.parametrize("causal", [False, True], ids=["all", "causal"])
@pytest.mark.parametrize(
    "options", [{}, {"key_dim": 24, "value_dim": 40}, {"bias": False}, {"dropout": 0.3}], ids=str
)
def test_it_passes_every_check(need_weights, causal, options):
    attention = MultiHeadAttention(64, 4, **options)

    def attend(query, key, value, mask=None):
        output, weights = attention(
            query, key, value, mask=mask, is_causal=causal, need_weights=need_weights
        )
        return (output, weights) if need_weights else output

    report = check_attention(
        attend, query_dim=64, num_heads=4, causal=causal, fully_masked="zero",
        key_dim=options.get("key_dim", 64), value_dim=options.get("value_dim", 64),
    )  # fmt: skip
    assert not report.failed, report


def test_the_battery_takes_the_module_as_it_is():
    report = check_attention(MultiHeadAttention(64, 4))
    assert not report.failed, report
    assert len(report.skipped) < 5, report.skipped


# Heads that are switched off


def test_without_some_heads_their_contributions_are_missing():
    attention, inputs = make(), problem()
    whole, weights = attention(*inputs)
    values = split_heads(attention.value_projection(inputs[2]), 4)
    of_heads = attention.output_projection.weight.view(12, 4, 3)  # (d_model, H, d_head)
    contributions = torch.einsum("bhqk,bhkd,mhd->bhqm", weights, values, of_heads)
    with without_heads(attention, [1, 3]):
        equal(attention(*inputs)[0], whole - contributions[:, [1, 3]].sum(1))
    equal(attention(*inputs)[0], whole)


def test_heads_come_back_after_an_error():
    attention = make()
    before = attention.output_projection.weight.clone()
    with pytest.raises(RuntimeError, match="inside"), without_heads(attention, [0]):
        raise RuntimeError("inside")
    assert torch.equal(attention.output_projection.weight, before)


@pytest.mark.parametrize("heads", [[4], [-1], [0, 7]])
def test_a_head_that_does_not_exist_is_refused(heads):
    with pytest.raises(ValueError, match="heads must be from 0 to 3"), without_heads(make(), heads):
        pass


# Errors


@pytest.mark.parametrize("num_heads", [5, 24])
def test_heads_must_divide_the_features(num_heads):
    message = f"num_heads must divide d_model = 12, got {num_heads}; possible are 1, 2, 3, 4, 6, 12"
    with pytest.raises(ValueError, match=message):
        MultiHeadAttention(12, num_heads)
    with pytest.raises(ValueError, match=message):
        split_heads(torch.zeros(2, 12), num_heads)


@pytest.mark.parametrize("name", ["d_model", "num_heads", "key_dim", "value_dim"])
def test_sizes_must_be_positive_integers(name):
    sizes = {"d_model": 12, "num_heads": 4}
    with pytest.raises(ValueError, match=f"{name} must be at least 1, got 0"):
        MultiHeadAttention(**{**sizes, name: 0})
    with pytest.raises(TypeError, match=f"{name} must be an integer, got float"):
        MultiHeadAttention(**{**sizes, name: 2.0})


@pytest.mark.parametrize("dropout", [-0.1, 1.0])
def test_dropout_must_be_a_probability(dropout):
    with pytest.raises(ValueError, match=r"dropout must be in \[0, 1\)"):
        MultiHeadAttention(12, 4, dropout=dropout)


@pytest.mark.parametrize(("index", "name"), [(0, "query"), (1, "key"), (2, "value")])
def test_features_must_fit(index, name):
    inputs = list(problem())
    inputs[index] = inputs[index][..., :11]
    with pytest.raises(ValueError, match=f"{name} must have 12 features on its last axis, got 11"):
        make()(*inputs)


def test_batches_and_lengths_must_agree():
    query, key, value = problem()
    with pytest.raises(ValueError, match="same batch axes"):
        make()(query[:1], key, value)
    with pytest.raises(ValueError, match="same length L_k, got 5 and 4"):
        make()(query, key, value[:, :4])


@pytest.mark.parametrize("shape", [(3,), (4, 5), (3, 1, 5), (2, 3, 3, 5), (1, 2, 4, 3, 5)])
def test_a_mask_must_broadcast(shape):
    scores = r"\(2, 4, 3, 5\)" if len(shape) > 3 else r"\(2, 3, 5\)"
    with pytest.raises(ValueError, match=f"mask must broadcast to the scores {scores}"):
        make()(*problem(), mask=torch.ones(shape).bool())


def test_a_floating_mask_is_refused():
    with pytest.raises(TypeError, match="mask must be boolean"):
        make()(*problem(), mask=torch.zeros(3, 5))


def test_printing_shows_the_heads():
    assert "num_heads=4" in repr(make())


@pytest.mark.parametrize("heads", [[0.5], [True], [torch.tensor(1)]])
def test_heads_are_switched_off_by_number(heads):
    with (
        pytest.raises(TypeError, match="heads must be integers"),
        without_heads(MultiHeadAttention(4, 2), heads),
    ):
        pass


def test_keys_that_were_not_projected_are_refused():
    attention, x = MultiHeadAttention(8, 2), torch.randn(2, 5, 8)
    keys, values = attention.project(x, x)
    for wrong in ((x, x), (keys[..., :2], values), (keys, values[..., :2])):
        with pytest.raises(ValueError, match="keys and values as project makes them"):
            attention.attend(x, *wrong)


@pytest.mark.parametrize("length", [5, 1100])
@pytest.mark.parametrize("need_weights", [True, False])
def test_one_number_may_be_a_mask(length, need_weights):
    attention, x = MultiHeadAttention(8, 2), torch.randn(1, length, 8)
    expected, _ = attention(x, x, x)
    output, _ = attention(x, x, x, mask=torch.tensor(True), need_weights=need_weights)
    torch.testing.assert_close(output, expected)
