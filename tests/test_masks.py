"""Masks: True = may attend, everywhere but inside torch's own module."""

import math

import pytest
import torch
from torch import nn

from companion import attend, causal_mask, padding_mask, to_torch_attn_mask
from companion.masks import as_boolean_mask
from tests.properties import make_problem

# padding_mask


def test_padding_mask_by_hand():
    mask = padding_mask(torch.tensor([2, 0, 3]))
    assert mask.dtype == torch.bool
    assert mask.int().tolist() == [[[1, 1, 0]], [[0, 0, 0]], [[1, 1, 1]]]


def test_padding_mask_up_to_a_given_length():
    assert padding_mask(torch.tensor([1]), max_len=4).int().tolist() == [[[1, 0, 0, 0]]]


def test_padding_mask_broadcasts_over_queries_not_over_items():
    scores, value = torch.zeros(2, 3, 4), torch.ones(2, 4, 1)
    _, weights = attend(scores, value, padding_mask(torch.tensor([1, 4])))
    assert torch.equal(weights[0], torch.tensor([[1.0, 0, 0, 0]] * 3))
    assert torch.equal(weights[1], torch.full((3, 4), 0.25))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bool, torch.complex64], ids=str)
def test_padding_mask_refuses_lengths_that_are_no_integers(dtype):
    with pytest.raises(TypeError, match=f"lengths must be an integer tensor, got dtype {dtype}"):
        padding_mask(torch.ones(2, dtype=dtype))


@pytest.mark.parametrize(
    ("lengths", "max_len", "message"),
    [
        ([-1, 2], None, "lengths must not be negative, got -1"),
        ([2, 5], 4, "lengths must be at most max_len=4, got 5"),
        ([[1, 2]], None, r"lengths must have shape \(B,\) with B >= 1, got \(1, 2\)"),
        (3, None, r"lengths must have shape \(B,\) with B >= 1, got \(\)"),
        ([], None, r"lengths must have shape \(B,\) with B >= 1, got \(0,\)"),
    ],
)
def test_padding_mask_refuses_impossible_lengths(lengths, max_len, message):
    with pytest.raises(ValueError, match=message):
        padding_mask(torch.tensor(lengths, dtype=torch.int64), max_len)


# causal_mask


def test_causal_mask_by_hand():
    assert causal_mask(3).int().tolist() == [[1, 0, 0], [1, 1, 0], [1, 1, 1]]
    assert causal_mask(1).tolist() == [[True]]


def test_causal_mask_lets_the_last_query_see_every_key():
    assert causal_mask(2, 4).int().tolist() == [[1, 1, 1, 0], [1, 1, 1, 1]]


def test_causal_mask_with_fewer_keys_leaves_the_first_queries_nothing():
    assert causal_mask(3, 2).int().tolist() == [[0, 0], [1, 0], [1, 1]]


def test_causal_mask_of_new_tokens_is_the_end_of_the_whole_mask():
    assert torch.equal(causal_mask(2, 6), causal_mask(6)[-2:])


def test_causal_mask_is_made_on_a_device():
    assert causal_mask(2, device="meta").device.type == "meta"


@pytest.mark.parametrize("lengths", [(0,), (2, 0), (-1, 3)])
def test_causal_mask_refuses_lengths_that_are_not_positive(lengths):
    with pytest.raises(ValueError, match="q_len and k_len must be at least 1, got"):
        causal_mask(*lengths)


def test_masks_combine_with_and():
    both = padding_mask(torch.tensor([2, 3])) & causal_mask(3)
    assert both.int().tolist() == [
        [[1, 0, 0], [1, 1, 0], [1, 1, 0]],
        [[1, 0, 0], [1, 1, 0], [1, 1, 1]],
    ]


# as_boolean_mask


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.int8], ids=str)
def test_integers_other_than_0_mean_may_attend(dtype):
    mask = as_boolean_mask(torch.tensor([2, 0, 1], dtype=dtype), (4, 3))
    assert mask.tolist() == [True, False, True]


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.complex64], ids=str)
def test_a_floating_mask_is_refused_with_the_fix(dtype):
    with pytest.raises(TypeError, match=r"mask must be boolean .*pass `mask == 0`.*`mask != 0`"):
        as_boolean_mask(torch.zeros(3, dtype=dtype), (4, 3))


@pytest.mark.parametrize("shape", [(4,), (1, 4, 3), (2, 1, 3), (3, 4)])
def test_a_mask_must_not_enlarge_the_scores(shape):
    with pytest.raises(ValueError, match=r"broadcast to the scores \(4, 3\) .* got shape \("):
        as_boolean_mask(torch.ones(shape, dtype=torch.bool), (4, 3))


# to_torch_attn_mask


@pytest.mark.parametrize("shape", [(4,), (3, 4), (1, 4), (2, 3, 4), (2, 1, 4), (2, 2, 3, 4)])
def test_our_mask_means_the_same_to_torchs_module(shape):
    d_model, heads = 6, 2
    problem = make_problem((2,), 3, 4, d_model, d_model, d_model)
    mask = torch.rand(shape, generator=torch.Generator().manual_seed(1)) < 0.5
    mask[..., 0] = True  # torch's module is NaN where a query sees nothing
    module = nn.MultiheadAttention(d_model, heads, bias=False, batch_first=True).double()
    with torch.no_grad():
        module.in_proj_weight.copy_(torch.eye(d_model).repeat(3, 1))
        module.out_proj.weight.copy_(torch.eye(d_model))

    query, key, value = (
        t.unflatten(-1, (heads, -1)).transpose(1, 2)
        for t in (problem.query, problem.key, problem.value)
    )  # (B, H, L, d_head)
    scores = query @ key.mT / math.sqrt(d_model // heads)
    output, weights = attend(scores, value, mask.unsqueeze(1) if mask.ndim == 3 else mask)

    torch_mask = to_torch_attn_mask(mask, batch_size=2, num_heads=heads, q_len=3)
    assert torch_mask.shape == (2 * heads, 3, 4)
    torch_output, torch_weights = module(
        problem.query, problem.key, problem.value, attn_mask=torch_mask, average_attn_weights=False
    )
    torch.testing.assert_close(weights, torch_weights, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(
        output.transpose(1, 2).flatten(2), torch_output, rtol=1e-10, atol=1e-10
    )


def test_to_torch_attn_mask_refuses_a_floating_mask():
    with pytest.raises(TypeError, match="mask must be boolean"):
        to_torch_attn_mask(torch.zeros(2, 2), batch_size=1, num_heads=1, q_len=2)


@pytest.mark.parametrize("shape", [(3, 4), (3, 2, 4), (2, 3, 2, 4), (1, 1, 1, 2, 4), ()])
def test_to_torch_attn_mask_refuses_other_shapes(shape):
    mask = torch.ones(shape, dtype=torch.bool)
    with pytest.raises(ValueError, match=r"mask must .*, got shape \("):
        to_torch_attn_mask(mask, batch_size=2, num_heads=2, q_len=2)
