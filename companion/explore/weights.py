"""Attention weights to play with: ask each query where it looks, head by head."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from companion.explore.explorer import Explorer, plain_table, shown

MAX_TOKENS, MAX_HEADS = 40, 16
FULL_TABLE = 200
"""Up to so many weights, the table that stands in for the script holds them all."""


def explore_weights(
    weights: Float[Tensor, "*H L_q L_k"],
    query_tokens: Sequence[str],
    key_tokens: Sequence[str] | None = None,
    *,
    heads: Sequence[str] | None = None,
    title: str = "Which key does a query look at?",
) -> Explorer:
    """Show attention weights to play with: choose a query, and see where each head looks.

    Weights are shown in whole percent. What the book shows weighs up to 10 KB; the largest input,
    16 heads of 40 queries and 40 keys, about 25 KB. Larger ones are refused: no page can show them
    usefully.

    Args:
        weights: ``(L_q, L_k)`` or ``(H, L_q, L_k)``; each row sums to 1, or to 0 where a query may
            attend to nothing. Any floating dtype; a gradient is not needed, and does no harm.
        query_tokens: the queries' names, any text; a string gives one a character.
        key_tokens: the keys' names; by default those of the queries.
        heads: names of the heads, or of what else the first axis holds; by default "head 1", ...
        title: what there is to find out.

    Returns:
        What a notebook shows; as text, each query's strongest key in whole percent (the first of
        those that are equal then).

    Raises:
        TypeError: weights that are not a floating tensor; tokens that are not strings.
        ValueError: weights that are no weights; other sizes than the tokens'; more than 16 heads or
            40 tokens, or names so long that the result is larger than 30,000 bytes.

    Chapters: 2 to 6.

    >>> explore_weights(torch.tensor([[0.9, 0.1], [0.2, 0.8]]), ["F", "OW"], ["ph", "o"])
    Attention weights of 2 queries over 2 keys: 'ph', 'o'
    'F' → 'ph' 90 %
    'OW' → 'o' 80 %
    """
    queries = _tokens("query_tokens", query_tokens)
    keys = queries if key_tokens is None else _tokens("key_tokens", key_tokens)
    stacked = _checked(weights, len(queries), len(keys))
    names = [f"head {n}" for n in range(1, len(stacked) + 1)] if weights.ndim == 3 else ["weight"]
    if heads is not None:
        names = _tokens("heads", heads)
        if len(names) != len(stacked):
            raise ValueError(f"heads must name {len(stacked)} heads, got {len(names)}")
    percents: list[list[list[int]]] = (100 * stacked).round().long().tolist()
    visible = [[shown(token) for token in tokens] for tokens in (queries, keys, names)]
    data = dict(zip("qkh", visible, strict=True)) | {"w": _tally(percents)}
    text = _text(percents, queries, keys, names)
    return Explorer(title, text, _table(percents, *visible), "weights.js", data)


def _tokens(name: str, tokens: Sequence[str]) -> list[str]:
    listed = list(tokens)
    for token in listed:
        if not isinstance(token, str):
            raise TypeError(f"{name} must be strings, got {type(token).__name__}")
    return listed


def _checked(weights: Tensor, num_queries: int, num_keys: int) -> Tensor:
    if not isinstance(weights, Tensor) or not weights.is_floating_point():
        got = weights.dtype if isinstance(weights, Tensor) else type(weights).__name__
        raise TypeError(f"weights must be a floating tensor, got {got}")
    expected, shape = f"({num_queries}, {num_keys})", tuple(weights.shape)
    if weights.ndim not in (2, 3) or shape[-2:] != (num_queries, num_keys) or 0 in shape:
        raise ValueError(
            f"weights must be (L_q, L_k) or (H, L_q, L_k) with (L_q, L_k) = {expected} as the "
            f"tokens are, not empty, got {shape}; of a batch, give one item: weights[0]"
        )
    num_heads = shape[0] if weights.ndim == 3 else 1
    if num_heads > MAX_HEADS or max(num_queries, num_keys) > MAX_TOKENS:
        raise ValueError(
            f"at most {MAX_HEADS} heads of {MAX_TOKENS} queries and {MAX_TOKENS} keys can be "
            f"shown, got {num_heads} of {num_queries} and {num_keys}: slice the weights and the "
            f"tokens, as in weights[:{MAX_HEADS}, :{MAX_TOKENS}, :{MAX_TOKENS}]"
        )
    # Rounded to a short dtype, weights sum to 1 only about.
    tolerance = 1e-4 + 2 * torch.finfo(weights.dtype).eps
    exact = weights.detach().to("cpu", torch.float64).reshape(num_heads, num_queries, num_keys)
    total = exact.sum(dim=-1)
    if not exact.isfinite().all():
        raise ValueError("weights must be finite, got NaN or infinity")
    if exact.min() < -tolerance:
        raise ValueError(f"weights must not be negative, got {exact.min():.3g}")
    wrong = ((total - 1).abs() > tolerance) & (total.abs() > tolerance)
    if wrong.any():
        head, query = wrong.nonzero()[0].tolist()
        raise ValueError(
            f"each query's weights must sum to 1, or to 0; those of query {query} in head {head} "
            f"sum to {total[head, query]:.3g}: softmax over the keys, the last axis"
        )
    return exact.clamp(0, 1)


def _tally(percents: list[list[list[int]]]) -> str:
    """Write each number as that many ones and a zero, six bits a character; see weights.js."""
    bits = "".join("1" * n + "0" for head in percents for row in head for n in row)
    bits += "1" * (-len(bits) % 6)
    return "".join(chr(63 + int(bits[i : i + 6], 2)) for i in range(0, len(bits), 6))


def _strongest(row: list[int]) -> int | None:
    return row.index(max(row)) if any(row) else None


def _text(
    percents: list[list[list[int]]], queries: list[str], keys: list[str], heads: list[str]
) -> str:
    lines = [
        f"Attention weights of {len(queries)} queries over {len(keys)} keys: "
        + ", ".join(map(repr, keys))
    ]
    for name, head in zip(heads, percents, strict=True):
        lines += [f"{name}:"] if len(heads) > 1 else []
        for query, row in zip(queries, head, strict=True):
            best = _strongest(row)
            found = "nothing" if best is None else f"{keys[best]!r} {row[best]} %"
            lines.append(f"{'  ' * (len(heads) > 1)}{query!r} → {found}")
    return "\n".join(lines)


def _table(
    percents: list[list[list[int]]], queries: list[str], keys: list[str], heads: list[str]
) -> str:
    several = len(heads) > 1
    if len(heads) * len(queries) * len(keys) <= FULL_TABLE:
        rows = [
            [f"{name}: {query}" if several else query, *row]
            for name, head in zip(heads, percents, strict=True)
            for query, row in zip(queries, head, strict=True)
        ]
        return plain_table("Weights in percent", ["query", *keys], rows)
    rows = []
    for query, *found in zip(queries, *percents, strict=True):
        mean = [sum(column) / len(heads) for column in zip(*found, strict=True)]
        best = sorted(range(len(keys)), key=lambda j: -mean[j])[:3]
        rows.append([query, ", ".join(f"{keys[j]} {mean[j]:.0f}" for j in best if mean[j])])
    caption = f"Strongest keys in percent{', mean over the heads' * several}"
    return plain_table(caption, ["query", "keys"], rows)
