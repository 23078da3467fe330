"""Scaled dot-product attention: dot products over the square root of their length (chapter 4)."""

from __future__ import annotations

from jaxtyping import Bool, Float
from torch import Tensor, nn

from companion.attention import (
    attend_in_place,
    check_dropout,
    check_inputs,
    check_same_features,
    fused_attention,
)
from companion.blocked import attend_in_blocks, use_blocks
from companion.masks import as_boolean_mask, causal_mask


def scaled_dot_product_score(
    query: Float[Tensor, "*batch L_q d_k"], key: Float[Tensor, "*batch L_k d_k"]
) -> Float[Tensor, "*batch L_q L_k"]:
    r"""Score every query against every key by their dot product over :math:`\sqrt{d_k}`.

    .. math:: e_{ij} = \frac{q_i^\top k_j}{\sqrt{d_k}}

    Args:
        query: ``(..., L_q, d_k)``.
        key: ``(..., L_k, d_k)``.

    Returns:
        Scores ``(..., L_q, L_k)``.

    Raises:
        ValueError: fewer than two axes, or query and key of different sizes.

    Source: Vaswani et al. 2017, section 3.2.1. Chapter: 4, scaled dot-product attention.

    >>> import torch
    >>> scaled_dot_product_score(torch.full((1, 4), 2.0), torch.full((1, 4), 3.0))  # 24 / 2
    tensor([[12.]])
    """
    check_same_features(query, key)
    # Scaling the query, not the scores, touches L_q x d_k numbers and not L_q x L_k.
    return (query * _scale(query)) @ key.mT


def _scale(query: Tensor) -> float:
    return float(query.shape[-1] ** -0.5)


class ScaledDotProductAttention(nn.Module):
    r"""Attention whose scores are scaled dot products. It has no parameters.

    .. math:: c_i = \sum_j \operatorname{softmax}_j\!\big(q_i^\top k_j / \sqrt{d_k}\big)\, v_j

    Args:
        dropout: probability of dropping a weight, in training.

    Raises:
        ValueError: dropout outside ``[0, 1)``.

    Source: Vaswani et al. 2017, section 3.2.1. Chapter: 4, scaled dot-product attention.

    >>> import torch
    >>> query, key, value = torch.randn(2, 5, 8), torch.randn(2, 7, 8), torch.randn(2, 7, 3)
    >>> output, weights = ScaledDotProductAttention()(query, key, value)
    >>> output.shape, weights.shape
    (torch.Size([2, 5, 3]), torch.Size([2, 5, 7]))
    """

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        check_dropout(dropout)
        self.dropout = dropout

    def extra_repr(self) -> str:
        """Show the dropout when the module is printed."""
        return f"dropout={self.dropout}"

    def forward(
        self,
        query: Float[Tensor, "*batch L_q d_k"],
        key: Float[Tensor, "*batch L_k d_k"],
        value: Float[Tensor, "*batch L_k d_v"],
        *,
        mask: Bool[Tensor, "..."] | None = None,
        is_causal: bool = False,
        need_weights: bool = True,
    ) -> tuple[Float[Tensor, "*batch L_q d_v"], Float[Tensor, "*batch L_q L_k"] | None]:
        """Attend from every query to the keys, and return the weighted values.

        Args:
            query: ``(..., L_q, d_k)``.
            key: ``(..., L_k, d_k)``.
            value: ``(..., L_k, d_v)``, any ``d_v``.
            mask: True = may attend; broadcasts to ``(..., L_q, L_k)``.
            is_causal: hide from each query the keys after it, as ``mask & causal_mask(L_q, L_k)``.
            need_weights: with False, :func:`companion.fused_attention` computes the same output, in
                most cases without ever holding the weights.

        Returns:
            ``(output, weights)``: ``(..., L_q, d_v)`` and ``(..., L_q, L_k)``, or None for the
            weights. The weights are those before dropout. A query that may attend to nothing gets
            output 0 and weights 0.

        Raises:
            TypeError: inputs that are not floating point; a floating mask.
            ValueError: sizes that do not fit together; a mask that does not broadcast.
        """
        check_inputs(query, key, value)
        check_same_features(query, key)
        dropout_p = self.dropout if self.training else 0.0
        if not need_weights:
            output = fused_attention(
                query, key, value, mask,
                scale=_scale(query), is_causal=is_causal, dropout_p=dropout_p,
            )  # fmt: skip
            return output, None
        if use_blocks(query, key, value, dropout_p=dropout_p):
            return attend_in_blocks(
                query, key, value, mask, scale=_scale(query), is_causal=is_causal
            )
        scores = scaled_dot_product_score(query, key)
        if is_causal:
            causal = causal_mask(*scores.shape[-2:], device=scores.device)
            mask = causal if mask is None else as_boolean_mask(mask, scores.shape) & causal
        return attend_in_place(scores, value, mask, dropout_p=dropout_p)
