"""Additive attention: a small network scores how well a query and a key match (chapter 2)."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from companion.attention import (
    attend_in_place,
    check_features,
    check_inputs,
    check_positive,
    is_plain,
)
from companion.blocked import additive_score_in_blocks

# One block of tanh(...) of this many elements stays in a core's cache.
_BLOCK_ELEMENTS = 2**17


def additive_score(
    query: Float[Tensor, "*batch L_q d_q"],
    key: Float[Tensor, "*batch L_k d_k"],
    w_query: Float[Tensor, "d_hidden d_q"],
    w_key: Float[Tensor, "d_hidden d_k"],
    v: Float[Tensor, "d_hidden"],
    *,
    chunk_size: int | None = None,
) -> Float[Tensor, "*batch L_q L_k"]:
    r"""Score every query against every key with a one-layer network.

    .. math:: e_{ij} = v^\top \tanh(W_1 q_i + W_2 k_j)

    Args:
        query: ``(..., L_q, d_q)``.
        key: ``(..., L_k, d_k)``; ``d_k`` may differ from ``d_q``.
        w_query: :math:`W_1`, ``(d_hidden, d_q)``.
        w_key: :math:`W_2`, ``(d_hidden, d_k)``.
        v: ``(d_hidden,)``.
        chunk_size: score this many queries at a time. The scores are equal; without gradients the
            intermediate tensor shrinks from ``(..., L_q, L_k, d_hidden)`` to
            ``(..., chunk_size, L_k, d_hidden)``. By default all queries at once.

    Returns:
        Scores ``(..., L_q, L_k)``.

    Raises:
        ValueError: sizes that do not fit together; ``chunk_size`` below 1.

    Source: Bahdanau, Cho and Bengio 2015, section 3.1 and appendix A.1.2. Chapter: 2.

    >>> query, key = torch.tensor([[1.0]]), torch.tensor([[0.0], [-1.0]])
    >>> one = torch.ones(1, 1)
    >>> additive_score(query, key, one, one, torch.tensor([2.0]))  # 2 tanh(1), 2 tanh(0)
    tensor([[1.5232, 0.0000]])
    """
    _check_parameters(query, key, w_query, w_key, v)
    projected_query = query @ w_query.T  # (..., L_q, d_hidden)
    projected_key = key @ w_key.T  # (..., L_k, d_hidden)
    if chunk_size is None:
        return _score(projected_query, projected_key, v)
    check_positive(chunk_size=chunk_size)
    chunks = projected_query.split(chunk_size, dim=-2)  # type: ignore[no-untyped-call]
    return torch.cat([_score(chunk, projected_key, v) for chunk in chunks], dim=-2)


def _score(projected_query: Tensor, projected_key: Tensor, v: Tensor) -> Tensor:
    pairs = projected_query.unsqueeze(-2) + projected_key.unsqueeze(-3)  # (..., L_q, L_k, d_hidden)
    return pairs.tanh() @ v  # (..., L_q, L_k)


def _check_parameters(
    query: Tensor, key: Tensor, w_query: Tensor, w_key: Tensor, v: Tensor
) -> None:
    if query.ndim < 2 or key.ndim < 2:
        raise ValueError(
            "query and key must have shape (..., length, features), "
            f"got {tuple(query.shape)} and {tuple(key.shape)}"
        )
    if v.ndim != 1:
        raise ValueError(f"v must have shape (d_hidden,), got {tuple(v.shape)}")
    for name, weight, source, features in (
        ("w_query", w_query, "query", query.shape[-1]),
        ("w_key", w_key, "key", key.shape[-1]),
    ):
        expected = (v.shape[0], features)
        if weight.shape != expected:
            raise ValueError(
                f"{name} must have shape (d_hidden, features of {source}) = {expected}, "
                f"got {tuple(weight.shape)}"
            )


class AdditiveAttention(nn.Module):
    r"""Attention whose scores come from a one-layer network.

    .. math:: c_i = \sum_j \operatorname{softmax}_j\!\big(v^\top \tanh(W_1 q_i + W_2 k_j)\big)\, v_j

    Parameters: ``w_query`` (:math:`W_1`), ``w_key`` (:math:`W_2`) and ``v``, without biases, as in
    the formula.

    Args:
        query_dim: ``d_q``, features of a query.
        key_dim: ``d_k``, features of a key; need not equal ``query_dim``.
        hidden_dim: ``d_hidden``, units of the scoring network.

    Raises:
        TypeError: a size is not an integer.
        ValueError: a size is not positive.

    Source: Bahdanau, Cho and Bengio 2015. Chapter: 2, additive attention.

    >>> attention = AdditiveAttention(query_dim=40, key_dim=24, hidden_dim=16)
    >>> query, key = torch.randn(2, 5, 40), torch.randn(2, 7, 24)
    >>> output, weights = attention(query, key, key)
    >>> output.shape, weights.shape
    (torch.Size([2, 5, 24]), torch.Size([2, 5, 7]))
    """

    def __init__(self, query_dim: int, key_dim: int, hidden_dim: int) -> None:
        super().__init__()
        check_positive(query_dim=query_dim, key_dim=key_dim, hidden_dim=hidden_dim)
        self.w_query = nn.Parameter(torch.empty(hidden_dim, query_dim))
        self.w_key = nn.Parameter(torch.empty(hidden_dim, key_dim))
        self.v = nn.Parameter(torch.empty(hidden_dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the parameters as :class:`torch.nn.Linear` layers of these sizes would."""
        for parameter in (self.w_query, self.w_key, self.v):
            bound = parameter.shape[-1] ** -0.5
            nn.init.uniform_(parameter, -bound, bound)

    def extra_repr(self) -> str:
        """Show the sizes when the module is printed."""
        hidden_dim, query_dim = self.w_query.shape
        return f"query_dim={query_dim}, key_dim={self.w_key.shape[1]}, hidden_dim={hidden_dim}"

    def forward(
        self,
        query: Float[Tensor, "*batch L_q d_q"],
        key: Float[Tensor, "*batch L_k d_k"],
        value: Float[Tensor, "*batch L_k d_v"],
        *,
        mask: Bool[Tensor, "..."] | None = None,
        need_weights: bool = True,
    ) -> tuple[Float[Tensor, "*batch L_q d_v"], Float[Tensor, "*batch L_q L_k"] | None]:
        """Attend from every query to the keys, and return the weighted values.

        Args:
            query: ``(..., L_q, query_dim)``.
            key: ``(..., L_k, key_dim)``.
            value: ``(..., L_k, d_v)``, any ``d_v``.
            mask: True = may attend; broadcasts to ``(..., L_q, L_k)``.
            need_weights: with False the weights are not returned, and the queries are scored in
                chunks that fit the cache, in the backward pass too. The output is the same.

        Returns:
            ``(output, weights)``: ``(..., L_q, d_v)`` and ``(..., L_q, L_k)``, or None for the
            weights. A query that may attend to nothing gets output 0 and weights 0.

        Raises:
            TypeError: inputs that are not floating point; a floating mask.
            ValueError: sizes that do not fit together; a mask that does not broadcast.
        """
        check_inputs(query, key, value)
        check_features("query", query, self.w_query.shape[1])
        check_features("key", key, self.w_key.shape[1])
        parameters = (self.w_query, self.w_key, self.v)
        if need_weights:
            scores = additive_score(query, key, *parameters)
        elif is_plain(query, key, *parameters):
            scores = additive_score_in_blocks(query @ self.w_query.T, key @ self.w_key.T, self.v)
        else:
            chunk_size = self._chunk_size(key)
            scores = additive_score(query, key, *parameters, chunk_size=chunk_size)
        output, weights = attend_in_place(scores, value, mask)
        return output, weights if need_weights else None

    def _chunk_size(self, key: Tensor) -> int:
        elements_per_query = key[..., 0].numel() * self.v.shape[0]
        return max(1, _BLOCK_ELEMENTS // max(1, elements_per_query))
