"""Proof that the battery works: each mistake fails the checks that name it, and right code none."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from companion import AdditiveAttention, attend, causal_mask
from companion.checks import CHECKS, check_attention, torch_attention
from tests.checks import attentions as a

HEADS = {"num_heads": 4}
SELF = {"kind": "self", "num_heads": 4}
CAUSAL = {"causal": True}
LEAKS = {"hidden_weights_are_0", "hidden_keys_have_no_influence"}

# A mistake, what is said about it, and exactly the checks that it fails.
MUTANTS = [
    (a.TransposedWeights, {}, {"shapes"}),
    (a.DropoutAlwaysOn, {}, {"dropout_off_in_eval"}),
    (a.SoftmaxOverBatch, {"mask_polarity": "none"}, {"batch_items_do_not_mix"}),
    (a.ScalesInPlace, {}, {"inputs_are_not_modified"}),
    (a.InvertsMaskInPlace, {}, {"inputs_are_not_modified"}),
    (a.SoftmaxOverQueries, {}, {"rows_sum_to_1"}),
    (a.SoftmaxOverQueriesMulti, HEADS, {"rows_sum_to_1"}),
    (a.SoftmaxOverHeads, HEADS, {"rows_sum_to_1"}),
    (a.ReluForSoftmax, {}, {"rows_sum_to_1"}),
    (a.NegativeWeights, {}, {"weights_are_not_negative"}),
    (a.IgnoresKeys, {}, {"scores_use_the_key"}),
    (a.IgnoresQueries, {}, {"scores_use_the_query"}),
    (a.SumsKeys, {}, {"output_is_weighted_values"}),
    (a.ReluOfValues, {}, {"output_is_weighted_values"}),
    (a.Unscaled, {}, {"scale"}),
    (a.TimesRoot, {}, {"scale"}),
    (a.DividesBySize, {}, {"scale"}),
    (a.RootOfModelSize, HEADS, {"scale"}),
    (a.CentresQueries, {}, {"queries_do_not_mix"}),
    (a.PrefersLateKeys, {}, {"key_order_is_irrelevant"}),
    (a.NumbersQueries, {}, {"query_order_is_kept"}),
    (a.ViewWithoutTranspose, HEADS, {"head_split"}),
    (a.JoinsWithoutTranspose, HEADS, {"head_split"}),
    (a.ViewOfKeys, HEADS, {"head_split"}),
    (a.ViewWithoutTransposeSelf, SELF, {"head_split"}),
    (a.SharesWeights, HEADS, {"heads_attend_separately"}),
    (a.FirstHeadForAll, HEADS, {"heads_attend_separately"}),
    (a.NoOutputProjection, HEADS, {"output_projection_mixes_heads"}),
    (a.DropsMask, {}, {"mask_is_used"}),
    (a.InvertsMask, {}, {"mask_polarity"}),
    (a.MasksQueries, {}, {"mask_axis"}),
    (a.PaddingOnQueries, {**HEADS, "mask_shape": "B L_k"}, {"mask_axis"}),
    (a.MasksAfterSoftmax, {}, {"masked_rows_sum_to_1"}),
    (a.FillsWithTinyNumber, {}, LEAKS),
    (a.AddsOnesAndZeros, {}, LEAKS),
    (a.RepeatsMaskInWrongOrder, HEADS, {"mask_of_each_item"}),
    (a.NanRows, {}, {"fully_masked_rows"}),
    (a.NanGradients, {}, {"fully_masked_rows"}),
    (a.UniformRows, {"fully_masked": "zero"}, {"fully_masked_rows"}),
    (a.SeesTheFuture, CAUSAL, {"no_look_into_the_future"}),
    (a.TransposedPast, CAUSAL, {"no_look_into_the_future"}),
    (a.StrictPast, CAUSAL, {"causal_rows_see_themselves"}),
    (a.UpperLeftPast, CAUSAL, {"causal_alignment"}),
    (a.DropsMaskWithoutWeights, {}, {"same_output_without_weights"}),
    (a.ReturnsDroppedWeights, HEADS, {"weights_before_dropout"}),
    (a.ComputesInFloat32, {}, {"dtype_is_kept"}),
    (a.OverflowsInHalf, {}, {"half_precision_masks"}),
    (a.NaiveExp, {}, {"large_scores_stay_finite"}),
    (a.ForgetsLayer, HEADS, {"every_parameter_learns"}),
    (a.DetachesKeys, HEADS, {"every_parameter_learns"}),
    (a.Squeezes, {}, {"length_1_works"}),
    (a.FixedLength, {}, {"new_length_works"}),
]

# The same without weights: the mistake is to be seen in the output.
WITHOUT_WEIGHTS = [
    "SoftmaxOverQueries", "SoftmaxOverQueriesMulti", "SoftmaxOverHeads", "ReluForSoftmax",
    "IgnoresKeys", "IgnoresQueries", "ReluOfValues", "Unscaled", "TimesRoot",
    "RootOfModelSize", "CentresQueries",
    "PrefersLateKeys", "NumbersQueries", "ViewWithoutTranspose", "JoinsWithoutTranspose",
    "ViewOfKeys", "SharesWeights", "FirstHeadForAll", "NoOutputProjection", "DropsMask",
    "InvertsMask", "MasksQueries", "MasksAfterSoftmax", "FillsWithTinyNumber", "AddsOnesAndZeros",
    "RepeatsMaskInWrongOrder", "NanRows", "NanGradients", "UniformRows", "SeesTheFuture",
    "UpperLeftPast", "OverflowsInHalf", "NaiveExp", "ForgetsLayer",
]  # fmt: skip
NEEDS_WEIGHTS = {"hidden_weights_are_0"}


def seeded(build, seed=0):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build()


def examine(build, options, seed=0):
    return check_attention(seeded(build, seed), seed=seed, **options)


@pytest.mark.parametrize(
    ("mutant", "options", "fails"), MUTANTS, ids=lambda x: getattr(x, "__name__", "")
)
def test_a_mistake_fails_exactly_the_checks_that_name_it(mutant, options, fails):
    report = examine(mutant, options)
    assert set(report.failed) == fails, report


@pytest.mark.parametrize("name", WITHOUT_WEIGHTS)
def test_a_mistake_is_seen_without_the_weights_as_well(name):
    mutant, options, fails = next(row for row in MUTANTS if row[0].__name__ == name)
    report = examine(lambda: a.Quiet(mutant()), options)
    assert set(report.failed) == fails - NEEDS_WEIGHTS, report


def test_every_check_has_a_mutant():
    assert set.union(*(fails for *_, fails in MUTANTS)) == {check.name for check in CHECKS}


# Right attentions: no false alarm, whatever the seed and the sizes.


def reference(query, key, value, mask=None):
    scores = query @ key.mT / key.shape[-1] ** 0.5
    if mask is not None:
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    return scores.softmax(-1) @ value


def scaled(query, key, value, mask=None):
    return attend(query @ key.mT / key.shape[-1] ** 0.5, value, mask)


def torch_causal(query, key, value, mask=None):
    past = causal_mask(query.shape[1], key.shape[1])
    mask = past if mask is None else mask & past
    return F.scaled_dot_product_attention(query, key, value, attn_mask=mask)


def sizes(seed):
    """Heads from 1 to 8, head sizes from 1 to 16, other sizes from 1 to 24."""
    draw = torch.Generator().manual_seed(seed)
    h, d_head, d_k, d_v, hidden = (
        int(torch.randint(1, high, (), generator=draw)) for high in (9, 17, 25, 25, 25)
    )
    return h, h * max(d_head, 2), d_k, d_v, hidden


def torch_module(seed, **options):
    h, d_model, d_k, d_v, _ = sizes(seed)
    return nn.MultiheadAttention(d_model, h, kdim=d_k, vdim=d_v, **options)


def multi_options(seed):
    h, d_model, d_k, d_v, _ = sizes(seed)
    return {"num_heads": h, "query_dim": d_model, "key_dim": d_k, "value_dim": d_v}


def plain_options(seed):
    _, _, d_k, d_v, _ = sizes(seed)
    return {"query_dim": d_k, "value_dim": d_v, "fully_masked": "zero"}


def additive_options(seed):
    _, d_q, d_k, d_v, _ = sizes(seed)
    return {"query_dim": d_q, "key_dim": d_k, "value_dim": d_v, "fully_masked": "zero"}


def same_sizes(seed, **options):
    h, d_model, *_ = sizes(seed)
    return {"num_heads": h, "query_dim": d_model, **options}


# Each: how to build it for a seed, and what is said about it.
RIGHT = {
    "F.scaled_dot_product_attention": (lambda _: F.scaled_dot_product_attention, plain_options),
    "F.scaled_dot_product_attention, causal": (
        lambda _: torch_causal,
        lambda seed: {**plain_options(seed), "causal": True},
    ),
    "reference": (
        lambda _: reference,
        lambda seed: {**plain_options(seed), "fully_masked": "finite"},
    ),
    "attend": (lambda _: scaled, plain_options),
    "AdditiveAttention": (
        lambda seed: AdditiveAttention(sizes(seed)[1], sizes(seed)[2], sizes(seed)[4]),
        additive_options,
    ),
    "causal": (lambda _: a.CausalSingle(), lambda seed: {**plain_options(seed), "causal": True}),
    "nn.MultiheadAttention": (
        lambda seed: torch_module(seed, batch_first=True),
        # Its weights of a query that sees nothing are NaN: torch leaves them undefined.
        lambda seed: {**multi_options(seed), "fully_masked": "any"},
    ),
    "nn.MultiheadAttention, sequence first": (
        lambda seed: torch_module(seed),
        lambda seed: {**multi_options(seed), "fully_masked": "any"},
    ),
    "nn.MultiheadAttention, without weights": (
        lambda seed: torch_attention(torch_module(seed, batch_first=True), need_weights=False),
        lambda seed: {**multi_options(seed), "fully_masked": "zero"},
    ),
    "nn.MultiheadAttention, self": (
        lambda seed: nn.MultiheadAttention(sizes(seed)[1], sizes(seed)[0], batch_first=True),
        lambda seed: same_sizes(seed, kind="self", fully_masked="any"),
    ),
    "multi-head reference": (
        lambda seed: a.Multi(sizes(seed)[1], sizes(seed)[0]),
        lambda seed: same_sizes(seed, fully_masked="zero"),
    ),
    "multi-head reference, self": (
        lambda seed: a.MultiSelf(sizes(seed)[1], sizes(seed)[0]),
        lambda seed: same_sizes(seed, kind="self", fully_masked="zero"),
    ),
    "multi-head reference, causal self": (
        lambda seed: a.QuietSelf(a.MultiSelf(sizes(seed)[1], sizes(seed)[0], causal=True)),
        lambda seed: same_sizes(seed, kind="self", causal=True),
    ),
}  # fmt: skip


def no_false_alarm(name, seed):
    build, options = RIGHT[name]
    report = examine(lambda: build(seed), options(seed), seed)
    assert not report.failed, report


@pytest.mark.parametrize("name", RIGHT)
@pytest.mark.parametrize("seed", range(2))
def test_no_false_alarm(name, seed):
    no_false_alarm(name, seed)


@pytest.mark.slow
@pytest.mark.parametrize("name", RIGHT)
def test_no_false_alarm_over_200_seeds_and_sizes(name):
    for seed in range(200):
        no_false_alarm(name, seed)
