"""Checks of the exercises of chapter 6."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from companion.checks import check_attention
from companion.exercises.verdict import Answer, Verdict, unfilled
from companion.multi_head import merge_heads, split_heads


def check_split_heads(answer: Answer) -> Verdict:
    """Check chapter 6's exercise "split, and put together again".

    Args:
        answer: ``answer(x, num_heads)`` turns ``(B, L, d_model)`` into ``(B, H, L, d_head)``; the
            first ``d_head`` features of each position are those of head 0.

    >>> check_split_heads(lambda x, num_heads: x.view(len(x), num_heads, x.shape[1], -1))
    Not yet: right shape, wrong numbers: a view cuts through the positions; split the features \
into (H, d_head) first, then swap positions and heads.
    """
    for length, num_heads in ((3, 2), (4, 4)):
        x = torch.arange(2 * length * 8, dtype=torch.float64).view(2, length, 8)
        split = answer(x.clone(), num_heads)
        if unfilled(split):
            return Verdict(None, "return the heads, a tensor (B, H, L, d_head).")
        expected = split_heads(x, num_heads)
        if not isinstance(split, Tensor) or split.shape != expected.shape:
            got = tuple(split.shape) if isinstance(split, Tensor) else type(split).__name__
            return Verdict(
                False,
                f"for x (2, {length}, 8) and {num_heads} heads expected a tensor "
                f"{tuple(expected.shape)}, got {got}: batch, heads, positions, features.",
            )
        if torch.equal(split, expected):
            continue
        hint = "head 0 has the first d_head features of each position, head 1 the next."
        if torch.equal(split, x.reshape(expected.shape)):
            hint = (
                "a view cuts through the positions; split the features into (H, d_head) first, "
                "then swap positions and heads."
            )
        elif torch.equal(split, x.view(2, length, -1, num_heads).permute(0, 3, 1, 2)):
            hint = (
                "here head 0 has every H-th feature; split the features into (H, d_head), "
                "not into (d_head, H)."
            )
        return Verdict(False, f"right shape, wrong numbers: {hint}")
    return Verdict(True, "each head has its own features of every position.")


def check_head_contributions(answer: Answer) -> Verdict:
    """Check chapter 6's exercise "what does each head write?".

    Args:
        answer: ``answer(heads, w_output)`` for ``(H, L, d_head)`` and the matrix
            ``(d_model, d_model)`` as :class:`torch.nn.Linear` stores it returns
            ``(H, L, d_model)``: what each head adds to the output.

    >>> check_head_contributions(lambda heads, w: (merge_heads(heads) @ w.T / 2).expand(2, -1, -1))
    Not yet: they add up to the output, but each depends on all heads: it is the whole output, \
shared out evenly; use only the columns of the matrix that belong to the head.
    """
    draw = torch.Generator().manual_seed(0)
    heads = torch.randn(2, 5, 3, generator=draw, dtype=torch.float64)
    w_output = torch.randn(6, 6, generator=draw, dtype=torch.float64)
    written = answer(heads.clone(), w_output.clone())
    if unfilled(written):
        return Verdict(None, "return what each head writes, a tensor (H, L, d_model).")
    if not isinstance(written, Tensor) or written.shape != (2, 5, 6):
        got = tuple(written.shape) if isinstance(written, Tensor) else type(written).__name__
        return Verdict(False, f"for heads (2, 5, 3) expected a tensor (2, 5, 6), got {got}.")
    blocks = w_output.T.view(2, 3, 6)  # (H, d_head, d_model)
    if torch.allclose(written, heads @ blocks):
        return Verdict(True, "added up, they are the output, and each is one head's alone.")
    whole = merge_heads(heads) @ w_output.T
    if torch.allclose(written, heads @ w_output.view(2, 3, 6)):
        return Verdict(
            False,
            "the matrix is used the other way round: Linear computes x @ weight.T, so a head's "
            "part is d_head columns of the weight, not rows.",
        )
    if torch.allclose(written.sum(0), whole):
        return Verdict(
            False,
            "they add up to the output, but each depends on all heads: it is the whole output, "
            "shared out evenly; use only the columns of the matrix that belong to the head.",
        )
    return Verdict(
        False,
        "added up over the heads they must give the joined heads times the matrix: "
        "head 0 meets the first d_head columns, head 1 the next.",
    )


class _Layers(nn.Module):
    """What chapter 6's last exercise gives: the number of heads and the four projections."""

    def __init__(self, answer: Answer) -> None:
        super().__init__()
        self.answer = answer
        self.d_model, self.num_heads = 16, 4
        self.query_projection = nn.Linear(16, 16)
        self.key_projection = nn.Linear(16, 16)
        self.value_projection = nn.Linear(16, 16)
        self.output_projection = nn.Linear(16, 16)

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Compute what the answer computes."""
        attended: tuple[Tensor, Tensor] = self.answer(self, query, key, value, mask)
        return attended


def check_multi_head(answer: Answer) -> Verdict:
    """Check chapter 6's exercise "all of it", with the battery of checks.

    Args:
        answer: ``answer(layers, query, key, value, mask)`` returns the output ``(B, L_q, d_model)``
            and the weights ``(B, H, L_q, L_k)`` of multi-head attention. ``layers`` has
            ``num_heads`` and the linear layers ``query_projection``, ``key_projection``,
            ``value_projection`` and ``output_projection`` of 16 features; a mask is
            ``(B, L_q, L_k)``, True where a query may attend, or None.

    >>> from companion import attend
    >>> def one_head(layers, query, key, value, mask):
    ...     return attend(query @ key.mT / query.shape[-1] ** 0.5, value, mask)
    >>> check_multi_head(one_head)
    Not yet: expected weights (2, 4, 3, 5) for 4 heads, got (2, 3, 5): each head has its own.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layers = _Layers(answer)
        query, key, value = torch.randn(2, 3, 16), torch.randn(2, 5, 16), torch.randn(2, 5, 16)
    attended = layers(query, key, value)
    if unfilled(attended):
        return Verdict(None, "return the output (B, L_q, d_model) and the weights.")
    if not isinstance(attended, tuple) or len(attended) != 2:
        return Verdict(False, "return two things, the output and the weights.")
    if attended[1].shape != (2, 4, 3, 5):
        return Verdict(
            False,
            f"expected weights (2, 4, 3, 5) for 4 heads, got {tuple(attended[1].shape)}: "
            "each head has its own.",
        )
    report = check_attention(layers, num_heads=4, mask_shape="B L_q L_k", fully_masked="zero")
    if report.failed:
        name = report.failed[0]
        failure = report[name]
        return Verdict(False, f'"{name}" fails ({failure.seen}). {failure.hint}')
    return Verdict(True, f"{len(report.passed)} checks passed, none failed.")
