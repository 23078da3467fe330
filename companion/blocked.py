"""Attention in blocks that stay in a core's cache, with backward passes written by hand.

Nothing here is new mathematics: :func:`attend_in_blocks` returns what
:func:`companion.attention.attend` returns for scaled dot products, and
:func:`additive_score_in_blocks` what the formula of additive attention says. But the scores of long
sequences do not fit a core's cache: each pass over them (product, mask, softmax, and two more in
the backward pass) waits for memory, and each gradient of them is one more copy. Here a block of
scores goes through all passes while it is in the cache, and gradients of scores exist for one block
at a time.

**The rule.** :class:`companion.ScaledDotProductAttention` computes in blocks when it returns
weights, for more than :data:`SCORES_ABOVE` scores, with one thread. The tensors are float32 or
float64 and plain (:func:`companion.attention.is_plain`), there is no dropout, and an item (one
entry of the first batch axes) has :data:`_SMALLEST_ITEM` scores or more. Why: with several threads
a loop over small blocks waits for the slowest thread each time; in 16 bits the whole products are
so fast that cutting them up costs more than the cache saves; tiny items make too many blocks.
``companion.blocked.SCORES_ABOVE = math.inf`` switches it off.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from companion.attention import additive_mask, attend, is_plain
from companion.masks import as_boolean_mask, causal_mask

#: A call with more scores than this is computed in blocks.
SCORES_ABOVE: float = 2**19
_SMALLEST_ITEM = 2**16

# Scores in one block: 2 MiB in float32, about the second-level cache of a core.
_BLOCK = 2**19
# Below this length, skipping the future costs more in strided copies than it saves.
_SKIP_FUTURE_FROM = 1024
# Queries in one block when the future is skipped: fewer skip more, but make smaller products.
_CAUSAL_ROWS = 128
# Elements in one block of additive attention's tanh(...).
_TANH_BLOCK = 2**17


def use_blocks(query: Tensor, key: Tensor, value: Tensor, *, dropout_p: float) -> bool:
    """Whether scaled dot-product attention with weights is computed in blocks: the rule above."""
    k_len = key.shape[-2]
    return (
        is_plain(query, key, value)
        and query[..., 0].numel() * k_len > SCORES_ABOVE
        and query[..., 0].shape[-2:].numel() * k_len >= _SMALLEST_ITEM
        and torch.get_num_threads() == 1
        and dropout_p == 0.0
        and query.dtype == key.dtype == value.dtype
        and query.dtype in (torch.float32, torch.float64)
    )


def attend_in_blocks(
    query: Float[Tensor, "*batch L_q d_k"],
    key: Float[Tensor, "*batch L_k d_k"],
    value: Float[Tensor, "*batch L_k d_v"],
    mask: Bool[Tensor, "..."] | None = None,
    *,
    scale: float,
    is_causal: bool = False,
) -> tuple[Float[Tensor, "*batch L_q d_v"], Float[Tensor, "*batch L_q L_k"]]:
    r"""Attend with scores :math:`s\, q_i^\top k_j`, block by block, and return the weights too.

    Args:
        query: ``(..., L_q, d_k)``.
        key: ``(..., L_k, d_k)``.
        value: ``(..., L_k, d_v)``.
        mask: boolean, True = may attend; broadcasts to ``(..., L_q, L_k)``.
        scale: :math:`s`, the factor of every score.
        is_causal: hide from each query the keys after it, as ``mask & causal_mask(L_q, L_k)``.

    Returns:
        ``(output, weights)`` of shapes ``(..., L_q, d_v)`` and ``(..., L_q, L_k)``.

    >>> query, key, value = torch.randn(3, 5, 4), torch.randn(3, 6, 4), torch.randn(3, 6, 2)
    >>> output, weights = attend_in_blocks(query, key, value, scale=0.5)
    >>> torch.allclose(weights, (0.5 * query @ key.mT).softmax(-1))
    True
    """
    q_len, k_len = query.shape[-2], key.shape[-2]
    skip_future = is_causal and mask is None and _SKIP_FUTURE_FROM <= q_len <= k_len
    if mask is not None:
        mask = as_boolean_mask(mask, (*query.shape[:-1], k_len))
    if is_causal and not skip_future:
        causal = causal_mask(q_len, k_len)
        mask = causal if mask is None else mask & causal
    attended: tuple[Tensor, Tensor] = _AttendInBlocks.apply(  # type: ignore[no-untyped-call]
        query, key, value, mask, scale, skip_future
    )
    return attended


class _AttendInBlocks(torch.autograd.Function):
    """Keeps the inputs and the weights for the backward pass, and nothing else of their size."""

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        scale: float,
        skip_future: bool,
    ) -> tuple[Tensor, Tensor]:
        shape = (*query.shape[:-1], key.shape[-2])
        # Where the future is skipped, these zeros are not written to.
        weights = query.new_zeros(shape) if skip_future else query.new_empty(shape)
        output = query.new_empty(*shape[:-1], value.shape[-1])
        q, k, v, w, out = map(_with_items, (query, key, value, weights, output))
        bias = blind = None
        if mask is not None:
            bias, blind = additive_mask(mask, query.dtype)
            which = _which_mask(bias, shape, w.shape[:2])
            bias = bias.flatten(0, -3) if bias.ndim > 2 else bias[None]  # (masks, L_q | 1, L_k | 1)
        for item, heads, rows, keys in _score_blocks(w.shape, skip_future):
            block = w[item, heads, rows, keys]
            scores = block if block.is_contiguous() else torch.empty_like(block)
            # scale * q k^T; beta=0 ignores what `scores` held.
            k_t = k[item, heads, keys].mT
            torch.baddbmm(scores, q[item, heads, rows], k_t, beta=0, alpha=scale, out=scores)
            if bias is not None:
                part = bias[:, rows] if bias.shape[1] > 1 else bias
                scores += part if len(part) == 1 else part[which[item, heads]]
            if skip_future:
                size = scores.shape[1]
                scores[..., -size:] += torch.full_like(scores[0, :, -size:], -torch.inf).triu_(1)
            torch.softmax(scores, -1, out=scores)
            if scores is not block:
                block.copy_(scores)
            torch.bmm(scores, v[item, heads, keys], out=out[item, heads, rows])
        if blind is not None:
            weights.masked_fill_(blind, 0.0)
            output.masked_fill_(blind, 0.0)
        ctx.save_for_backward(query, key, value, mask, weights)
        ctx.scale, ctx.skip_future = scale, skip_future
        ctx.set_materialize_grads(False)  # the weights' gradient is as large as the scores
        return output, weights

    @staticmethod
    def backward(
        ctx: Any, grad_output: Tensor | None, grad_weights: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        query, key, value, mask, weights = ctx.saved_tensors
        if torch.is_grad_enabled():  # create_graph=True
            if ctx.skip_future:
                mask = causal_mask(*weights.shape[-2:])
            results = attend(query * ctx.scale @ key.mT, value, mask)
            gradients = _with_graph(results, (query, key, value), (grad_output, grad_weights))
            return (*gradients, None, None, None)
        if grad_output is None:
            grad_output = query.new_zeros(*query.shape[:-1], value.shape[-1])
        q, k, v, w, d_out = map(_with_items, (query, key, value, weights, grad_output))
        d_w = None if grad_weights is None else _with_items(grad_weights)
        d_q, d_k, d_v = q.new_empty(q.shape), k.new_zeros(k.shape), v.new_zeros(v.shape)
        for item, heads, rows, keys in _score_blocks(w.shape, ctx.skip_future):
            block = w[item, heads, rows, keys].contiguous()
            above = d_out[item, heads, rows]
            # The gradient of the weights; then, in its place, that of the scores.
            gradient = torch.bmm(above, v[item, heads, keys].mT)
            if d_w is not None:
                gradient += d_w[item, heads, rows, keys]
            _softmax_backward(gradient, block, -1, block.dtype, grad_input=gradient)
            torch.bmm(gradient, k[item, heads, keys], out=d_q[item, heads, rows])
            d_k[item, heads, keys].baddbmm_(gradient.mT, q[item, heads, rows])
            d_v[item, heads, keys].baddbmm_(block.mT, above)
        return (
            d_q.mul_(ctx.scale).view(query.shape),
            d_k.mul_(ctx.scale).view(key.shape),
            d_v.view(value.shape),
            *[None] * 3,
        )


def additive_score_in_blocks(
    query: Float[Tensor, "*batch L_q d_hidden"],
    key: Float[Tensor, "*batch L_k d_hidden"],
    v: Float[Tensor, "d_hidden"],
) -> Float[Tensor, "*batch L_q L_k"]:
    r"""Score projected queries and keys, :math:`v^\top \tanh(q_i + k_j)`, a block at a time.

    The tensor of all :math:`\tanh(q_i + k_j)` never exists, not for the backward pass either, which
    computes its blocks again. For tensors that are plain (:func:`companion.attention.is_plain`).

    Args:
        query: ``(..., L_q, d_hidden)``.
        key: ``(..., L_k, d_hidden)``.
        v: ``(d_hidden,)``.

    Returns:
        Scores ``(..., L_q, L_k)``.

    >>> query, key, v = torch.randn(3, 5, 4), torch.randn(3, 6, 4), torch.randn(4)
    >>> scores = additive_score_in_blocks(query, key, v)
    >>> torch.allclose(scores, (query[:, :, None] + key[:, None]).tanh() @ v, atol=1e-6)
    True
    """
    scores: Tensor = _AdditiveScore.apply(query, key, v)  # type: ignore[no-untyped-call]
    return scores


class _AdditiveScore(torch.autograd.Function):
    """Keeps its inputs for the backward pass."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, v: Tensor) -> Tensor:
        ctx.save_for_backward(query, key, v)
        q, k = _flat(query), _flat(key)
        scores = query.new_empty(*query.shape[:-1], key.shape[-2])
        flat_scores = _flat(scores)
        for items, rows in _blocks(len(q), q.shape[1], k[0].numel(), _TANH_BLOCK):
            pairs = (q[items, rows, None] + k[items, None]).tanh_()  # (items, rows, L_k, d_hidden)
            torch.matmul(pairs, v, out=flat_scores[items, rows])
        return scores

    @staticmethod
    def backward(ctx: Any, grad_scores: Tensor) -> tuple[Tensor | None, ...]:
        query, key, v = ctx.saved_tensors
        if torch.is_grad_enabled():  # create_graph=True
            scores = (query.unsqueeze(-2) + key.unsqueeze(-3)).tanh() @ v
            return _with_graph((scores,), (query, key, v), (grad_scores,))
        q, k, d_scores = _flat(query), _flat(key), _flat(grad_scores)
        d_q, d_k, d_v = q.new_empty(q.shape), _sum_like(k), _sum_like(v)
        for items, rows in _blocks(len(q), q.shape[1], k[0].numel(), _TANH_BLOCK):
            pairs = (q[items, rows, None] + k[items, None]).tanh_()
            above = d_scores[items, rows]
            d_v += above.reshape(-1) @ pairs.flatten(0, -2)
            # above * (1 - tanh^2), in the place of tanh.
            _tanh_backward(above.unsqueeze(-1), pairs, grad_input=pairs)
            torch.sum(pairs, 2, out=d_q[items, rows])
            d_k[items] += pairs.sum(1)
        # Each sum lacks its factor v.
        d_k = d_k.to(k.dtype).mul_(v)
        return d_q.mul_(v).view(query.shape), d_k.view(key.shape), d_v.to(v.dtype)


_softmax_backward = torch.ops.aten._softmax_backward_data.out
_tanh_backward = torch.ops.aten.tanh_backward.grad_input


def _with_graph(
    results: tuple[Tensor, ...], inputs: tuple[Tensor, ...], gradients: tuple[Tensor | None, ...]
) -> tuple[Tensor | None, ...]:
    """Gradients that have gradients: of results that torch's operations computed, all at once."""
    pairs = [(r, g) for r, g in zip(results, gradients, strict=True) if g is not None]
    used, above = zip(*pairs, strict=True)
    wanted = [t for t in inputs if t.requires_grad]
    found = iter(torch.autograd.grad(used, wanted, above, create_graph=True, allow_unused=True))
    return tuple(next(found) if t.requires_grad else None for t in inputs)


def _score_blocks(
    shape: tuple[int, ...], skip_future: bool
) -> Iterator[tuple[int, slice, slice, slice]]:
    """Item, heads, rows and keys of one block of scores ``(items, H, L_q, L_k)`` after another."""
    items, heads, q_len, k_len = shape
    limit = _CAUSAL_ROWS * k_len if skip_future else _BLOCK
    for item in range(items):
        for some_heads, rows in _blocks(heads, q_len, k_len, limit):
            # Nothing after the block's last query; the last query of all sees the last key.
            keys = slice(rows.stop + k_len - q_len if skip_future else k_len)
            yield item, some_heads, rows, keys


def _blocks(count: int, rows: int, row: int, limit: int) -> Iterator[tuple[slice, slice]]:
    """Cut ``count`` items of ``rows`` rows of ``row`` elements into blocks of about ``limit``.

    A block is as many whole items as fit, or else as many rows of one item.
    """
    items = max(1, limit // (rows * row))
    height = min(rows, max(1, limit // row)) if items == 1 else rows
    for item in range(0, count, items):
        for start in range(0, rows, height):
            yield slice(item, min(item + items, count)), slice(start, min(start + height, rows))


def _with_items(tensor: Tensor) -> Tensor:
    """Make four axes: ``(..., H, L, d)`` to ``(items, H, L, d)``. Without a copy if torch can."""
    lead = tensor.shape[:-2]
    return tensor.reshape(-1, lead[-1] if lead else 1, *tensor.shape[-2:])


def _flat(tensor: Tensor) -> Tensor:
    """Make one axis of all batch axes: ``(..., L, d)`` to ``(N, L, d)``."""
    return tensor.reshape(-1, *tensor.shape[-2:])


def _which_mask(bias: Tensor, shape: tuple[int, ...], items: tuple[int, ...]) -> Tensor:
    """Which of the small masks belongs to each item and head: indices ``(items, H)``."""
    lead = bias.shape[:-2]
    return torch.arange(math.prod(lead)).view(lead).expand(shape[:-2]).reshape(items)


def _sum_like(tensor: Tensor) -> Tensor:
    """Zeros to add many blocks to, in float32 at least."""
    return torch.zeros_like(tensor, dtype=torch.promote_types(tensor.dtype, torch.float32))
