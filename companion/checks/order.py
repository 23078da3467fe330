"""Checks of what belongs together: heads, positions, and the order of keys and queries."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from companion.checks.probe import Finding, Probe, Problem, Skip, distance, number
from companion.checks.registry import check

_SCORED = ("rows_sum_to_1", "scores_use_the_key", "scores_use_the_query")


@check(
    "A view without a transpose mixes heads and positions. Split with "
    "x.view(B, L, H, d_head).transpose(1, 2), and join with "
    "x.transpose(1, 2).reshape(B, L, H * d_head).",
    requires=_SCORED,
)
def head_split(probe: Probe) -> Finding:
    """Heads hold features, not positions: equal rows are treated equally, and rows stay apart."""
    probe.need_heads()
    if probe.setting.ordered:
        raise Skip("it knows positions (ordered=True)")
    # With L a multiple of H, equal rows would stay equal even where a view mixes them.
    length = 5 if 5 % probe.setting.num_heads else 6
    if probe.is_self:
        row = probe.draw(probe.batch_size, 1, probe.setting.query_dim)
        output = probe.output(probe.sequence(row.expand(-1, length, -1)))
        gap = distance(output, output[:, :1].expand_as(output))
        return probe.at_most(gap, "equal rows give outputs that differ by")
    problem = probe.problem(3, length, scale=4.0)
    gap = max(
        _equal_keys(probe, problem), _equal_values(probe, problem), _other_query(probe, problem)
    )
    return probe.at_most(gap, "a head mixes positions by")


def _equal_keys(probe: Probe, problem: Problem) -> float:
    """With equal keys every query gets the same average, if it is not causal."""
    if probe.setting.causal:
        return 0.0
    key = problem.key[:, :1].expand_as(problem.key)
    output = probe.output(replace(problem, key=key))
    return distance(output, output[:, :1].expand_as(output))


def _equal_values(probe: Probe, problem: Problem) -> float:
    """With equal values every average is that value."""
    value = problem.value[:, :1].expand_as(problem.value)
    output = probe.output(replace(problem, value=value))
    return distance(output, output[:, :1].expand_as(output))


def _other_query(probe: Probe, problem: Problem) -> float:
    """How strongly an output depends on another row's query."""
    influence = probe.influence(problem, "query")
    return float(influence.masked_fill(torch.eye(len(influence)).bool(), 0.0).max())


@check(
    "Queries influence each other: a normalisation or a mean over the query axis.",
    requires=("head_split", *_SCORED),
)
def queries_do_not_mix(probe: Probe) -> Finding:
    """The output of a query depends on no other query."""
    probe.need_cross("every row is a key as well")
    return probe.at_most(_other_query(probe, probe.problem(scale=2.0)), "by gradient, at most")


@check(
    "A position bias or a recurrence over the keys: attention sees a set. If it knows positions on "
    "purpose, say ordered=True.",
    requires=("head_split", *_SCORED),
)
def key_order_is_irrelevant(probe: Probe) -> Finding:
    """Permuting keys together with their values changes nothing."""
    probe.need_cross("keys are permuted with the queries, see query_order_is_kept")
    _need_no_order(probe)
    problem = probe.problem(scale=2.0)
    permuted = replace(problem, key=problem.key.flip(1), value=problem.value.flip(1))
    gap = distance(probe.output(permuted), probe.output(problem))
    return probe.at_most(gap, "the output changes by")


@check(
    "A position bias, a recurrence, or a view that mixes positions. If it hides the future on "
    "purpose, say causal=True; if it knows positions, ordered=True.",
    requires=("head_split", "queries_do_not_mix", *_SCORED),
)
def query_order_is_kept(probe: Probe) -> Finding:
    """Permuting the queries permutes the outputs in the same way."""
    _need_no_order(probe)
    problem = probe.problem(scale=2.0)
    query = problem.query.flip(1)
    permuted = probe.sequence(query) if probe.is_self else replace(problem, query=query)
    gap = distance(probe.output(permuted), probe.output(problem).flip(1))
    return probe.at_most(gap, "the permuted output differs by")


def _need_no_order(probe: Probe) -> None:
    if probe.setting.ordered:
        raise Skip("it knows positions (ordered=True)")
    if probe.setting.causal:
        raise Skip("it is causal: what a query sees depends on the order")


@check(
    "The heads share their weights: averaged before the softmax or after it, or one head's used by "
    "all. Scores need a head axis, (B, H, L_q, L_k), up to the weighted sum.",
    requires=("head_split", "output_is_weighted_values", *_SCORED),
)
def heads_attend_separately(probe: Probe) -> Finding:
    """Every head weighs the values in its own way."""
    probe.need_heads()
    heads = probe.setting.num_heads
    if probe.is_self:
        weights = probe.head_weights(probe.problem(k_len=6, scale=4.0))
        rows = weights.transpose(0, 1).flatten(1)  # (H, B * L_q * L_k)
    else:
        response = probe.value_response(6, 6, scale=4.0)[0]
        rows = response.flatten(0, 1)  # (L_k * L_q, d), of rank H
    sizes = torch.linalg.svdvals(rows.detach().double())
    rank = int((sizes > min(2 * probe.tolerance, 1e-2) * sizes[0]).sum())
    return Finding(rank >= heads, f"{rank} different ways to weigh, {heads} heads")


@check(
    "The output projection is missing (or never called): the joined heads need a last "
    "Linear(d_model, d_model), without which no feature sees more than one head.",
    requires=("heads_attend_separately", "head_split", "output_is_weighted_values", *_SCORED),
)
def output_projection_mixes_heads(probe: Probe) -> Finding:
    """Each output feature draws on every head."""
    probe.need_heads()
    probe.need_cross("one head's share of a feature cannot be told apart")
    if probe.setting.value_dim == 1:
        raise Skip("values of one feature reach every head alike")
    response = probe.value_response(5, 5, directions=4, scale=4.0)  # (4, L_k, L_q, d)
    per_feature = response.detach().double().flatten(1, 2).permute(2, 0, 1)  # (d, 4, L_k * L_q)
    sizes = torch.linalg.svdvals(per_feature)
    sizes = sizes[sizes[:, 0] > 1e-6 * sizes.max()]
    mixing = float((sizes[:, 1] / sizes[:, 0]).median()) if len(sizes) else 0.0
    shown = "below 1e-03" if mixing <= 1e-3 else number(mixing)
    return Finding(mixing > 1e-3, f"second head's share of a feature: {shown}")


def unseen(influence: Tensor, visible: Tensor, *, ignore_diagonal: bool) -> float:
    """The largest influence where nothing is visible; NaN counts as the largest of all."""
    hidden = ~visible
    if ignore_diagonal:
        hidden = hidden & ~torch.eye(*hidden.shape).bool()
    return float(influence.nan_to_num(torch.inf).masked_fill(~hidden, 0.0).max())
