"""Multi-head attention: several attentions side by side, each in its own projection (chapter 6)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from companion.attention import check_dropout, check_features, check_inputs, check_positive
from companion.masks import as_boolean_mask
from companion.scaled_dot_product import ScaledDotProductAttention


def split_heads(
    x: Float[Tensor, "*batch L d_model"], num_heads: int
) -> Float[Tensor, "*batch H L d_head"]:
    """Cut the features into ``num_heads`` equal parts, and put the heads before the positions.

    The transpose matters: a reshape to the same shape without it gives each head a mixture of
    positions.

    Args:
        x: ``(..., L, d_model)``.
        num_heads: ``H``, a divisor of ``d_model``.

    Returns:
        ``(..., H, L, d_head)`` with ``d_head = d_model / H``.

    Raises:
        TypeError: ``num_heads`` is not an integer.
        ValueError: ``num_heads`` does not divide ``d_model``, or is not positive.

    Source: Vaswani et al. 2017, section 3.2.2. Chapter: 6, multi-head attention.

    >>> split_heads(torch.tensor([[1, 2, 3, 4], [5, 6, 7, 8]]), num_heads=2)
    tensor([[[1, 2],
             [5, 6]],
    <BLANKLINE>
            [[3, 4],
             [7, 8]]])
    """
    _check_heads(x.shape[-1], num_heads)
    d_head = x.shape[-1] // num_heads
    return x.reshape(*x.shape[:-1], num_heads, d_head).transpose(-2, -3)


def merge_heads(x: Float[Tensor, "*batch H L d_head"]) -> Float[Tensor, "*batch L d_model"]:
    """Undo :func:`split_heads`: put the heads' features next to each other again.

    Args:
        x: ``(..., H, L, d_head)``.

    Returns:
        ``(..., L, H * d_head)``.

    Chapter: 6, multi-head attention.

    >>> x = torch.randn(2, 5, 12)
    >>> torch.equal(merge_heads(split_heads(x, num_heads=3)), x)
    True
    """
    return x.transpose(-2, -3).flatten(-2)


def _check_heads(d_model: int, num_heads: int) -> None:
    check_positive(num_heads=num_heads)
    if d_model % num_heads:
        divisors = [heads for heads in range(1, d_model + 1) if d_model % heads == 0]
        raise ValueError(
            f"num_heads must divide d_model = {d_model}, got {num_heads}; "
            f"possible are {', '.join(map(str, divisors))}"
        )


class MultiHeadAttention(nn.Module):
    r"""Attend with several heads: project, split, attend in every head, merge, project.

    .. math::
        \text{head}_h &= \text{Attention}(Q W_h^Q,\; K W_h^K,\; V W_h^V) \\
        \text{output} &= [\text{head}_1; \dots; \text{head}_H]\, W^O

    Parameters: the linear layers ``query_projection``, ``key_projection``, ``value_projection`` and
    ``output_projection``. The rows of the first three belong to the heads in order: the first
    ``d_model / H`` rows are head 0's.

    Args:
        d_model: features of queries and outputs, and of all heads together.
        num_heads: ``H``, a divisor of ``d_model``.
        dropout: probability of dropping a weight, in training.
        bias: whether the four projections have biases.
        key_dim: features of a key; by default ``d_model``.
        value_dim: features of a value; by default ``d_model``.

    Raises:
        TypeError: a size is not an integer.
        ValueError: a size is not positive, ``num_heads`` does not divide ``d_model``, or dropout
            is outside ``[0, 1)``.

    Source: Vaswani et al. 2017, section 3.2.2. Chapter: 6, multi-head attention.

    >>> attention = MultiHeadAttention(d_model=16, num_heads=4)
    >>> x = torch.randn(2, 5, 16)
    >>> output, weights = attention(x, x, x)
    >>> output.shape, weights.shape
    (torch.Size([2, 5, 16]), torch.Size([2, 4, 5, 5]))
    """

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        *,
        dropout: float = 0.0,
        bias: bool = True,
        key_dim: int | None = None,
        value_dim: int | None = None,
    ) -> None:
        super().__init__()
        key_dim = d_model if key_dim is None else key_dim
        value_dim = d_model if value_dim is None else value_dim
        check_positive(d_model=d_model, key_dim=key_dim, value_dim=value_dim)
        _check_heads(d_model, num_heads)
        check_dropout(dropout)
        self.d_model = d_model
        self.num_heads = num_heads
        self.query_projection = nn.Linear(d_model, d_model, bias=bias)
        self.key_projection = nn.Linear(key_dim, d_model, bias=bias)
        self.value_projection = nn.Linear(value_dim, d_model, bias=bias)
        self.output_projection = nn.Linear(d_model, d_model, bias=bias)
        self.attention = ScaledDotProductAttention(dropout)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the weights uniformly after Glorot and Bengio 2010; set the biases to 0."""
        for layer in self._projections():
            nn.init.xavier_uniform_(layer.weight)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)

    def extra_repr(self) -> str:
        """Show the number of heads when the module is printed."""
        return f"num_heads={self.num_heads}"

    def forward(
        self,
        query: Float[Tensor, "*batch L_q d_model"],
        key: Float[Tensor, "*batch L_k key_dim"],
        value: Float[Tensor, "*batch L_k value_dim"],
        *,
        mask: Bool[Tensor, "..."] | None = None,
        is_causal: bool = False,
        need_weights: bool = True,
    ) -> tuple[Float[Tensor, "*batch L_q d_model"], Float[Tensor, "*batch H L_q L_k"] | None]:
        """Attend from every query to the keys in every head, and combine what the heads found.

        Args:
            query: ``(..., L_q, d_model)``; usually ``(B, L_q, d_model)``.
            key: ``(..., L_k, key_dim)``.
            value: ``(..., L_k, value_dim)``.
            mask: True = may attend. Up to as many axes as the query: one mask for all heads, which
                broadcasts to ``(..., L_q, L_k)``. One axis more: a mask for every head, which
                broadcasts to ``(..., H, L_q, L_k)``.
            is_causal: hide from each query the keys after it, as ``mask & causal_mask(L_q, L_k)``.
            need_weights: with False, :func:`companion.fused_attention` computes the same output, in
                most cases without ever holding the weights.

        Returns:
            ``(output, weights)``: ``(..., L_q, d_model)`` and ``(..., H, L_q, L_k)``, or None for
            the weights. The weights are those before dropout. A query that may attend to nothing
            gets weights 0, and as output the bias of the output projection.

        Raises:
            TypeError: inputs that are not floating point; a floating mask.
            ValueError: sizes that do not fit together; a mask that does not broadcast.
        """
        check_inputs(query, key, value)
        keys, values = self.project(key, value)
        return self.attend(
            query, keys, values, mask=mask, is_causal=is_causal, need_weights=need_weights
        )

    def project(
        self, key: Float[Tensor, "*batch L_k key_dim"], value: Float[Tensor, "*batch L_k value_dim"]
    ) -> tuple[Float[Tensor, "*batch H L_k d_head"], Float[Tensor, "*batch H L_k d_head"]]:
        """Project and split keys and values, the half of :meth:`forward` that can be kept.

        When a sequence is generated step by step, the keys and values of earlier steps stay the
        same. Keep them, append those of the new step along ``dim=-2``, and call :meth:`attend`.

        Args:
            key: ``(..., L_k, key_dim)``.
            value: ``(..., L_k, value_dim)``.

        Returns:
            Keys and values of all heads, each ``(..., H, L_k, d_head)``.

        Raises:
            ValueError: another number of features.

        >>> attention, x = MultiHeadAttention(d_model=16, num_heads=4), torch.randn(2, 5, 16)
        >>> output, _ = attention.attend(x, *attention.project(x, x))
        >>> torch.equal(output, attention(x, x, x)[0])
        True
        """
        check_features("key", key, self.key_projection.in_features)
        check_features("value", value, self.value_projection.in_features)
        return (
            split_heads(self.key_projection(key), self.num_heads),
            split_heads(self.value_projection(value), self.num_heads),
        )

    def attend(
        self,
        query: Float[Tensor, "*batch L_q d_model"],
        keys: Float[Tensor, "*batch H L_k d_head"],
        values: Float[Tensor, "*batch H L_k d_head"],
        *,
        mask: Bool[Tensor, "..."] | None = None,
        is_causal: bool = False,
        need_weights: bool = True,
    ) -> tuple[Float[Tensor, "*batch L_q d_model"], Float[Tensor, "*batch H L_q L_k"] | None]:
        """Attend to keys and values that :meth:`project` has made; else as :meth:`forward`.

        Args:
            query: ``(..., L_q, d_model)``.
            keys: ``(..., H, L_k, d_head)``.
            values: ``(..., H, L_k, d_head)``.
            mask: as in :meth:`forward`.
            is_causal: as in :meth:`forward`; the queries are the last positions of the keys.
            need_weights: as in :meth:`forward`.

        Returns:
            As :meth:`forward`.

        Raises:
            TypeError, ValueError: as :meth:`forward`.
        """
        check_features("query", query, self.d_model)
        self._check_projected(query, keys, values)
        if isinstance(mask, Tensor) and mask.ndim <= query.ndim:  # the same for every head
            mask = as_boolean_mask(mask, (*query.shape[:-1], keys.shape[-2]))
            mask = mask.unsqueeze(-3) if mask.ndim >= 3 else mask
        heads, weights = self.attention(
            split_heads(self.query_projection(query), self.num_heads),
            keys,
            values,
            mask=mask,
            is_causal=is_causal,
            need_weights=need_weights,
        )
        return self.output_projection(merge_heads(heads)), weights

    def _check_projected(self, query: Tensor, keys: Tensor, values: Tensor) -> None:
        split = (self.num_heads, self.d_model // self.num_heads)
        fits = all(x.ndim >= 3 and (x.shape[-3], x.shape[-1]) == split for x in (keys, values))
        if query.ndim < 2 or not fits:
            raise ValueError(
                f"expected a query (..., L_q, {self.d_model}) and keys and values as project makes "
                f"them, (..., {split[0]}, L_k, {split[1]}), got {tuple(query.shape)}, "
                f"{tuple(keys.shape)} and {tuple(values.shape)}"
            )

    @classmethod
    def from_torch(cls, module: nn.MultiheadAttention) -> MultiHeadAttention:
        """Copy the weights of torch's module.

        The result computes what the module does for ``batch_first=True``, whatever its setting. It
        keeps dtype, device, dropout and training mode.

        Args:
            module: without ``bias_k``, ``bias_v`` and ``add_zero_attn``.

        Raises:
            TypeError: not a :class:`torch.nn.MultiheadAttention`.
            ValueError: a module with ``bias_k``, ``bias_v`` or ``add_zero_attn``.

        >>> theirs = nn.MultiheadAttention(16, 4, batch_first=True)
        >>> ours, x = MultiHeadAttention.from_torch(theirs), torch.randn(2, 5, 16)
        >>> torch.allclose(ours(x, x, x)[0], theirs(x, x, x)[0], atol=1e-6)
        True
        """
        if not isinstance(module, nn.MultiheadAttention):
            raise TypeError(
                f"module must be a torch.nn.MultiheadAttention, got {type(module).__name__}"
            )
        if module.bias_k is not None or module.bias_v is not None or module.add_zero_attn:
            raise ValueError("module must have no bias_k, no bias_v and add_zero_attn=False")
        ours = cls(
            module.embed_dim,
            module.num_heads,
            dropout=module.dropout,
            bias=module.in_proj_bias is not None,
            key_dim=module.kdim,
            value_dim=module.vdim,
        ).to(module.out_proj.weight)
        with torch.no_grad():
            for layer, (weight, bias) in zip(
                ours._projections(), _torch_projections(module), strict=True
            ):
                layer.weight.copy_(weight)
                if bias is not None:
                    layer.bias.copy_(bias)
        return ours.train(module.training)

    def to_torch(self) -> nn.MultiheadAttention:
        """Copy the weights into torch's module, with ``batch_first=True``.

        Masks change their meaning there: :func:`companion.to_torch_attn_mask` converts ours.

        >>> ours, x = MultiHeadAttention(d_model=16, num_heads=4), torch.randn(2, 5, 16)
        >>> torch.allclose(ours.to_torch()(x, x, x)[0], ours(x, x, x)[0], atol=1e-6)
        True
        """
        module = nn.MultiheadAttention(
            self.d_model,
            self.num_heads,
            dropout=self.attention.dropout,
            bias=self.query_projection.bias is not None,
            kdim=self.key_projection.in_features,
            vdim=self.value_projection.in_features,
            batch_first=True,
        ).to(self.output_projection.weight)
        with torch.no_grad():
            for layer, (weight, bias) in zip(
                self._projections(), _torch_projections(module), strict=True
            ):
                weight.copy_(layer.weight)
                if bias is not None:
                    bias.copy_(layer.bias)
        return module.train(self.training)

    def _projections(self) -> tuple[nn.Linear, nn.Linear, nn.Linear, nn.Linear]:
        return (
            self.query_projection,
            self.key_projection,
            self.value_projection,
            self.output_projection,
        )


def _torch_projections(module: nn.MultiheadAttention) -> list[tuple[Tensor, Tensor | None]]:
    """Weight and bias of the four projections, as views of torch's parameters."""
    if module.in_proj_weight is None:  # keys or values of another size
        weights = [module.q_proj_weight, module.k_proj_weight, module.v_proj_weight]
    else:
        weights = list(module.in_proj_weight.chunk(3))
    biases = [None] * 3 if module.in_proj_bias is None else list(module.in_proj_bias.chunk(3))
    return [*zip(weights, biases, strict=True), (module.out_proj.weight, module.out_proj.bias)]


@contextmanager
def without_heads(attention: MultiHeadAttention, heads: Iterable[int]) -> Iterator[None]:
    r"""Switch some heads off for the length of a ``with`` block.

    The output is a sum over heads, :math:`\sum_h \text{head}_h W_h^O + b`. Here the
    :math:`W_h^O` of the named heads are 0. What changes the output projection inside the block is
    lost after it, and a backward pass has to end inside.

    Args:
        attention: its output projection is changed inside the block and restored after it.
        heads: which ones, from 0.

    Raises:
        TypeError: a head that is not an integer.
        ValueError: a head that does not exist.

    Chapter: 6, multi-head attention.

    >>> attention, x = MultiHeadAttention(d_model=16, num_heads=4), torch.randn(2, 5, 16)
    >>> with without_heads(attention, range(4)), torch.no_grad():
    ...     bool((attention(x, x, x)[0] == attention.output_projection.bias).all())
    True
    """
    heads = list(heads)
    for head in heads:
        if not isinstance(head, int) or isinstance(head, bool):
            raise TypeError(f"heads must be integers, got {type(head).__name__}")
    if not all(0 <= head < attention.num_heads for head in heads):
        raise ValueError(f"heads must be from 0 to {attention.num_heads - 1}, got {heads}")
    weight = attention.output_projection.weight
    before = weight.detach().clone()
    with torch.no_grad():
        weight.view(len(weight), attention.num_heads, -1)[:, heads] = 0.0
    try:
        yield
    finally:
        with torch.no_grad():
            weight.copy_(before)
