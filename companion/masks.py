"""Masks: which keys a query may attend to.

One name, one polarity: a mask is boolean and **True means "may attend"**. It broadcasts to the
scores ``(..., L_q, L_k)``. Masks are combined with ``&``.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Int
from torch import Tensor


def padding_mask(
    lengths: Int[Tensor, "B"], max_len: int | None = None
) -> Bool[Tensor, "B 1 max_len"]:
    """Let every query see the first ``lengths[b]`` keys of its own batch item, and no padding.

    Args:
        lengths: ``(B,)`` integers, the number of real keys of each item.
        max_len: the padded length ``L_k``; by default the largest length.

    Returns:
        Boolean ``(B, 1, max_len)``, True = may attend. The middle axis broadcasts over queries.

    Raises:
        TypeError: ``lengths`` is not an integer tensor.
        ValueError: ``lengths`` is not one-dimensional, or has an entry that is negative or above
            ``max_len``.

    Chapter: 2, additive attention.

    >>> padding_mask(torch.tensor([2, 3])).int()
    tensor([[[1, 1, 0]],
    <BLANKLINE>
            [[1, 1, 1]]], dtype=torch.int32)
    """
    if lengths.is_floating_point() or lengths.is_complex() or lengths.dtype == torch.bool:
        raise TypeError(f"lengths must be an integer tensor, got dtype {lengths.dtype}")
    if lengths.ndim != 1 or lengths.numel() == 0:
        raise ValueError(f"lengths must have shape (B,) with B >= 1, got {tuple(lengths.shape)}")
    low, high = int(lengths.min()), int(lengths.max())
    if low < 0:
        raise ValueError(f"lengths must not be negative, got {low}")
    max_len = high if max_len is None else max_len
    if high > max_len:
        raise ValueError(f"lengths must be at most max_len={max_len}, got {high}")
    return (torch.arange(max_len, device=lengths.device) < lengths[:, None])[:, None, :]


def causal_mask(
    q_len: int, k_len: int | None = None, *, device: torch.device | str | None = None
) -> Bool[Tensor, "q_len k_len"]:
    """Let each query see its own position and those before it, never those after.

    When there are more keys than queries, the queries are the *last* positions (as when new tokens
    are decoded after a cached past): the mask is aligned at the lower right, so the last query sees
    every key.

    Args:
        q_len: number of queries ``L_q``.
        k_len: number of keys ``L_k``; by default ``q_len``.
        device: where the mask is made.

    Returns:
        Boolean ``(q_len, k_len)``, True = may attend.

    Raises:
        ValueError: a length is not positive.

    Source: Vaswani et al. 2017, section 3.2.3. Chapter: 5, self-attention.

    >>> causal_mask(2, 3).int()
    tensor([[1, 1, 0],
            [1, 1, 1]], dtype=torch.int32)
    """
    k_len = q_len if k_len is None else k_len
    if q_len < 1 or k_len < 1:
        raise ValueError(f"q_len and k_len must be at least 1, got {q_len} and {k_len}")
    everything = torch.ones(q_len, k_len, dtype=torch.bool, device=device)
    return everything.tril(diagonal=k_len - q_len)


def as_boolean_mask(
    mask: Tensor, scores_shape: torch.Size | tuple[int, ...]
) -> Bool[Tensor, "..."]:
    """Check a mask against the scores it will be used on, and return it as booleans.

    Args:
        mask: boolean, or integers where non-zero means "may attend".
        scores_shape: ``(..., L_q, L_k)``, the shape that the mask must broadcast to.

    Returns:
        The mask as a boolean tensor of its own shape, True = may attend.

    Raises:
        TypeError: the mask is not a tensor, or holds floating-point numbers. An additive mask
            (0 and -inf) read as a boolean one would mean the opposite.
        ValueError: the mask does not broadcast to the scores.

    >>> as_boolean_mask(torch.tensor([1, 0]), (5, 2))
    tensor([ True, False])
    """
    if not isinstance(mask, Tensor):
        raise TypeError(f"mask must be a tensor, got {type(mask).__name__}")
    if mask.is_floating_point() or mask.is_complex():
        raise TypeError(
            f"mask must be boolean (True = may attend), got dtype {mask.dtype}. "
            "For an additive mask of 0 and -inf, pass `mask == 0`; "
            "for 1.0 and 0.0, pass `mask != 0`."
        )
    sizes = zip(reversed(mask.shape), reversed(scores_shape), strict=False)
    if mask.ndim > len(scores_shape) or not all(size in (1, full) for size, full in sizes):
        raise ValueError(
            f"mask must broadcast to the scores {tuple(scores_shape)} = (..., L_q, L_k), "
            f"got shape {tuple(mask.shape)}"
        )
    return mask if mask.dtype == torch.bool else mask != 0


def to_torch_attn_mask(
    mask: Bool[Tensor, "..."], *, batch_size: int, num_heads: int, q_len: int
) -> Bool[Tensor, "B*H L_q L_k"]:
    """Turn our mask into the ``attn_mask`` of :class:`torch.nn.MultiheadAttention`.

    This is the one place where the polarity changes: in the result **True means "ignore"**.

    Args:
        mask: True = may attend, with 1 to 4 axes: ``(L_k,)``, ``(L_q, L_k)``, ``(B, L_q, L_k)`` or
            ``(B, H, L_q, L_k)``; any axis but the last may be 1.
        batch_size: ``B``.
        num_heads: ``H``.
        q_len: ``L_q``.

    Returns:
        Boolean ``(B * H, L_q, L_k)``, True = ignore.

    Raises:
        TypeError: a floating mask.
        ValueError: the mask does not broadcast to ``(B, H, L_q, L_k)``.

    >>> to_torch_attn_mask(causal_mask(2), batch_size=1, num_heads=1, q_len=2).int()
    tensor([[[0, 1],
             [0, 0]]], dtype=torch.int32)
    """
    if isinstance(mask, Tensor) and mask.ndim == 3:
        mask = mask.unsqueeze(1)
    if isinstance(mask, Tensor) and not 1 <= mask.ndim <= 4:
        raise ValueError(f"mask must have 1 to 4 axes, got shape {tuple(mask.shape)}")
    k_len = mask.shape[-1] if isinstance(mask, Tensor) else 1
    shape = (batch_size, num_heads, q_len, k_len)
    return ~as_boolean_mask(mask, shape).expand(shape).reshape(-1, q_len, k_len)
