"""Dot-product attention: the score is the product of query and key (chapter 3)."""

from __future__ import annotations

from jaxtyping import Bool, Float
from torch import Tensor, nn

from companion.attention import attend, check_inputs, check_same_features, fused_attention


def dot_product_score(
    query: Float[Tensor, "*batch L_q d_k"], key: Float[Tensor, "*batch L_k d_k"]
) -> Float[Tensor, "*batch L_q L_k"]:
    r"""Score every query against every key by their dot product: one matrix product.

    .. math:: e_{ij} = q_i^\top k_j

    Args:
        query: ``(..., L_q, d_k)``.
        key: ``(..., L_k, d_k)``.

    Returns:
        Scores ``(..., L_q, L_k)``.

    Raises:
        ValueError: fewer than two axes, or query and key of different sizes.

    Source: Luong, Pham and Manning 2015, section 3.1 (*dot*). Chapter: 3, dot-product attention.

    >>> import torch
    >>> dot_product_score(torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 0.0], [0.0, -1.0]]))
    tensor([[ 3., -2.]])
    """
    check_same_features(query, key)
    return query @ key.mT


class DotProductAttention(nn.Module):
    r"""Attention whose scores are dot products. It has no parameters.

    .. math:: c_i = \sum_j \operatorname{softmax}_j\!\big(q_i^\top k_j\big)\, v_j

    Source: Luong, Pham and Manning 2015, section 3.1. Chapter: 3, dot-product attention.

    >>> import torch
    >>> query, key, value = torch.randn(2, 5, 8), torch.randn(2, 7, 8), torch.randn(2, 7, 3)
    >>> output, weights = DotProductAttention()(query, key, value)
    >>> output.shape, weights.shape
    (torch.Size([2, 5, 3]), torch.Size([2, 5, 7]))
    """

    def forward(
        self,
        query: Float[Tensor, "*batch L_q d_k"],
        key: Float[Tensor, "*batch L_k d_k"],
        value: Float[Tensor, "*batch L_k d_v"],
        *,
        mask: Bool[Tensor, "..."] | None = None,
        need_weights: bool = True,
    ) -> tuple[Float[Tensor, "*batch L_q d_v"], Float[Tensor, "*batch L_q L_k"] | None]:
        """Attend from every query to the keys, and return the weighted values.

        Args:
            query: ``(..., L_q, d_k)``.
            key: ``(..., L_k, d_k)``.
            value: ``(..., L_k, d_v)``, any ``d_v``.
            mask: True = may attend; broadcasts to ``(..., L_q, L_k)``.
            need_weights: with False, :func:`companion.fused_attention` computes the same output, in
                most cases without ever holding the weights.

        Returns:
            ``(output, weights)``: ``(..., L_q, d_v)`` and ``(..., L_q, L_k)``, or None for the
            weights. A query that may attend to nothing gets output 0 and weights 0.

        Raises:
            TypeError: inputs that are not floating point; a floating mask.
            ValueError: sizes that do not fit together; a mask that does not broadcast.
        """
        check_inputs(query, key, value)
        if not need_weights:
            check_same_features(query, key)
            return fused_attention(query, key, value, mask, scale=1.0), None
        return attend(dot_product_score(query, key), value, mask)
