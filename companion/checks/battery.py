"""The battery: all checks, and how to run them on any attention."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, get_args

import torch
from torch import nn

from companion.attention import check_positive
from companion.checks import masking, order, robustness, weights
from companion.checks.adapters import MASK_SHAPES, Kind, Layer, MaskPolarity, check_mask_shape
from companion.checks.probe import TOLERANCE, FullyMasked, Probe, Setting
from companion.checks.registry import Check, run_checks
from companion.checks.report import Report

CHECKS: tuple[Check, ...] = (
    weights.shapes,
    weights.dropout_off_in_eval,
    weights.batch_items_do_not_mix,
    weights.inputs_are_not_modified,
    robustness.length_1_works,
    weights.rows_sum_to_1,
    weights.weights_are_not_negative,
    weights.scores_use_the_key,
    weights.scores_use_the_query,
    order.head_split,
    order.queries_do_not_mix,
    order.key_order_is_irrelevant,
    order.query_order_is_kept,
    weights.output_is_weighted_values,
    order.heads_attend_separately,
    order.output_projection_mixes_heads,
    weights.scale,
    masking.no_look_into_the_future,
    masking.causal_rows_see_themselves,
    masking.causal_alignment,
    masking.mask_is_used,
    masking.mask_polarity,
    masking.mask_axis,
    masking.masked_rows_sum_to_1,
    masking.hidden_weights_are_0,
    masking.hidden_keys_have_no_influence,
    masking.mask_of_each_item,
    masking.fully_masked_rows,
    robustness.same_output_without_weights,
    robustness.weights_before_dropout,
    robustness.dtype_is_kept,
    robustness.half_precision_masks,
    robustness.large_scores_stay_finite,
    robustness.every_parameter_learns,
    robustness.new_length_works,
)


def check_attention(
    fn: Callable[..., Any],
    *,
    kind: Kind = "cross",
    query_dim: int | None = None,
    key_dim: int | None = None,
    value_dim: int | None = None,
    num_heads: int | None = None,
    causal: bool = False,
    scaled: bool = True,
    ordered: bool = False,
    mask_polarity: MaskPolarity = "keep",
    mask_shape: str | None = None,
    fully_masked: FullyMasked = "finite",
    seed: int = 0,
) -> Report:
    r"""Run every check on an attention, and report what holds, what fails, and what cannot be seen.

    Args:
        fn: a function or module, called as ``fn(query, key, value, mask)`` (with
            ``kind="self"``: ``fn(x, mask)``), batch first. It returns the output ``(B, L_q, d_v)``,
            alone or with the weights ``(B, L_q, L_k)`` or ``(B, H, L_q, L_k)``.
            :class:`torch.nn.MultiheadAttention` is called in its own way; other interfaces have
            adapters, see ``companion.checks.adapters``.
        kind: ``"cross"`` or ``"self"``.
        query_dim: features of a query; by default ``fn.embed_dim``, ``fn.d_model`` or 16.
        key_dim: features of a key; by default ``fn.kdim`` or ``query_dim``.
        value_dim: features of a value; by default ``fn.vdim`` or ``key_dim``.
        num_heads: by default ``fn.num_heads`` or 1.
        causal: whether ``fn`` hides the future by itself, without being given a mask.
        scaled: whether dot products are meant to be divided by :math:`\sqrt{d}`.
        ordered: whether ``fn`` knows positions on purpose, so that order may matter.
        mask_polarity: what ``fn`` takes: ``"keep"`` (booleans, True = may attend), ``"ignore"``
            (True = hidden), ``"additive"`` (0 and -inf), ``"lengths"`` (integers ``(B,)``) or
            ``"none"``.
        mask_shape: the mask's axes, such as ``"B 1 L_q L_k"`` or ``"L_q L_k"``; by default the
            first of the ``MASK_SHAPES`` in the adapters that ``fn`` accepts.
        fully_masked: what a query that may attend to nothing should give: ``"finite"`` (no NaN),
            ``"zero"`` (nothing of the hidden values either), or ``"any"`` where it is undefined.
        seed: of the inputs.

    Returns:
        The report. A property that the interface gives no way to see is skipped, with the reason,
        never passed. One that rests on a property that failed is skipped too, so that the failures
        name the mistake and not its consequences.

    Raises:
        TypeError: ``fn`` cannot be called, or a size is not an integer.
        ValueError: a size is not positive, or an option is unknown.

    The attention is left as it was: training mode, parameters and the global random state.

    >>> import torch.nn.functional as F
    >>> report = check_attention(F.scaled_dot_product_attention)
    >>> report.failed
    ()
    >>> report["scale"].seen
    'scores = 0.25 × q·k, expected 0.25'
    """
    if not callable(fn):
        raise TypeError(f"fn must be a function or a module, got {type(fn).__name__}")
    _check_choice("kind", kind, Kind)
    _check_choice("mask_polarity", mask_polarity, MaskPolarity)
    _check_choice("fully_masked", fully_masked, FullyMasked)
    if query_dim is None:
        query_dim = _attribute(fn, "embed_dim", "d_model") or 16
    if key_dim is None:
        key_dim = _attribute(fn, "kdim") or query_dim
    if value_dim is None:
        value_dim = _attribute(fn, "vdim") or key_dim
    if num_heads is None:
        num_heads = _attribute(fn, "num_heads") or 1
    check_positive(query_dim=query_dim, key_dim=key_dim, value_dim=value_dim, num_heads=num_heads)
    layer = Layer(fn, kind=kind, num_heads=num_heads, mask_polarity=mask_polarity)
    dtype, device = _where(layer)
    setting = Setting(
        kind, query_dim, key_dim, value_dim, num_heads, causal, scaled, ordered,
        fully_masked, seed, dtype, device,
    )  # fmt: skip
    with _left_as_it_was(layer, setting):
        layer.mask_shape = check_mask_shape(mask_shape) if mask_shape else _accepted(layer, setting)
        results = run_checks(CHECKS, lambda: Probe(layer, setting))
        return Report(layer.name, _describe(layer, setting), results)


def assert_attention(fn: Callable[..., Any], **options: Any) -> None:
    """Run every check, and fail with the properties that do not hold: for a test of your own.

    Args:
        fn: the attention.
        **options: those of :func:`check_attention`.

    Raises:
        AttentionCheckError: a check failed. The message names each, with the number and a hint.

    >>> assert_attention(torch.nn.functional.scaled_dot_product_attention)
    """
    __tracebackhide__ = True
    check_attention(fn, **options).raise_if_failed()


def _check_choice(name: str, value: object, choices: Any) -> None:
    if value not in get_args(choices):
        expected = ", ".join(map(repr, get_args(choices)))
        raise ValueError(f"{name} must be one of {expected}, got {value!r}")


def _attribute(fn: object, *names: str) -> int | None:
    """A size that a module carries under one of these names."""
    if not isinstance(fn, nn.Module):
        return None
    sizes = (getattr(fn, name, None) for name in names)
    return next((size for size in sizes if isinstance(size, int)), None)


def _where(layer: Layer) -> tuple[torch.dtype, torch.device]:
    """Dtype and device of the layer's parameters."""
    for module in layer.modules:
        for parameter in module.parameters():
            if parameter.dtype in TOLERANCE:
                return parameter.dtype, parameter.device
    return torch.float32, torch.device("cpu")


@contextmanager
def _left_as_it_was(layer: Layer, setting: Setting) -> Iterator[None]:
    """Examine in eval mode, with gradients; restore modes and random state afterwards."""
    modes = [(m, m.training) for module in layer.modules for m in module.modules()]
    devices = [setting.device] if setting.device.type == "cuda" else []
    with ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng(devices))
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")  # odd inputs are on purpose
        torch.manual_seed(setting.seed)
        try:
            for module, _ in modes:
                module.training = False
            yield
        finally:
            for module, mode in modes:
                module.training = mode


def _accepted(layer: Layer, setting: Setting) -> str:
    """The first mask shape that the layer accepts, and answers with its ordinary output shape."""
    if layer.mask_polarity == "none":
        return MASK_SHAPES[0]
    probe = Probe(layer, setting)
    for shape in MASK_SHAPES:
        layer.mask_shape = shape
        try:
            problem = probe.problem(4, 4)
            masked = probe.output(probe.masked(problem, probe.square_mask()))
            if masked.shape == probe.output(problem).shape:
                return shape
        except Exception:  # noqa: S112
            continue
    return MASK_SHAPES[0]


def _describe(layer: Layer, setting: Setting) -> str:
    heads = "1 head" if setting.num_heads == 1 else f"{setting.num_heads} heads"
    mask = f"mask {layer.mask_polarity!r}"
    if layer.mask_polarity == "none":
        mask = "no mask"
    elif layer.mask_polarity != "lengths":
        mask += f" ({layer.mask_shape})"
    causal = ["causal"] if setting.causal else []
    parts = [f"{setting.kind}-attention", heads, *causal, mask, str(setting.dtype)[6:]]
    return ", ".join(parts)
