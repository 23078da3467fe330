"""Checks of masks: given ones, and the causal one that a layer brings itself."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from companion.checks.order import unseen
from companion.checks.probe import Finding, Probe, Problem, Skip, distance, gradients, number
from companion.checks.registry import check, error_text
from companion.masks import causal_mask

_BASE = ("rows_sum_to_1", "head_split")
_READ = ("mask_is_used", "mask_polarity", "mask_axis", *_BASE)
_SOUND = (*_READ, "masked_rows_sum_to_1", "no_look_into_the_future")


@check(
    "The mask never reaches the scores. `scores.masked_fill(...)` returns a new tensor: assign it. "
    "Or the mask is dropped on the path that returns the weights.",
    requires=_BASE,
)
def mask_is_used(probe: Probe) -> Finding:
    """Hiding keys changes the output."""
    probe.need_mask()
    problem = probe.problem(4, 4, scale=2.0)
    masked = probe.output(probe.masked(problem, probe.square_mask()))
    gap = distance(masked, probe.output(problem))
    # NaN is another output; what it means is for the checks below.
    return (
        Finding(True, "NaN") if gap != gap else probe.at_least(gap, "a mask changes the output by")
    )


@check(
    "The mask is read upside down: it hides what it should show. True means 'may attend' for "
    "F.scaled_dot_product_attention and 'hidden' for nn.MultiheadAttention; invert it with ~mask, "
    "or say mask_polarity='ignore'.",
    requires=("mask_is_used", *_BASE),
)
def mask_polarity(probe: Probe) -> Finding:
    """The keys that the mask shows are seen, and not those that it hides."""
    probe.need_mask()
    mask = probe.square_mask()
    seen = _seen_through(probe, mask)
    shown, hidden = probe.visible(mask), probe.visible(~mask)
    if probe.is_self:
        shown, hidden = _off_diagonal(shown), _off_diagonal(hidden)
    inverted = bool(seen[hidden].all() and not seen[shown].any())
    return Finding(not inverted, _share_seen(seen, shown, hidden))


def _seen_through(probe: Probe, mask: Tensor) -> Tensor:
    problem = probe.masked(probe.problem(*mask.shape, scale=0.3), mask)
    return probe.influences(problem)


def _off_diagonal(mask: Tensor) -> Tensor:
    return mask & ~torch.eye(*mask.shape).bool()


def _share_seen(seen: Tensor, shown: Tensor, hidden: Tensor) -> str:
    return (
        f"sees {int(seen[shown].sum())} of {int(shown.sum())} visible keys, "
        f"{int(seen[hidden].sum())} of {int(hidden.sum())} hidden ones"
    )


@check(
    "The mask lies on the query axis: it silences padded queries and leaves padded keys in sight. "
    "A padding mask is (B, 1, 1, L_k) against scores (B, H, L_q, L_k): mask[:, None, None, :].",
    requires=("mask_is_used", "mask_polarity", *_BASE),
)
def mask_axis(probe: Probe) -> Finding:
    """The mask hides keys, also where there are more keys than queries."""
    probe.need_mask()
    if not probe.is_self:
        try:
            probe.output(probe.problem(3, 5, mask=probe.row_mask(3, 5)))
        except Exception as error:
            return Finding(False, f"3 queries and 5 keys: raised {error_text(error)}")
    mask, problem = probe.square_mask(), probe.problem(4, 4, scale=0.3)
    masked = probe.masked(problem, mask)
    seen, turned = probe.influences(masked), probe.visible(mask.T)
    open_rows = mask.T.all(-1)  # what a transposed mask would leave as it was
    before, after = probe.output(problem)[:, open_rows], probe.output(masked)[:, open_rows]
    agrees = seen[turned.any(-1)] == turned[turned.any(-1)]
    if probe.is_self:
        agrees = agrees | torch.eye(4).bool()[turned.any(-1)]
    transposed = bool(agrees.all()) and distance(after, before) <= probe.tolerance
    return Finding(not transposed, "hides queries, not keys" if transposed else "hides keys")


@check(
    "The mask is applied after the softmax, so that the rest no longer sums to 1: mask the scores, "
    "before the softmax.",
    requires=_READ,
)
def masked_rows_sum_to_1(probe: Probe) -> Finding:
    """Under a mask, the weights of each query still sum to 1."""
    probe.need_mask()
    q_len, k_len = (5, 5) if probe.is_self else (3, 5)
    problem = probe.problem(q_len, k_len, scale=2.0, mask=probe.row_mask(q_len, k_len))
    if probe.has_weights():
        sums = probe.weights(problem).sum(-1)
        return probe.at_most(distance(sums, torch.ones_like(sums)), "off by")
    # With equal values, every average is that value, whatever is hidden.
    value = problem.value[:, :1].expand_as(problem.value)
    equal = probe.sequence(value) if probe.is_self else replace(problem, value=value, mask=None)
    masked = probe.output(replace(equal, mask=problem.mask))
    return probe.at_most(distance(masked, probe.output(equal)), "with equal values, off by")


@check(
    "Hidden keys keep some weight: they are filled with too mild a score (0, or 1e-9 for -1e9), or "
    "a mask of ones and zeros is added to the scores. Fill with -inf or the lowest finite number.",
    requires=_SOUND,
)
def hidden_weights_are_0(probe: Probe) -> Finding:
    """The weight of a hidden key is exactly 0."""
    probe.need_mask()
    q_len, k_len = (5, 5) if probe.is_self else (3, 5)
    mask = probe.row_mask(q_len, k_len)
    weights = probe.weights(probe.problem(q_len, k_len, scale=2.0, mask=mask))
    most = float(weights[..., ~probe.visible(mask)].abs().max())
    return Finding(most == 0, f"largest weight of a hidden key: {number(most)}")


@check(
    "Hidden keys leak into the output: mask the scores of all of them with -inf or the lowest "
    "finite number, before the softmax, and nowhere else.",
    requires=_SOUND,
)
def hidden_keys_have_no_influence(probe: Probe) -> Finding:
    """Other content at hidden positions changes neither output nor gradient."""
    probe.need_mask()
    q_len, k_len = (5, 5) if probe.is_self else (3, 5)
    mask = probe.row_mask(q_len, k_len)
    problem = probe.problem(q_len, k_len, scale=2.0, mask=mask)
    leak = max(
        unseen(probe.influence(problem, of), probe.visible(mask), ignore_diagonal=probe.is_self)
        for of in ("key", "value")
    )
    columns = probe.column_mask(q_len, k_len)
    problem = probe.masked(problem, columns)
    moved = _replace_hidden(probe, problem, columns[0])
    rows = columns[0] if probe.is_self else torch.ones(q_len).bool()
    before, after = probe.output(problem), probe.output(moved)
    gap = max(
        leak, distance(after[:, rows], before[:, rows]), _gradient_gap(probe, problem, moved, rows)
    )
    return probe.at_most(gap, "they change output or gradient by")


def _replace_hidden(probe: Probe, problem: Problem, visible: Tensor) -> Problem:
    def moved(x: Tensor) -> Tensor:
        return torch.where(visible[:, None], x, x + 30.0)

    key, value = moved(problem.key), moved(problem.value)
    return Problem(key if probe.is_self else problem.query, key, value, problem.mask)


def _gradient_gap(probe: Probe, problem: Problem, moved: Problem, rows: Tensor) -> float:
    """How much the gradient of the visible rows' output differs between two problems."""
    (before, _), leaves = probe.run_on_leaves(problem)
    (after, _), moved_leaves = probe.run_on_leaves(moved)
    cotangent = probe.draw(*before[:, rows].shape)
    expected = gradients(before[:, rows] * cotangent, leaves)
    actual = gradients(after[:, rows] * cotangent, moved_leaves)
    return max(distance(a, e) for a, e in zip(actual, expected, strict=True))


@check(
    "A mask is used on another item's scores. Heads folded into the batch as (B * H) need "
    "mask.repeat_interleave(H, dim=0); mask.repeat(H, 1, 1) is in the order (H * B).",
    requires=(*_SOUND, "hidden_keys_have_no_influence", "length_1_works"),
)
def mask_of_each_item(probe: Probe) -> Finding:
    """Each batch item is masked by its own mask, in every head."""
    probe.need_mask()
    if not probe.mask_has_items:
        raise Skip(f'the mask "{probe.layer.mask_shape}" is the same for all items')
    length = 5
    problem = probe.problem(length, length, scale=2.0)
    lengths = 1 + torch.arange(len(problem.query))  # item b sees b + 1 keys
    own = torch.arange(length) < lengths[:, None, None]
    problem = replace(problem, mask=own.expand(-1, length, -1))
    together = probe.output(problem)
    alone = torch.cat([probe.output(problem[i : i + 1]) for i in range(len(together))])
    return probe.at_most(distance(together, alone), "in a batch, an item's output changes by")


@check(
    "A row of scores that is -inf throughout becomes NaN in the softmax, and one that is -1e9 "
    "throughout becomes uniform over hidden keys. Set the weights of such rows to 0: "
    "softmax(...).masked_fill(hidden, 0.0), with finite fills so that gradients stay finite.",
    requires=(*_SOUND, "hidden_keys_have_no_influence"),
)
def fully_masked_rows(probe: Probe) -> Finding:
    """A query that may attend to nothing gives finite numbers (0 where the caller asks for it)."""
    probe.need_mask()
    if probe.setting.fully_masked == "any":
        raise Skip("declared undefined (fully_masked='any')")
    problem = _problem_with_blind_query(probe)
    try:
        (output, weights), leaves = probe.run_on_leaves(problem)
    except (ValueError, TypeError) as error:
        raise Skip(f"it refuses such a mask: {error_text(error)}") from error
    blind = output[0, 0]
    if not blind.isfinite().all() or (weights is not None and not weights.isfinite().all()):
        return Finding(False, "NaN")
    if not all(gradient.isfinite().all() for gradient in gradients(output, leaves)):
        return Finding(False, "a finite output, but gradients are NaN")
    moved = replace(problem, value=problem.value + 3.0 * probe.draw(*problem.value.shape))
    if probe.is_self:
        moved = _replace_hidden(probe, problem, torch.arange(5) == 0)
    gap = distance(probe.output(moved)[0, 0], blind)
    if gap > probe.tolerance:
        return Finding(
            probe.setting.fully_masked == "finite", "finite: an average of hidden values"
        )
    zero = float(blind.detach().abs().max()) <= probe.tolerance
    return Finding(True, "0" if zero else "a constant (the output bias)")


def _problem_with_blind_query(probe: Probe) -> Problem:
    problem = probe.problem(5, 5)
    mask = torch.ones(len(problem.query), 5, 5, dtype=torch.bool)
    items = slice(0, 1) if probe.mask_has_items else slice(None)
    mask[items, 0 if probe.mask_has_queries else slice(None)] = False
    return replace(problem, mask=mask.to(problem.query.device))


@check(
    "The causal mask is missing, transposed (triu for tril), inverted, or made of 0 and 1 and "
    "added to the scores. A view without a transpose leaks the future as well.",
    requires=_BASE,
)
def no_look_into_the_future(probe: Probe) -> Finding:
    """A causal layer's output has no gradient from later positions."""
    _need_causal(probe)
    gap = _future(probe, 5, 5)
    return probe.at_most(gap, "influence of the future, at most")


def _future(probe: Probe, q_len: int, k_len: int) -> float:
    problem, visible = probe.problem(q_len, k_len, scale=2.0), causal_mask(q_len, k_len)
    return max(
        unseen(probe.influence(problem, of), visible, ignore_diagonal=False)
        for of in ("key", "value")
    )


@check(
    "Off by one: tril(diagonal=-1), or `<` for `<=`, hides a position from itself, and everything "
    "from the first.",
    requires=("no_look_into_the_future", *_BASE),
)
def causal_rows_see_themselves(probe: Probe) -> Finding:
    """A causal layer lets each position attend to itself and to all before it."""
    _need_causal(probe)
    visible = causal_mask(5)
    if probe.has_weights():
        seen = probe.weights(probe.problem(5, 5, scale=0.3)).amax(dim=(0, 1)) > 0
    else:
        probe.need_cross("without its weights it cannot be seen whether a row attends to itself")
        seen = probe.influences(probe.problem(5, 5, scale=0.3))
    count = int((seen & visible).sum())
    return Finding(
        count == int(visible.sum()), f"{count} of {int(visible.sum())} visible pairs are seen"
    )


@check(
    "With more keys than queries (a cache), the queries are the last positions: "
    "torch.ones(L_q, L_k).tril(diagonal=L_k - L_q). The is_causal of "
    "F.scaled_dot_product_attention aligns at the upper left instead.",
    requires=("no_look_into_the_future", "causal_rows_see_themselves", *_BASE),
)
def causal_alignment(probe: Probe) -> Finding:
    """With more keys than queries, a causal layer aligns its mask at the lower right."""
    _need_causal(probe)
    probe.need_cross("there are as many keys as queries")
    visible = causal_mask(3, 5)
    seen = probe.influences(probe.problem(3, 5, scale=0.3))
    wrong = int((seen != visible).sum())
    return Finding(wrong == 0, f"{wrong} of {visible.numel()} pairs are seen or hidden wrongly")


def _need_causal(probe: Probe) -> None:
    if not probe.setting.causal:
        raise Skip("causal=False: it makes no causal mask of its own")
