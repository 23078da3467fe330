"""One way to call attention, whatever its own way is.

The checks call ``(query, key, value, mask)``, batch first, with a boolean mask ``(B, L_q, L_k)``
where True means "may attend". A :class:`Layer` turns that into what a callable expects: which mask
polarity and shape, three inputs or one, mask by position or by name. Interfaces that differ more
have an adapter: :func:`torch_attention`, :func:`sequence_first`, :func:`hugging_face`.
"""

from __future__ import annotations

import dis
import functools
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from companion.masks import to_torch_attn_mask

Kind: TypeAlias = Literal["cross", "self"]
MaskPolarity: TypeAlias = Literal["keep", "ignore", "additive", "lengths", "none"]

# Tried in this order where the caller does not say; other axes in the same order work as well.
MASK_SHAPES = ("B L_q L_k", "B 1 L_q L_k", "B*H L_q L_k", "L_q L_k", "B L_k", "B 1 1 L_k")
_MASK_AXES = ("B", "H", "L_q", "L_k")
_WEIGHTS_FLAGS = (
    "need_weights",
    "return_weights",
    "output_attentions",
    "return_attention",
    "return_attention_weights",
    "return_attention_scores",
)


class Output(NamedTuple):
    """What attention gives: output ``(B, L_q, d)``, and the weights where it returns them."""

    output: Tensor
    weights: Tensor | None


@dataclass(frozen=True)
class Convention:
    """How a callable wants its arguments.

    Attributes:
        inputs: 3 for query, key and value; 1 for one sequence.
        takes_mask: whether there is an argument for a mask.
        mask_name: its name; ``None`` where it is passed by position.
        weights_flag: name of the boolean argument that asks for the weights, if there is one.
    """

    inputs: int
    takes_mask: bool
    mask_name: str | None = None
    weights_flag: str | None = None


def read_convention(fn: Callable[..., Any], kind: Kind) -> Convention:
    """Read from its signature how a callable wants its arguments.

    >>> read_convention(lambda query, key, value, *, mask=None: query, "cross")
    Convention(inputs=3, takes_mask=True, mask_name='mask', weights_flag=None)
    >>> read_convention(lambda x: x, "self")
    Convention(inputs=1, takes_mask=False, mask_name=None, weights_flag=None)
    """
    inputs = 1 if kind == "self" else 3
    try:
        signature = inspect.signature(fn.forward if isinstance(fn, nn.Module) else fn)
    except (TypeError, ValueError):  # a builtin such as F.scaled_dot_product_attention
        return Convention(inputs, takes_mask=True)
    parameters = list(signature.parameters.values())
    by_position = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if kind == "self" and sum(p.default is p.empty for p in by_position) >= 3:
        inputs = 3
    flag = next((p.name for p in parameters if p.name in _WEIGHTS_FLAGS), None)
    rest = [p for p in parameters if p not in by_position[:inputs] and p.name != flag]
    by_name = [p for p in rest if p.kind != p.VAR_KEYWORD and _names_a_mask(p.name)]
    if by_name:
        return Convention(inputs, True, min(by_name, key=_mask_preference).name, flag)
    positional = any(p in by_position or p.kind == p.VAR_POSITIONAL for p in rest)
    return Convention(inputs, positional, None, flag)


def _names_a_mask(name: str) -> bool:
    return any(part in name for part in ("mask", "valid", "length"))


def _mask_preference(parameter: inspect.Parameter) -> bool:
    return parameter.name == "key_padding_mask"


class Layer:
    """A callable, called in the one way that the checks use.

    Args:
        fn: what to call.
        kind: ``"cross"`` calls ``fn(query, key, value, mask)``; ``"self"`` calls ``fn(x, mask)``,
            or ``fn(x, x, x, mask)`` where ``fn`` requires three inputs.
        num_heads: for masks that are repeated for each head.
        mask_polarity: ``"keep"`` (True = may attend), ``"ignore"`` (True = hidden), ``"additive"``
            (0 and -inf, added to the scores), ``"lengths"`` (the number of visible keys of each
            item) or ``"none"``.
        mask_shape: axes of the mask, such as ``"B 1 L_q L_k"``; see :data:`MASK_SHAPES`.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        *,
        kind: Kind = "cross",
        num_heads: int = 1,
        mask_polarity: MaskPolarity = "keep",
        mask_shape: str = "B L_q L_k",
    ) -> None:
        self.name = _name(fn)
        self.modules = tuple(dict.fromkeys(modules_behind(fn)))
        self.fn = torch_attention(fn) if isinstance(fn, nn.MultiheadAttention) else fn
        self.kind = kind
        self.num_heads = num_heads
        self.convention = read_convention(self.fn, kind)
        self.mask_polarity = mask_polarity if self.convention.takes_mask else "none"
        self.mask_shape = check_mask_shape(mask_shape)

    def __call__(
        self,
        query: Float[Tensor, "B L_q d_q"],
        key: Float[Tensor, "B L_k d_k"],
        value: Float[Tensor, "B L_k d_v"],
        mask: Bool[Tensor, "B L_q L_k"] | None = None,
        *,
        need_weights: bool = True,
    ) -> Output:
        """Call it on copies, so that what it does to its inputs stays its own."""
        inputs = (query,) if self.kind == "self" else (query, key, value)
        encoded = None if mask is None else self.encode_mask(mask, query.dtype)
        return self.call([tensor.clone() for tensor in inputs], encoded, need_weights=need_weights)

    def call(
        self, inputs: list[Tensor], mask: Tensor | None, *, need_weights: bool = True
    ) -> Output:
        """Call it on these very tensors, and on a mask that is already its own."""
        arguments = inputs * 3 if len(inputs) < self.convention.inputs else list(inputs)
        options: dict[str, Any] = {}
        if mask is not None and self.convention.mask_name is None:
            arguments.append(mask)
        elif mask is not None:
            options[str(self.convention.mask_name)] = mask
        if self.convention.weights_flag:
            options[self.convention.weights_flag] = need_weights
        return _read_output(self.fn(*arguments, **options))

    def encode_mask(self, mask: Bool[Tensor, "B L_q L_k"], dtype: torch.dtype) -> Tensor:
        """Turn the checks' mask into the one that the callable takes."""
        if self.mask_polarity == "lengths":
            return mask[:, 0].sum(-1)
        shaped = shape_mask(mask, self.mask_shape, self.num_heads)
        if self.mask_polarity == "keep":
            return shaped
        if self.mask_polarity == "ignore":
            return ~shaped
        return torch.zeros_like(shaped, dtype=dtype).masked_fill(~shaped, -torch.inf)


def _read_output(returned: Any) -> Output:
    """Read a tensor, or a tuple or a model output that begins with one."""
    if isinstance(returned, Tensor):
        return Output(returned, None)
    parts = list(returned.values() if isinstance(returned, dict) else returned or ())
    if not parts or not isinstance(parts[0], Tensor):
        raise TypeError(f"expected a tensor or (output, weights), got {type(returned).__name__}")
    weights = parts[1] if len(parts) > 1 else None
    return Output(parts[0], weights if isinstance(weights, Tensor) else None)


def check_mask_shape(shape: str) -> str:
    """Refuse a mask shape that is not made of the axes ``B H L_q L_k``, in this order."""
    axes = shape.split()
    known = [_MASK_AXES.index(axis) for axis in axes if axis in _MASK_AXES]
    sound = known == sorted(set(known)) and axes[-1:] == ["L_k"]
    if shape != "B*H L_q L_k" and not (sound and set(axes) <= {*_MASK_AXES, "1"}):
        raise ValueError(
            "mask_shape must name the axes B, H (or 1), L_q (or 1) and L_k in this order, "
            f"such as {', '.join(map(repr, MASK_SHAPES))}; got {shape!r}"
        )
    return shape


def shape_mask(
    mask: Bool[Tensor, "B L_q L_k"], shape: str, num_heads: int = 1
) -> Bool[Tensor, "..."]:
    """Give a mask the axes that ``shape`` names.

    >>> shape_mask(torch.ones(2, 3, 4, dtype=torch.bool), "B 1 L_q L_k").shape
    torch.Size([2, 1, 3, 4])
    """
    if shape == "B*H L_q L_k":
        return mask.repeat_interleave(num_heads, dim=0)
    full = mask[:, None].expand(-1, num_heads, -1, -1)
    axes = shape.split()
    for position, axis in enumerate(_MASK_AXES):
        if axis not in axes:
            full = full.narrow(position, 0, 1)
    sizes = dict(zip(_MASK_AXES, full.shape, strict=True))
    return full.reshape([sizes.get(axis, 1) for axis in axes])


def torch_attention(
    module: nn.MultiheadAttention, *, need_weights: bool | None = None
) -> Callable[..., Any]:
    """Call :class:`torch.nn.MultiheadAttention` as ``(query, key, value, mask)``, batch first.

    Args:
        module: with ``batch_first`` True or False.
        need_weights: ``True`` or ``False`` fixes it; ``None`` lets the checks try both.

    >>> attention = torch_attention(nn.MultiheadAttention(8, 2))
    >>> x = torch.zeros(3, 4, 8)
    >>> output, weights = attention(x, x, x)
    >>> output.shape, weights.shape
    (torch.Size([3, 4, 8]), torch.Size([3, 2, 4, 4]))
    """

    def attention(
        query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, need_weights: bool
    ) -> Any:
        if mask is not None:
            mask = to_torch_attn_mask(
                mask, batch_size=len(query), num_heads=module.num_heads, q_len=query.shape[1]
            )
        one_sequence = query is key and key is value  # torch's fast path looks at this
        if not module.batch_first:
            query, key, value = (tensor.transpose(0, 1) for tensor in (query, key, value))
            if one_sequence:
                key = value = query
        output, weights = module(
            query, key, value, attn_mask=mask, need_weights=need_weights,
            average_attn_weights=False,
        )  # fmt: skip
        return output if module.batch_first else output.transpose(0, 1), weights

    def either(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None = None,
        *,
        need_weights: bool = True,
    ) -> Any:
        return attention(query, key, value, mask, need_weights)

    def fixed(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Any:
        return attention(query, key, value, mask, bool(need_weights))

    chosen: Callable[..., Any] = either if need_weights is None else fixed
    chosen.__qualname__ = type(module).__qualname__  # the name that a report shows
    return chosen


def sequence_first(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Call what takes and returns ``(length, batch, features)`` with the batch first.

    Masks, and weights that are returned, keep their shape.

    >>> def attend(query, key, value, mask=None):
    ...     return query  # (L_q, B, d)
    >>> sequence_first(attend)(torch.zeros(2, 5, 3), None, None).output.shape
    torch.Size([2, 5, 3])
    """

    @functools.wraps(fn.forward if isinstance(fn, nn.Module) else fn)
    def batch_first(*inputs: Any, **options: Any) -> Any:
        turned = [x.transpose(0, 1) if _is_sequence(x) else x for x in inputs]
        output, weights = _read_output(fn(*turned, **options))
        return Output(output.transpose(0, 1), weights)

    return batch_first


def _is_sequence(argument: Any) -> bool:
    return isinstance(argument, Tensor) and argument.is_floating_point() and argument.ndim == 3


def hugging_face(module: nn.Module) -> Callable[..., Any]:
    """Call a Hugging Face style self-attention as ``(x, mask)``.

    Such a layer is called as ``module(hidden_states, attention_mask=…, output_attentions=True)``
    with an additive mask ``(B, 1, L_q, L_k)`` of 0 and the lowest finite number, and returns a
    tuple whose second entry, if there is one, holds the weights.
    """

    def attention(
        x: Tensor, mask: Tensor | None = None, *, output_attentions: bool = True
    ) -> Output:
        additive = None
        if mask is not None:
            lowest = torch.finfo(x.dtype).min
            additive = torch.zeros_like(mask, dtype=x.dtype).masked_fill(~mask, lowest)[:, None]
        options: dict[str, Any] = {"attention_mask": additive}
        if "output_attentions" in inspect.signature(module.forward).parameters:
            options["output_attentions"] = output_attentions
        return _read_output(module(x, **options))

    attention.__qualname__ = type(module).__qualname__
    return attention


def modules_behind(fn: Any) -> Iterator[nn.Module]:
    """Find the modules that a callable stands for: itself, its arguments, what it refers to."""
    if isinstance(fn, nn.Module):
        yield fn
        return
    held = [getattr(fn, "__self__", None), getattr(fn, "__wrapped__", None)]
    held += [cell.cell_contents for cell in getattr(fn, "__closure__", None) or () if _full(cell)]
    if inspect.isfunction(fn):  # a module of its namespace, as a cell of a notebook uses it
        named = {step.argval for step in dis.get_instructions(fn) if step.opname == "LOAD_GLOBAL"}
        found = (fn.__globals__.get(name) for name in sorted(named))
        held += [thing for thing in found if isinstance(thing, nn.Module)]
    if isinstance(fn, functools.partial):
        held += [fn.func, *fn.args, *fn.keywords.values()]
    elif not inspect.isroutine(fn):
        held += list(getattr(fn, "__dict__", {}).values())
    for thing in held:
        if isinstance(thing, nn.Module) or inspect.isfunction(thing) or inspect.ismethod(thing):
            yield from modules_behind(thing)


def _full(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True


def _name(fn: Callable[..., Any]) -> str:
    if isinstance(fn, functools.partial):
        return _name(fn.func)
    named = fn if inspect.isroutine(fn) else type(fn)
    return str(getattr(named, "__qualname__", type(fn).__name__)).rsplit("<locals>.", 1)[-1]
