"""One attention behind the interfaces that people have; and what the checks leave untouched."""

import time
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from companion import MultiHeadAttention, SelfAttention, causal_mask
from companion.checks import check_attention, hugging_face, sequence_first, torch_attention
from companion.checks.adapters import modules_behind, read_convention, shape_mask
from tests.checks.attentions import InvertsMask, MasksQueries, Multi, MultiSelf, Single

single, multi = Single(), Multi()


def ignoring(query, key, value, mask=None):
    return single(query, key, value, None if mask is None else ~mask)


def additive(query, key, value, attn_mask=None):
    return F.scaled_dot_product_attention(query, key, value, attn_mask=attn_mask)


def with_lengths(query, key, value, valid_lens=None):
    if valid_lens is None:
        return single(query, key, value)
    mask = torch.arange(key.shape[1]) < valid_lens[:, None, None]
    return single(query, key, value, mask.expand(-1, query.shape[1], -1))


def shared(query, key, value, mask=None):
    assert mask is None or mask.ndim == 2
    return single(query, key, value, None if mask is None else mask.expand(len(query), -1, -1))


def padding(query, key, value, *, mask=None):
    assert mask is None or mask.shape == key.shape[:2]
    return single(query, key, value, None if mask is None else mask[:, None])


def four_axes(query, key, value, mask=None):
    assert mask is None or mask.ndim == 4
    return multi(query, key, value, None if mask is None else mask[:, 0])


def folded(query, key, value, mask=None):
    assert mask is None or len(mask) == 4 * len(query)
    return multi(query, key, value, None if mask is None else mask[::4])


def turned(query, key, value, mask=None):
    output, weights = single(*(x.transpose(0, 1) for x in (query, key, value)), mask)
    return output.transpose(0, 1), weights


def without_mask(query, key, value):
    return single(query, key, value)


def as_dict(query, key, value, mask=None):
    output, weights = single(query, key, value, mask)
    return {"output": output, "weights": weights}


class HuggingFace(nn.Module):
    """A self-attention called as in transformers: an additive mask, a tuple in return."""

    def __init__(self):
        super().__init__()
        self.inner = MultiSelf()

    def forward(self, hidden_states, attention_mask=None, output_attentions=False):
        mask = None
        if attention_mask is not None:
            assert attention_mask.shape[1] == 1
            assert attention_mask.isfinite().all()
            mask = attention_mask[:, 0] == 0
        output, weights = self.inner(hidden_states, mask)
        return (output, weights) if output_attentions else (output,)


HEADS = {"num_heads": 4}
INTERFACES = {
    "ignore": (ignoring, {"mask_polarity": "ignore"}, "mask 'ignore' (B L_q L_k)"),
    "additive": (additive, {"mask_polarity": "additive"}, "mask 'additive' (B L_q L_k)"),
    "lengths": (with_lengths, {"mask_polarity": "lengths"}, "mask 'lengths'"),
    "2 axes": (shared, {}, "(L_q L_k)"),
    "padding": (padding, {"mask_shape": "B L_k"}, "(B L_k)"),
    "4 axes": (four_axes, HEADS, "(B 1 L_q L_k)"),
    "4 axes, each head": (four_axes, {**HEADS, "mask_shape": "B H L_q L_k"}, "(B H L_q L_k)"),
    "folded heads": (folded, HEADS, "(B*H L_q L_k)"),
    "sequence first": (sequence_first(turned), {}, "(B L_q L_k)"),
    "no mask": (without_mask, {}, "no mask"),
    "dict": (as_dict, {}, "mask 'keep'"),
    "partial": (partial(F.scaled_dot_product_attention, dropout_p=0.0), {}, "(B L_q L_k)"),
    "Hugging Face": (hugging_face(HuggingFace()), {**HEADS, "kind": "self"}, "(B L_q L_k)"),
}  # fmt: skip


@pytest.mark.parametrize("name", INTERFACES)
def test_each_interface_is_understood(name):
    fn, options, described = INTERFACES[name]
    report = check_attention(fn, **options)
    assert not report.failed, report
    assert described in report.interface
    masked = name != "no mask"
    assert ("mask_polarity" in report.passed) == masked
    assert ("hidden_keys_have_no_influence" in report.passed) == masked


@pytest.mark.parametrize("mask_shape", ["B L_k", "B 1 L_q L_k", "L_q L_k"])
def test_a_wrong_polarity_is_seen_through_every_interface(mask_shape):
    wrong = InvertsMask()

    def attention(query, key, value, mask=None):
        if mask is not None:
            mask = mask[:, None] if mask_shape == "B L_k" else mask
            mask = mask.reshape(-1, *mask.shape[-2:]).expand(len(query), query.shape[1], -1)
        return wrong(query, key, value, mask)

    report = check_attention(attention, mask_shape=mask_shape, fully_masked="any")
    assert report.failed == ("mask_polarity",), report


def test_what_cannot_be_seen_is_skipped_with_its_reason():
    report = check_attention(without_mask)
    assert report["mask_polarity"].seen == "it takes no mask"
    assert report["head_split"].seen == "there is one head (num_heads=1)"
    assert report["no_look_into_the_future"].seen.startswith("causal=False")
    quiet = check_attention(additive, mask_polarity="additive")
    assert quiet["weights_are_not_negative"].seen == "it does not return its weights"
    averaged = check_attention(_averaged, num_heads=4)
    assert averaged["output_is_weighted_values"].seen.startswith("it returns the average")
    assert not set(averaged.failed) | set(quiet.failed) | set(report.failed)


def _averaged(query, key, value, mask=None):
    output, weights = multi(query, key, value, mask)
    return output, weights.mean(1)


def test_what_rests_on_a_failure_is_skipped():
    report = check_attention(MasksQueries())
    assert report.failed == ("mask_axis",)
    assert report["hidden_weights_are_0"].seen == "says nothing until mask_axis passes"


def test_torchs_fully_masked_rows_are_a_finding():
    """NaN with weights, the bias without (torch's own inconsistency, pytorch issue 41508)."""
    module = nn.MultiheadAttention(8, 2, batch_first=True)
    report = check_attention(module)
    assert report.failed == ("fully_masked_rows",)
    assert report["fully_masked_rows"].seen == "NaN"
    fast = check_attention(torch_attention(module, need_weights=False), query_dim=8, num_heads=2)
    assert fast.subject == "MultiheadAttention"
    assert fast["fully_masked_rows"].status == "passed"
    assert not check_attention(module, fully_masked="any").failed


def test_torchs_is_causal_is_aligned_at_the_upper_left():
    def attention(query, key, value):
        return F.scaled_dot_product_attention(query, key, value, is_causal=True)

    assert check_attention(attention, causal=True).failed == ("causal_alignment",)


def test_torchs_dropped_weights_are_a_finding():
    module = nn.MultiheadAttention(8, 2, dropout=0.5, batch_first=True)
    report = check_attention(module, fully_masked="any")
    assert report.failed == ("weights_before_dropout",)


def test_a_sequence_first_module_given_batch_first_inputs():
    module = nn.MultiheadAttention(8, 2)

    def attention(x):
        return module(x, x, x)

    report = check_attention(attention, kind="self", query_dim=8, num_heads=2)
    assert report.failed == ("shapes",)  # the averaged weights are (L, B, B)
    report = check_attention(lambda x: module(x, x, x)[0], kind="self", query_dim=8, num_heads=2)
    assert report.failed == ("batch_items_do_not_mix",)


def test_everything_is_left_as_it_was():
    module = Multi().train()
    module.o.eval()
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    modes = [m.training for m in module.modules()]
    state = torch.get_rng_state()
    with torch.no_grad():
        check_attention(module, num_heads=4)
        assert not torch.is_grad_enabled()
    assert torch.equal(torch.get_rng_state(), state)
    assert [m.training for m in module.modules()] == modes
    assert all(p.grad is None for p in module.parameters())
    for name, tensor in module.state_dict().items():
        assert tensor.dtype == torch.float32
        assert torch.equal(tensor, before[name])


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_a_module_is_examined_in_its_own_dtype(dtype):
    report = check_attention(Multi().to(dtype), num_heads=4)
    assert not report.failed, report
    assert report.interface.endswith(str(dtype).removeprefix("torch."))


def test_an_attention_that_raises_fails_with_what_it_raised():
    def attention(query, key, value):
        raise RuntimeError("size\nmismatch")

    report = check_attention(attention)
    assert report.failed == ("shapes",)
    assert report["shapes"].seen == "raised RuntimeError: size mismatch"


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"kind": "both"}, ValueError, "kind must be one of 'cross', 'self', got 'both'"),
        ({"mask_polarity": "true"}, ValueError, "mask_polarity must be one of 'keep', "),
        ({"fully_masked": "nan"}, ValueError, "fully_masked must be one of 'zero', "),
        ({"mask_shape": "L_k L_q"}, ValueError, "mask_shape must name the axes .* got 'L_k L_q'"),
        ({"mask_shape": "B L_q"}, ValueError, "mask_shape must name the axes"),
        ({"query_dim": -1}, ValueError, "query_dim must be at least 1, got -1"),
        ({"num_heads": 2.0}, TypeError, "num_heads must be an integer, got float"),
    ],
)
def test_options_that_make_no_sense_are_refused(options, error, message):
    with pytest.raises(error, match=message):
        check_attention(Single(), **options)
    with pytest.raises(TypeError, match="fn must be a function or a module, got int"):
        check_attention(3)


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ("B L_q L_k", (2, 3, 5)),
        ("B 1 L_q L_k", (2, 1, 3, 5)),
        ("B H L_q L_k", (2, 4, 3, 5)),
        ("B*H L_q L_k", (8, 3, 5)),
        ("L_q L_k", (3, 5)),
        ("B L_k", (2, 5)),
        ("B 1 1 L_k", (2, 1, 1, 5)),
    ],
)
def test_shape_mask(shape, expected):
    mask = causal_mask(3, 5).expand(2, -1, -1)
    shaped = shape_mask(mask, shape, 4)
    assert shaped.shape == expected
    if "L_q" in shape:
        assert torch.equal(shaped.reshape(-1, 3, 5)[-1], causal_mask(3, 5))


def test_modules_are_found_behind_functions():
    assert list(modules_behind(multi)) == [multi]
    assert multi in modules_behind(_closure_over(multi))
    assert multi in modules_behind(partial(multi, mask=None))
    assert multi in modules_behind(multi.forward)
    assert list(modules_behind(four_axes)) == [multi]  # a global name, as in a notebook
    assert list(modules_behind(lambda x: x.multi)) == []
    assert list(modules_behind(F.scaled_dot_product_attention)) == []


def _closure_over(module):
    return lambda query, key, value: module(query, key, value)


@pytest.mark.parametrize(
    ("fn", "inputs", "mask_name", "flag"),
    [
        (lambda query, key, value, mask: 0, 3, "mask", None),
        (lambda q, k, v, m=None: 0, 3, None, None),
        (lambda q, k, v, key_padding_mask=None, attn_mask=None: 0, 3, "attn_mask", None),
        (lambda q, k, v, need_weights=True, mask=None: 0, 3, "mask", "need_weights"),
        (lambda q, k, v, *, valid_lens=None: 0, 3, "valid_lens", None),
    ],
)
def test_read_convention(fn, inputs, mask_name, flag):
    convention = read_convention(fn, "cross")
    assert convention.takes_mask
    assert (convention.inputs, convention.mask_name, convention.weights_flag) == (
        inputs, mask_name, flag,
    )  # fmt: skip


class FusedProjections(nn.Module):
    """Causal self-attention as GPTs have it: one layer for all three, the output alone."""

    def __init__(self, scale=None):
        super().__init__()
        self.qkv, self.out, self.scale = nn.Linear(16, 48), nn.Linear(16, 16), scale

    def forward(self, x):
        q, k, v = (Multi.split_heads(part, 2) for part in self.qkv(x).split(16, -1))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=self.scale)
        return self.out(mixed.transpose(1, 2).flatten(2))


def test_the_scale_is_read_from_what_the_linear_layers_make():
    options = {"kind": "self", "num_heads": 2, "causal": True, "query_dim": 16}
    report = check_attention(FusedProjections(), **options)
    assert not report.failed, report
    assert report["scale"].seen == "scores = 0.35 × q·k, expected 0.35"
    assert check_attention(FusedProjections(scale=0.25), **options).failed == ("scale",)
    assert check_attention(FusedProjections(scale=1.0), **options).failed == ("scale",)


def test_an_undeclared_causal_mask_is_named():
    report = check_attention(FusedProjections(), kind="self", num_heads=2)
    assert report.failed == ("query_order_is_kept",)
    assert "say causal=True" in report["query_order_is_kept"].hint


def test_the_battery_is_quick():
    module = Multi(64, 8)
    check_attention(module, num_heads=8)  # what torch loads once is not ours
    start = time.process_time()
    check_attention(module, num_heads=8)
    assert time.process_time() - start < 2


@pytest.mark.parametrize("size", ["query_dim", "key_dim", "value_dim", "num_heads"])
def test_a_size_of_0_is_refused(size):
    with pytest.raises(ValueError, match=f"{size} must be at least 1, got 0"):
        check_attention(F.scaled_dot_product_attention, **{size: 0})


def test_inference_mode_changes_no_finding():
    attention = MultiHeadAttention(16, 4)
    with torch.inference_mode():
        report = check_attention(attention)
    assert report.failed == ()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("seed", range(3))
def test_right_layers_pass_in_16_bits(dtype, seed):
    torch.manual_seed(seed)
    assert check_attention(MultiHeadAttention(16, 4).to(dtype)).failed == ()
    assert check_attention(SelfAttention(16).to(dtype), kind="self").failed == ()
