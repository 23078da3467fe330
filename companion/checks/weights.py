"""Checks of the interface, the weights, and the sum that they weigh."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from companion.checks.probe import Finding, Probe, Problem, Skip, distance, gradients, number
from companion.checks.registry import check


@check(
    "Expected output (B, L_q, d_v) and weights (B, L_q, L_k) or (B, H, L_q, L_k). For "
    "(length, batch, features) wrap it in companion.checks.sequence_first; for num_heads, "
    "mask_shape and the sizes see check_attention.",
    requires=(),
)
def shapes(probe: Probe) -> Finding:
    """The output has a row for each query, the weights an entry for each query and key."""
    problem = probe.problem()
    output, weights = probe.run(problem)
    rows, keys = problem.query.shape[:2], problem.key.shape[1]
    seen = f"output {tuple(output.shape)}"
    holds = output.ndim == 3 and output.shape[:2] == rows and bool(output.isfinite().all())
    if weights is not None:
        seen += f", weights {tuple(weights.shape)}"
        heads = (1, probe.setting.num_heads) if weights.ndim == 4 else (1,)
        expected = [(*rows, keys), *((rows[0], h, rows[1], keys) for h in heads)]
        holds = holds and tuple(weights.shape) in expected
    return Finding(holds, seen)


@check(
    "A random step still runs, such as F.dropout without `training=self.training`, or a dropout "
    "probability passed to F.scaled_dot_product_attention in eval mode.",
    requires=("shapes",),
)
def dropout_off_in_eval(probe: Probe) -> Finding:
    """In eval mode the same inputs give the same output."""
    problem = probe.problem()
    first, second = probe.output(problem), probe.output(problem)
    return probe.at_most(distance(second, first), "two calls differ by")


@check(
    "Something runs over the batch axis: softmax(dim=0), a sequence-first module given batch-first "
    "inputs (batch_first=True, or companion.checks.sequence_first), or view(-1, ...) that joins "
    "batch and length.",
    requires=("dropout_off_in_eval",),
)
def batch_items_do_not_mix(probe: Probe) -> Finding:
    """What one batch item gets does not depend on the others."""
    problem, other = probe.problem(), probe.problem(scale=3.0)
    mixed = [
        torch.cat([p[:1], o[1:]]) for p, o in zip(_inputs(problem), _inputs(other), strict=True)
    ]
    before, after = probe.output(problem), probe.output(Problem(*mixed))
    return probe.at_most(distance(after[:1], before[:1]), "item 0 changes with item 1 by")


def _inputs(problem: Problem) -> tuple[Tensor, Tensor, Tensor]:
    return problem.query, problem.key, problem.value


@check(
    "An in-place operation (`+=`, `masked_fill_`, `scores[...] = `, `mul_`) on an argument: use "
    "the version without the underscore.",
    requires=("shapes",),
)
def inputs_are_not_modified(probe: Probe) -> Finding:
    """Query, key, value and mask are left as they were."""
    problem, masks = probe.problem(4, 4), probe.layer.mask_polarity != "none"
    inputs = [problem.query] if probe.is_self else list(_inputs(problem))
    mask = None
    if masks:
        visible = probe.masked(problem, probe.square_mask()).mask
        assert visible is not None  # noqa: S101, for mypy
        mask = probe.layer.encode_mask(visible, probe.setting.dtype).contiguous()
    tensors = inputs if mask is None else [*inputs, mask]
    before = [tensor.clone() for tensor in tensors]
    probe.layer.call(inputs, mask)
    changed = sum(not torch.equal(t, b) for t, b in zip(tensors, before, strict=True))
    return Finding(changed == 0, f"{changed} of {len(tensors)} arguments changed")


@check(
    "The softmax runs over another axis than the keys: with scores (..., L_q, L_k) it is "
    "softmax(dim=-1). Or the weights are not normalised: an activation after the softmax, or in "
    "place of it."
)
def rows_sum_to_1(probe: Probe) -> Finding:
    """The weights of each query sum to 1 over the keys."""
    if not probe.has_weights():
        return _one_key_takes_all(probe)
    weights = probe.weights(probe.problem(scale=4.0))
    finding = probe.at_most(distance(weights.sum(-1), weights.sum(-1) * 0 + 1), "off by")
    columns = weights.sum(-2)
    if finding.holds or distance(columns, torch.ones_like(columns)) > probe.tolerance:
        return finding
    hint = "The softmax runs over the query axis: columns sum to 1. Use softmax(dim=-1)."
    return Finding(False, finding.seen, hint)


def _one_key_takes_all(probe: Probe) -> Finding:
    probe.need_cross("without its weights their sum cannot be seen")
    problem = probe.problem(q_len=3, k_len=1, scale=4.0)
    (output, _), (query, _, value) = probe.run_on_leaves(problem)
    weighed = output * probe.draw(*output.shape)
    moved, reference = gradients(weighed, [query, value])
    gap = float(moved.abs().max() / reference.abs().max().clamp_min(1e-30))
    return probe.at_most(gap, "with one key, the query moves the output by")


@check(
    "Weights are probabilities: softmax of the scores, not the scores, their ReLU or their tanh.",
    requires=("rows_sum_to_1",),
)
def weights_are_not_negative(probe: Probe) -> Finding:
    """No weight is negative."""
    least = float(probe.weights(probe.problem(scale=4.0)).min())
    return Finding(least >= 0, f"least weight: {'not negative' if least >= 0 else number(least)}")


@check(
    "The keys do not reach the scores: these were computed from the query alone (or from "
    "positions), or the query was compared with itself.",
    requires=("rows_sum_to_1",),
)
def scores_use_the_key(probe: Probe) -> Finding:
    """Other keys give another output."""
    probe.need_cross("the key cannot be changed alone")
    problem, other = probe.problem(scale=4.0), probe.problem()
    after = probe.output(replace(problem, key=other.key))
    return probe.at_least(distance(after, probe.output(problem)), "other keys change the output by")


@check(
    "The query does not reach the scores: every query gets the same average. Check that the query, "
    "not the key, is projected and scored.",
    requires=("rows_sum_to_1",),
)
def scores_use_the_query(probe: Probe) -> Finding:
    """Another query gives another output."""
    probe.need_cross("the query cannot be changed alone")
    problem, other = probe.problem(scale=4.0), probe.problem(scale=4.0)
    after = probe.output(replace(problem, query=other.query))
    return probe.at_least(
        distance(after, probe.output(problem)), "other queries change the output by"
    )


@check(
    "What is summed is not the values, or what is returned is not what they were weighted with: "
    "keys in place of values, weights of another layer or from before the mask, an activation "
    "between.",
    requires=("rows_sum_to_1", "head_split"),
)
def output_is_weighted_values(probe: Probe) -> Finding:
    """The output is the weighted sum of the values, up to linear projections."""
    if not probe.has_weights():
        return _affine_in_value(probe)
    problem = _few_directions(probe)
    weights, output = probe.head_weights(problem), probe.output(problem)
    if weights.shape[1] == 1:
        direct = distance(output, weights[:, 0] @ problem.value)
        if direct <= probe.tolerance or not probe.parameters:
            return probe.at_most(direct, "output − weights × values")
    left = _unexplained(output, weights @ problem.value[:, None])
    tolerance = max(1e-3, 4 * torch.finfo(probe.setting.dtype).eps)
    return probe.at_most(left, "share not explained by weights × values", tolerance=tolerance)


def _few_directions(probe: Probe, directions: int = 3) -> Problem:
    """A batch whose values span few directions: then few numbers say how they are projected."""
    heads, length = probe.setting.num_heads, 5
    batch_size = 4 * (1 + directions * heads) // length + 2
    problem = probe.problem(length, length, batch_size=batch_size)
    spread = probe.draw(batch_size, length, directions)
    value = spread @ probe.draw(directions, probe.setting.value_dim)
    return probe.sequence(value) if probe.is_self else replace(problem, value=value)


def _unexplained(output: Tensor, summed: Tensor) -> float:
    """Share of the output that is no affine function of the heads' weighted sums."""
    rows = summed.transpose(1, 2).flatten(2).flatten(0, 1).double()  # (B * L_q, H * d_v)
    target = output.flatten(0, 1).double()
    target = target - target.mean(0)
    left, sizes, _ = torch.linalg.svd(rows - rows.mean(0), full_matrices=False)
    basis = left[:, sizes > 1e-5 * sizes[:1]]
    residual = target - basis @ (basis.T @ target)
    return float(residual.norm() / target.norm().clamp_min(1e-12))


def _affine_in_value(probe: Probe) -> Finding:
    probe.need_cross("without its weights the sum cannot be rebuilt")
    problem, other = probe.problem(), probe.problem()
    first, second = probe.output(problem), probe.output(replace(problem, value=other.value))
    between = probe.output(replace(problem, value=(problem.value + other.value) / 2))
    if distance(first, second) <= probe.tolerance:
        return Finding(False, "the values do not change the output")
    gap = distance(between, (first + second) / 2)
    return probe.at_most(gap, "not linear in the values by")


@check(
    "Scores are q·k / √d, with d the features of one head: `/ math.sqrt(d_head)`. For unscaled dot "
    "products on purpose say scaled=False.",
    requires=("rows_sum_to_1", "scores_use_the_key", "scores_use_the_query", "head_split"),
)
def scale(probe: Probe) -> Finding:
    """Scores are dot products of query and key over the root of their size."""
    problem = probe.problem(2, 3, scale=0.05)  # weights near 1/3, none of them lost to rounding
    made, taken = _recorded(probe, problem)
    rows = slice(-1, None) if probe.setting.causal else slice(None)  # the last sees every key
    weights = _weights_or_implied(probe, problem, made, taken)[..., rows, :]
    logits = weights.double().log()
    logits = logits - logits.mean(-1, keepdim=True)
    for query, key in _pairs(probe, made, made, (problem.query, problem.key)):
        products = (_heads(probe, query) @ _heads(probe, key).mT)[..., rows, :]
        products = products - products.mean(-1, keepdim=True)
        factor = float((logits * products).sum() / products.square().sum())
        if (logits - factor * products).norm() < 1e-2 * logits.norm():
            return _scale_finding(probe, factor, query.shape[-1])
    raise Skip("its scores are no dot products of projections that can be seen")


def _recorded(probe: Probe, problem: Problem) -> tuple[list[Tensor], list[Tensor]]:
    """What may be a projection: inputs and what linear layers made; and what these were given."""
    made = [problem.query] if probe.is_self else list(_inputs(problem))
    taken: list[Tensor] = []

    def record(_module: nn.Module, given: tuple[Tensor, ...], output: Tensor) -> None:
        made.append(output.detach())
        taken.append(given[0].detach())

    layers = {m for module in probe.layer.modules for m in module.modules()}
    hooks = [m.register_forward_hook(record) for m in layers if isinstance(m, nn.Linear)]
    try:
        output = probe.output(problem).detach()
    finally:
        for hook in hooks:
            hook.remove()
    thirds = [part for x in made if x.shape[-1] % 3 == 0 for part in x.chunk(3, dim=-1)]
    return made + thirds, [output, *taken]


def _pairs(
    probe: Probe, firsts: list[Tensor], seconds: list[Tensor], like: tuple[Tensor, Tensor]
) -> Iterator[tuple[Tensor, Tensor]]:
    """Pairs of tensors that have the rows of two others, and features that split into heads."""
    for first, second in itertools.product(firsts, seconds):
        rows = (first.shape[:-1], second.shape[:-1]) == (like[0].shape[:-1], like[1].shape[:-1])
        size = first.shape[-1]
        if rows and size == second.shape[-1] and size % probe.setting.num_heads == 0:
            yield first, second


def _weights_or_implied(
    probe: Probe, problem: Problem, made: list[Tensor], taken: list[Tensor]
) -> Tensor:
    """The weights of each head; where they are not returned, those that explain the sums."""
    weights = probe.run(problem).weights
    if weights is not None and (weights.ndim == 4 or probe.setting.num_heads == 1):
        return probe.head_weights(problem)
    for value, summed in _pairs(probe, made, taken, (problem.value, problem.query)):
        v, o = _heads(probe, value), _heads(probe, summed)
        # With fewer features, other weights would do as well; and every tensor explains itself.
        if v.shape[-1] > v.shape[-2] and not torch.equal(value, summed):
            implied: Tensor = torch.linalg.lstsq(v.mT, o.mT).solution.mT
            explained = distance(implied @ v, o) < 1e-4
            if explained and distance(implied.sum(-1), torch.ones_like(implied[..., 0])) < 1e-3:
                return implied
    raise Skip("it does not return its weights, and its sums do not tell them")


def _heads(probe: Probe, x: Tensor) -> Tensor:
    return x.double().reshape(*x.shape[:2], probe.setting.num_heads, -1).transpose(1, 2)


def _scale_finding(probe: Probe, factor: float, size: int) -> Finding:
    d_head = size // probe.setting.num_heads
    expected = d_head**-0.5 if probe.setting.scaled else 1.0
    mistakes = {
        "not divided at all": 1.0,
        "divided by √d_model, not by √d_head": size**-0.5,
        "multiplied by √d_head": d_head**0.5,
        "divided by d_head, not by its root": 1 / d_head,
    }
    seen = f"scores = {number(factor)} × q·k, expected {number(expected)}"
    if abs(factor / expected - 1) < 0.02:
        return Finding(True, seen)
    name = next((n for n, f in mistakes.items() if abs(factor / f - 1) < 0.02), "")
    return Finding(False, f"{seen}{name and ': '}{name}")
