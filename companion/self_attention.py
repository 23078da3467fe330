"""Self-attention: a sequence's queries, keys and values all come from itself (chapter 5)."""

from __future__ import annotations

from jaxtyping import Bool, Float
from torch import Tensor, nn

from companion.attention import check_features, check_inputs, check_positive
from companion.scaled_dot_product import ScaledDotProductAttention


class SelfAttention(nn.Module):
    r"""Let every position of a sequence attend to all positions of the same sequence.

    .. math::
        q_i = W^Q x_i, \quad k_i = W^K x_i, \quad v_i = W^V x_i, \qquad
        y_i = \sum_j \operatorname{softmax}_j\!\big(q_i^\top k_j / \sqrt{d_k}\big)\, v_j

    Args:
        d_model: features of an input.
        d_k: features of queries and keys; by default ``d_model``.
        d_v: features of values, and so of outputs; by default ``d_model``.
        bias: whether the three projections have biases.

    Raises:
        TypeError: a size is not an integer.
        ValueError: a size is not positive.

    Source: Vaswani et al. 2017, section 3.2.3; Lin et al. 2017 and Cheng et al. 2016 had the idea
    before. Chapter: 5, self-attention.

    >>> import torch
    >>> output, weights = SelfAttention(d_model=8, d_v=3)(torch.randn(2, 5, 8))
    >>> output.shape, weights.shape
    (torch.Size([2, 5, 3]), torch.Size([2, 5, 5]))
    """

    def __init__(
        self, d_model: int, d_k: int | None = None, d_v: int | None = None, bias: bool = True
    ) -> None:
        super().__init__()
        d_k = d_model if d_k is None else d_k
        d_v = d_model if d_v is None else d_v
        check_positive(d_model=d_model, d_k=d_k, d_v=d_v)
        self.d_model = d_model
        self.query_projection = nn.Linear(d_model, d_k, bias=bias)
        self.key_projection = nn.Linear(d_model, d_k, bias=bias)
        self.value_projection = nn.Linear(d_model, d_v, bias=bias)
        self.attention = ScaledDotProductAttention()

    def forward(
        self,
        x: Float[Tensor, "*batch L d_model"],
        *,
        mask: Bool[Tensor, "..."] | None = None,
        is_causal: bool = False,
        need_weights: bool = True,
    ) -> tuple[Float[Tensor, "*batch L d_v"], Float[Tensor, "*batch L L"] | None]:
        """Attend from every position to every position.

        Args:
            x: ``(..., L, d_model)``.
            mask: True = may attend; broadcasts to ``(..., L, L)``.
            is_causal: let a position see itself and those before it, as ``mask & causal_mask(L)``.
            need_weights: with False, :func:`companion.fused_attention` computes the same output, in
                most cases without ever holding the weights.

        Returns:
            ``(output, weights)``: ``(..., L, d_v)`` and ``(..., L, L)``, or None for the weights.
            A position that may attend to nothing gets output 0 and weights 0.

        Raises:
            TypeError: an input that is not floating point; a floating mask.
            ValueError: another number of features; a mask that does not broadcast.
        """
        check_inputs(x, x, x)
        check_features("x", x, self.d_model)
        attended: tuple[Tensor, Tensor | None] = self.attention(
            self.query_projection(x),
            self.key_projection(x),
            self.value_projection(x),
            mask=mask,
            is_causal=is_causal,
            need_weights=need_weights,
        )
        return attended
