"""Answers to the exercises of chapter 2."""

import math

import torch

from companion import additive_score, masked_softmax
from companion.exercises import check_chunks, check_masked_weights, check_weighted_sum


def context_of(scores, values):
    exponentials = [math.exp(score) for score in scores]
    return sum(e * v for e, v in zip(exponentials, values, strict=True)) / sum(exponentials)


def in_chunks(query, key, w_query, w_key, v):
    return additive_score(query, key, w_query, w_key, v, chunk_size=8)


def overflowing_weights(scores, mask):
    exponentials = scores.exp() * mask
    return exponentials / exponentials.sum(-1, keepdim=True).clamp_min(1e-30)


def weights_with_nan_gradients(scores, mask):
    return (scores + torch.where(mask, 0.0, -torch.inf)).softmax(-1).nan_to_num(0.0)


RIGHT = {
    check_weighted_sum: context_of,
    check_masked_weights: masked_softmax,
    check_chunks: in_chunks,
}

WRONG = [
    (
        check_weighted_sum,
        lambda scores, values: sum(s * v for s, v in zip(scores, values, strict=True)),
        "not weights yet",
    ),
    (
        check_weighted_sum,
        lambda scores, values: sum(math.exp(s) * v for s, v in zip(scores, values, strict=True)),
        "do not add up to 1",
    ),
    (check_masked_weights, lambda scores, mask: masked_softmax(scores, ~mask), "wrong way round"),
    (
        check_masked_weights,
        lambda scores, mask: masked_softmax(scores.T, mask.T).T,
        "over the queries",
    ),
    (check_masked_weights, lambda scores, mask: scores.softmax(-1) * mask, "no longer add up"),
    (check_masked_weights, lambda scores, mask: (scores * mask).softmax(-1), "exp(0)"),
    (
        check_masked_weights,
        lambda scores, mask: scores.masked_fill(~mask, -torch.inf).softmax(-1),
        "gives NaN",
    ),
    (
        check_masked_weights,
        lambda scores, mask: scores.masked_fill(~mask, -1e9).softmax(-1),
        "uniform weights",
    ),
    (check_masked_weights, lambda scores, mask: scores.softmax(-1)[0], "expected a tensor"),
    (check_masked_weights, overflowing_weights, "exp overflows"),
    (check_masked_weights, weights_with_nan_gradients, "gradients stay finite"),
    (check_chunks, additive_score, "whole grid"),
    (check_chunks, lambda *inputs: in_chunks(*inputs).softmax(-1), "before the softmax"),
    (check_chunks, lambda *inputs: -in_chunks(*inputs), "differ from"),
    (check_chunks, lambda *inputs: in_chunks(*inputs).T[:3], "expected a tensor"),
]
