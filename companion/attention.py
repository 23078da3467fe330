"""The step that every attention in the book shares: masked softmax, then a weighted sum.

Kinds of attention differ in how they compute the scores. What follows the scores is always this.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import Parameter

from companion.masks import as_boolean_mask, causal_mask


def masked_softmax(
    scores: Float[Tensor, "*batch L_q L_k"], mask: Bool[Tensor, "..."] | None = None
) -> Float[Tensor, "*batch L_q L_k"]:
    r"""Turn scores into weights: non-negative, summing to 1 over the keys, 0 where masked.

    .. math:: \alpha_{ij} = \frac{m_{ij}\, e^{e_{ij}}}{\sum_{l} m_{il}\, e^{e_{il}}}

    A query that may attend to nothing gets weights 0, not NaN and not a uniform row.

    Args:
        scores: ``(..., L_q, L_k)``, logits :math:`e_{ij}` of query i for key j.
        mask: True = may attend; broadcasts to the scores.

    Returns:
        Weights :math:`\alpha_{ij}`, of the shape and dtype of the scores.

    Raises:
        TypeError: scores are not floating point, or the mask is.
        ValueError: the mask does not broadcast to the scores.

    Chapter: 2, additive attention.

    >>> scores = torch.tensor([[0.0, 0.0, 9.0]])
    >>> masked_softmax(scores, torch.tensor([True, True, False]))
    tensor([[0.5000, 0.5000, 0.0000]])
    >>> masked_softmax(scores, torch.zeros(3, dtype=torch.bool))
    tensor([[0., 0., 0.]])
    """
    if not scores.is_floating_point():
        raise TypeError(f"scores must be floating point, got dtype {scores.dtype}")
    if mask is None:
        return scores.softmax(dim=-1)
    hidden = ~as_boolean_mask(mask, scores.shape)
    # The lowest finite number, not -inf: a row of -inf would be NaN, and so would its gradient.
    lowest = torch.finfo(scores.dtype).min
    return scores.masked_fill(hidden, lowest).softmax(dim=-1).masked_fill(hidden, 0.0)


def attend(
    scores: Float[Tensor, "*batch L_q L_k"],
    value: Float[Tensor, "*batch L_k d_v"],
    mask: Bool[Tensor, "..."] | None = None,
    *,
    dropout_p: float = 0.0,
) -> tuple[Float[Tensor, "*batch L_q d_v"], Float[Tensor, "*batch L_q L_k"]]:
    r"""Average the values, each weighted by the softmax of its score.

    .. math:: c_i = \sum_j \alpha_{ij}\, v_j

    Args:
        scores: ``(..., L_q, L_k)``.
        value: ``(..., L_k, d_v)``.
        mask: True = may attend; broadcasts to the scores.
        dropout_p: probability with which each weight is dropped for the sum (and the others scaled
            up by ``1 / (1 - dropout_p)``). The returned weights are those before dropout.

    Returns:
        ``(output, weights)`` of shapes ``(..., L_q, d_v)`` and ``(..., L_q, L_k)``.

    Raises:
        TypeError: scores are not floating point, or the mask is.
        ValueError: scores and value disagree on ``L_k``, the mask does not broadcast, or
            ``dropout_p`` is outside ``[0, 1)``.

    Chapter: 2, additive attention.

    >>> scores, value = torch.zeros(1, 2), torch.tensor([[1.0], [3.0]])
    >>> output, weights = attend(scores, value)
    >>> output, weights
    (tensor([[2.]]), tensor([[0.5000, 0.5000]]))
    """
    check_dropout(dropout_p)
    if value.ndim < 2 or scores.ndim < 2 or scores.shape[-1] != value.shape[-2]:
        raise ValueError(
            "scores (..., L_q, L_k) and value (..., L_k, d_v) must agree on L_k, "
            f"got {tuple(scores.shape)} and {tuple(value.shape)}"
        )
    return _average(masked_softmax(scores, mask), value, dropout_p)


def _average(weights: Tensor, value: Tensor, dropout_p: float) -> tuple[Tensor, Tensor]:
    dropped = F.dropout(weights, dropout_p) if dropout_p else weights
    return dropped @ value, weights


def attend_in_place(
    scores: Float[Tensor, "*batch L_q L_k"],
    value: Float[Tensor, "*batch L_k d_v"],
    mask: Bool[Tensor, "..."] | None = None,
    *,
    dropout_p: float = 0.0,
) -> tuple[Float[Tensor, "*batch L_q d_v"], Float[Tensor, "*batch L_q L_k"]]:
    """Do what :func:`attend` does, to scores that nobody needs afterwards: they are overwritten.

    A pass over all scores costs about as much as a product with them, so there are fewer. The mask
    is added where :func:`attend` fills copies; hidden scores must therefore be finite.

    >>> scores, value = torch.zeros(1, 2), torch.tensor([[1.0], [3.0]])
    >>> attend_in_place(scores, value, torch.tensor([True, False]))
    (tensor([[1.]]), tensor([[1., 0.]]))
    """
    blind = None
    if mask is not None:
        bias, blind = additive_mask(as_boolean_mask(mask, scores.shape), scores.dtype)
        scores += bias
    # The gradient of a softmax needs its result, so only without gradients may it overwrite.
    in_place = is_plain(scores) and not scores.requires_grad
    weights = torch.softmax(scores, -1, out=scores) if in_place else scores.softmax(dim=-1)
    if blind is not None:
        weights = weights.masked_fill(blind, 0.0)
    return _average(weights, value, dropout_p)


def additive_mask(
    mask: Bool[Tensor, "*rest L_k"], dtype: torch.dtype
) -> tuple[Float[Tensor, "*rest L_k"], Bool[Tensor, "*rest 1"] | None]:
    """Turn a mask into numbers to add to scores, in the mask's own small shape.

    Args:
        mask: True = may attend.
        dtype: that of the scores.

    Returns:
        ``(bias, blind)``: 0 where a query may attend and -inf where not; and True for the queries
        that may attend to nothing, or None where it is known that there are none. Their bias is 0,
        since a row of -inf would become NaN: set their weights to 0 after the softmax.

    >>> bias, blind = additive_mask(torch.tensor([[True, False], [False, False]]), torch.float32)
    >>> bias, blind
    (tensor([[0., -inf],
            [0., 0.]]), tensor([[False],
            [ True]]))
    """
    mask = mask.reshape(1, -1) if mask.ndim < 2 else mask
    sees = mask.any(-1, keepdim=True)
    # Where one may look, a look at the mask saves a pass over all weights.
    blind = None if is_plain(mask) and sees.all() else ~sees
    visible = mask if blind is None else mask | blind
    return torch.where(visible, 0.0, -torch.inf).to(dtype), blind


def is_plain(*tensors: Tensor) -> bool:
    """Whether ordinary CPU tensors are computed at once, in their own dtype.

    False where operations are compiled, exported or traced, mapped or differentiated forwards
    (:mod:`torch.func`), or cast (autocast). Only where it is True does this package look at numbers
    to choose a faster way, overwrite its intermediate results, or use its own backward passes.

    >>> is_plain(torch.ones(2)), is_plain(torch.ones(2, device="meta"))
    (True, False)
    """
    return (
        not torch.compiler.is_compiling()
        and not torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]
        and all(type(t) in (Tensor, Parameter) and t.device.type == "cpu" for t in tensors)
        and not torch.is_autocast_enabled("cpu")
        and not torch._C._are_functorch_transforms_active()
        and torch.autograd.forward_ad._current_level < 0
    )


def fused_attention(
    query: Float[Tensor, "*batch L_q d_k"],
    key: Float[Tensor, "*batch L_k d_k"],
    value: Float[Tensor, "*batch L_k d_v"],
    mask: Bool[Tensor, "..."] | None = None,
    *,
    scale: float,
    is_causal: bool = False,
    dropout_p: float = 0.0,
) -> Float[Tensor, "*batch L_q d_v"]:
    r"""Attend with scores :math:`s\, q_i^\top k_j`, in torch's fused kernel.

    Gives the output of :func:`attend` on these scores without holding scores or weights. It is
    :func:`torch.nn.functional.scaled_dot_product_attention` with this package's conventions. As
    there, a gradient of a gradient may not exist: for that, ask for the weights.

    One case goes another way, by measurement: on a CPU, the backward pass of the fused kernel is
    slow in 16 bits, 4 times slower than plain products at length 64, 1.5 times at 256, and no
    slower from 512 on, where with ``is_causal`` it skips half. So bfloat16 and float16 tensors that
    need gradients are attended with products, which do hold the weights, for at most 384 * 384
    pairs of positions.

    Args:
        query: ``(..., L_q, d_k)``.
        key: ``(..., L_k, d_k)``.
        value: ``(..., L_k, d_v)``.
        mask: True = may attend; broadcasts to ``(..., L_q, L_k)``.
        scale: :math:`s`, the factor of every score.
        is_causal: hide from each query the keys after it, aligned at the lower right as in
            :func:`companion.causal_mask`; together with a mask, both hold.
        dropout_p: as in :func:`attend`.

    Returns:
        ``(..., L_q, d_v)``; 0 for a query that may attend to nothing.

    Raises:
        TypeError: a floating mask.
        ValueError: a mask that does not broadcast.

    Chapter: 4, scaled dot-product attention.

    >>> query, key, value = torch.randn(1, 2, 4), torch.randn(1, 3, 4), torch.randn(1, 3, 5)
    >>> fused = fused_attention(query, key, value, scale=0.5)
    >>> torch.allclose(fused, attend(0.5 * query @ key.mT, value)[0], atol=1e-6)
    True
    """
    q_len, k_len = query.shape[-2], key.shape[-2]
    if mask is not None:
        mask = as_boolean_mask(mask, (*query.shape[:-1], k_len))
        mask = mask.reshape(1, -1) if mask.ndim < 2 else mask  # torch wants (L_q, L_k) at least
    if _products_are_faster(query, key, value):
        if is_causal:
            causal = causal_mask(q_len, k_len)
            mask = causal if mask is None else mask & causal
        return attend_in_place((query * scale) @ key.mT, value, mask, dropout_p=dropout_p)[0]
    # torch aligns its own is_causal at the upper left, and does not combine it with a mask.
    if is_causal and (mask is not None or q_len != k_len):
        causal = causal_mask(q_len, k_len, device=query.device)
        mask, is_causal = causal if mask is None else mask & causal, False
    # torch fuses with four axes, (B, H, L, d); with others it holds the scores after all.
    missing = range(query.ndim, 4)
    for _ in missing:
        query, key, value = query.unsqueeze(-3), key.unsqueeze(-3), value.unsqueeze(-3)
        if mask is not None and mask.ndim > 2:
            mask = mask.unsqueeze(-3)
    output = F.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, is_causal=is_causal, scale=scale, dropout_p=dropout_p
    )
    for _ in missing:
        output = output.squeeze(-3)
    return output


def _products_are_faster(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Whether products beat the fused kernel: see :func:`fused_attention`."""
    tensors = (query, key, value)
    return (
        query.dtype in (torch.bfloat16, torch.float16)
        and query.shape[-2] * key.shape[-2] <= 384 * 384
        and torch.is_grad_enabled()
        and any(tensor.requires_grad for tensor in tensors)
        and is_plain(*tensors)
    )


def check_inputs(query: Tensor, key: Tensor, value: Tensor) -> None:
    """Refuse query, key and value that do not belong together, before any arithmetic.

    Raises:
        TypeError: one of them is not a floating-point tensor.
        ValueError: fewer than two axes, leading (batch) axes that differ, or a different number of
            keys and values.
    """
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        if not isinstance(tensor, Tensor) or not tensor.is_floating_point():
            got = tensor.dtype if isinstance(tensor, Tensor) else type(tensor).__name__
            raise TypeError(f"{name} must be a floating-point tensor, got {got}")
        if tensor.ndim < 2:
            raise ValueError(
                f"{name} must have shape (..., length, features), got {tuple(tensor.shape)}"
            )
    if not query.shape[:-2] == key.shape[:-2] == value.shape[:-2]:
        raise ValueError(
            "query, key and value must have the same batch axes, got "
            f"{tuple(query.shape)}, {tuple(key.shape)} and {tuple(value.shape)}"
        )
    if key.shape[-2] != value.shape[-2]:
        raise ValueError(
            "key and value must have the same length L_k, got "
            f"{key.shape[-2]} and {value.shape[-2]}: each key announces one value"
        )


def check_features(name: str, tensor: Tensor, expected: int) -> None:
    """Refuse a tensor whose last axis is not the size that a module was built for."""
    if tensor.shape[-1] != expected:
        raise ValueError(
            f"{name} must have {expected} features on its last axis, got {tensor.shape[-1]}"
        )


def check_same_features(query: Tensor, key: Tensor) -> None:
    """Refuse a query and a key whose dot product does not exist."""
    if query.ndim < 2 or key.ndim < 2:
        raise ValueError(
            "query and key must have shape (..., length, features), "
            f"got {tuple(query.shape)} and {tuple(key.shape)}"
        )
    d_q, d_k = query.shape[-1], key.shape[-1]
    if d_q != d_k:
        raise ValueError(
            "query and key must have the same number of features for a dot product, got "
            f"{d_q} and {d_k}: project the query first, with torch.nn.Linear({d_q}, {d_k})"
        )


def check_dropout(dropout: float) -> None:
    """Refuse a dropout probability outside ``[0, 1)``."""
    if not 0.0 <= dropout < 1.0:
        raise ValueError(f"dropout must be in [0, 1), got {dropout}")


def check_positive(*, at_least: int = 1, **sizes: int) -> None:
    """Refuse sizes that are not positive integers; the message names the argument."""
    for name, size in sizes.items():
        if not isinstance(size, int | torch.SymInt) or isinstance(size, bool):
            raise TypeError(f"{name} must be an integer, got {type(size).__name__}")
        if size < at_least:
            raise ValueError(f"{name} must be at least {at_least}, got {size}")
