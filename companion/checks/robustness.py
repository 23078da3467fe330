"""Checks of what breaks late: training mode, other dtypes, large scores, other lengths."""

from __future__ import annotations

import torch
from torch import Tensor

from companion.checks.probe import (
    TOLERANCE,
    Finding,
    Probe,
    Problem,
    Skip,
    distance,
    gradients,
    number,
)
from companion.checks.registry import check, error_text

_MASKED = (
    "batch_items_do_not_mix",
    "rows_sum_to_1",
    "mask_is_used",
    "mask_polarity",
    "mask_axis",
    "masked_rows_sum_to_1",
)


@check(
    "The path without weights computes something else: compare its mask, scale and dropout with "
    "those of the path with weights."
)
def same_output_without_weights(probe: Probe) -> Finding:
    """Asking for the weights does not change the output, with a mask and without."""
    flag = probe.layer.convention.weights_flag
    if flag is None:
        raise Skip("it has no argument such as need_weights")
    problems = [probe.problem(4, 4, scale=2.0)]
    if probe.layer.mask_polarity != "none":
        problems.append(probe.masked(problems[0], probe.square_mask()))
    with torch.no_grad():  # torch's fast path runs without gradients alone
        gap = max(
            distance(probe.run(p, need_weights=False).output, probe.run(p).output) for p in problems
        )
    return probe.at_most(gap, f"{flag}=False changes the output by")


@check(
    "The weights are returned after dropout. Return those before it: "
    "`output = F.dropout(weights, p, self.training) @ value; return output, weights`."
)
def weights_before_dropout(probe: Probe) -> Finding:
    """In training mode too, the weights that are returned sum to 1."""
    problem = probe.problem(5, 12)
    training = [(m, m.training) for module in probe.layer.modules for m in module.modules()]
    try:
        for module, _ in training:
            module.training = True
        torch.manual_seed(probe.setting.seed)  # the caller's state is restored by check_attention
        runs = [probe.run(problem) for _ in range(4)]
        weights = probe.weights(problem)
    finally:
        for module, mode in training:
            module.training = mode
    if all(torch.equal(run.output, runs[0].output) for run in runs):
        raise Skip("it has no dropout")
    sums = weights.sum(-1)
    return probe.at_most(distance(sums, torch.ones_like(sums)), "in training, row sums are off by")


@check(
    "A tensor of a fixed dtype meets the scores, such as a float32 mask or torch.tensor(scale) in "
    "float64: make it with dtype=scores.dtype."
)
def dtype_is_kept(probe: Probe) -> Finding:
    """The output has the dtype of the inputs: float64, float32, bfloat16 or float16."""
    kept: list[str] = []
    wrong: list[str] = []
    refused: list[str] = []
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
        with probe.cast(dtype) as other:
            try:
                output, weights = other.run(other.problem())
            except RuntimeError:
                refused.append(_short(dtype))
                continue
        found = {output.dtype} | ({weights.dtype} if weights is not None else set())
        (kept if found == {dtype} else wrong).append(_short(dtype))
    if not kept and not wrong:
        raise Skip("it runs in no other dtype")
    parts = [("kept", kept), ("not kept", wrong), ("does not run", refused)]
    return Finding(
        not wrong, "; ".join(f"{what}: {', '.join(names)}" for what, names in parts if names)
    )


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


@check(
    "The fill value does not fit: -1e9 overflows in float16, whose lowest number is -65504. Fill "
    "with torch.finfo(scores.dtype).min or -inf.",
    requires=_MASKED,
)
def half_precision_masks(probe: Probe) -> Finding:
    """Masked attention gives the same in float16 and bfloat16, up to rounding."""
    probe.need_mask()
    mask = probe.square_mask()
    expected = probe.output(Probe(probe.layer, probe.setting).problem(4, 4, mask=mask))
    gaps, refused = [], []
    for dtype in (torch.float16, torch.bfloat16):
        with probe.cast(dtype) as half:
            problem = half.problem(4, 4)
            try:
                half.output(problem)
            except RuntimeError as error:
                refused.append(f"{_short(dtype)} ({error_text(error)})")
                continue
            try:
                output = half.output(half.masked(problem, mask))
            except RuntimeError as error:
                return Finding(False, f"{_short(dtype)}: raised {error_text(error)}")
        gaps.append((distance(output.to(expected.dtype), expected), TOLERANCE[dtype], dtype))
    if not gaps:
        raise Skip(f"it does not run in {', '.join(refused)}")
    wrong = [
        f"{_short(dtype)}: off by {number(gap)}" for gap, bound, dtype in gaps if not gap <= bound
    ]
    names = ", ".join(_short(dtype) for *_, dtype in gaps)
    return Finding(not wrong, "; ".join(wrong) or f"finite and equal up to rounding in {names}")


@check(
    "exp overflows: use torch.softmax, or subtract each row's largest score before exp.",
    requires=("rows_sum_to_1",),
)
def large_scores_stay_finite(probe: Probe) -> Finding:
    """Inputs 10 000 times larger give a finite output and finite gradients."""
    if probe.setting.dtype == torch.float16:
        raise Skip("float16 itself ends at 65504")
    problem = probe.problem(scale=1e4)
    if not probe.is_self:
        problem = Problem(problem.query, problem.key * 1e4, problem.value)
    (output, _), leaves = probe.run_on_leaves(problem)
    if not output.isfinite().all():
        return Finding(False, "the output is not finite")
    finite = all(gradient.isfinite().all() for gradient in gradients(output, leaves))
    return Finding(finite, "finite" if finite else "the gradients are not finite")


@check(
    "A layer is made and never called, is called on a detached copy (.detach(), .data, "
    "torch.no_grad()), or is kept in a plain list."
)
def every_parameter_learns(probe: Probe) -> Finding:
    """The gradient reaches every parameter."""
    parameters = {name: p for name, p in probe.parameters.items() if p.requires_grad}
    if not parameters:
        raise Skip("it has no parameters that can be seen")
    output = probe.output(probe.problem(scale=2.0))
    if not output.requires_grad:
        return Finding(False, "the output records no gradient")
    loss = (output * probe.draw(*output.shape)).sum()
    reached = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
    unreached = [n for n, g in zip(parameters, reached, strict=True) if _is_dead(g)]
    seen = f"{len(parameters) - len(unreached)} of {len(parameters)} parameters"
    return Finding(not unreached, f"{seen}; not {', '.join(unreached)}" if unreached else seen)


def _is_dead(gradient: Tensor | None) -> bool:
    # The bias of the key projection has gradient 0 by right: it moves all scores of a row alike.
    return gradient is None or (gradient.ndim > 1 and not bool(gradient.any()))


@check(
    "squeeze() drops an axis of size 1: name the axis, squeeze(dim), or use [..., 0]. A softmax "
    "over the wrong axis shows here as well.",
)
def length_1_works(probe: Probe) -> Finding:
    """One query and one key give what they give in any batch."""
    problem = probe.problem(1, 1)
    output, one = probe.output(problem), probe.output(problem[:1])
    expected = (len(problem.query), 1)
    if output.shape[:2] != expected or one.shape[:2] != (1, 1):
        return Finding(False, f"output {tuple(output.shape)}, alone {tuple(one.shape)}")
    return probe.at_most(distance(one, output[:1]), "one item alone differs by")


@check(
    "A size is fixed at construction: a mask, bias or encoding for one length. Make it from the "
    "inputs' lengths, or say so in its documentation.",
    requires=("rows_sum_to_1", "head_split", "queries_do_not_mix"),
)
def new_length_works(probe: Probe) -> Finding:
    """Lengths that it has not met before work, and earlier queries get the same."""
    problem = probe.problem(37, 37 if probe.is_self else 41)
    output = probe.output(problem)
    holds = output.shape[:2] == problem.query.shape[:2] and bool(output.isfinite().all())
    if not holds or probe.is_self or probe.setting.causal:
        return Finding(
            holds, f"output {tuple(output.shape[:2])} for {tuple(problem.query.shape[:2])}"
        )
    fewer = Problem(problem.query[:, :3], problem.key, problem.value)
    gap = distance(probe.output(fewer), output[:, :3])
    return probe.at_most(gap, "queries get another output among 37 by")
