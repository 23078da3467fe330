"""Checks of the exercises of chapter 3."""

from __future__ import annotations

import torch
from torch import Tensor

from companion.checks import check_attention
from companion.exercises.verdict import Answer, Verdict, unfilled


def check_nearest_key(answer: Answer) -> Verdict:
    """Check chapter 3's exercise "a dictionary whose keys are lists of numbers".

    Args:
        answer: ``answer(query, keys, values)`` for a list of numbers, a list of such lists, and a
            list of values returns the value whose key has the largest dot product with the query.

    >>> check_nearest_key(lambda query, keys, values: values[0])
    Not yet: for query [1.0, 0.0] and keys [[0.0, 9.0], [2.0, 0.0]] expected 'b', got 'a'.
    """
    problems = (
        ([1.0, 0.0], [[0.0, 9.0], [2.0, 0.0]]),
        ([1.0, 1.0], [[1.0, 1.0], [-5.0, -5.0], [3.0, 2.0], [0.0, 4.0]]),
        ([0.0, -2.0, 1.0], [[0.0, -1.0, 0.0], [1.0, 0.0, 1.0]]),
        ([-1.0], [[3.0], [2.0], [7.0]]),
    )
    for query, keys in problems:
        values = "abcd"[: len(keys)]
        found = answer(list(query), [list(key) for key in keys], list(values))
        if unfilled(found):
            return Verdict(None, "return one of the values.")
        products = torch.tensor(keys) @ torch.tensor(query)
        expected = values[int(products.argmax())]
        if found == expected:
            continue
        hint = "."
        if found == int(products.argmax()):
            hint = ": this is the key's place in the list; return the value that stands there."
        elif found == max(products.tolist()):
            hint = ": this is the largest product itself; return the value of its key."
        elif found == values[int(_cosines(query, keys).argmax())]:
            hint = ": the lengths were divided out; a dot product counts them."
        elif found == values[int(products.abs().argmax())]:
            hint = ": the sign was dropped; a product far below 0 is no match."
        return Verdict(
            False, f"for query {query} and keys {keys} expected {expected!r}, got {found!r}{hint}"
        )
    return Verdict(True, "the largest product decides, and length counts as well as direction.")


def _cosines(query: list[float], keys: list[list[float]]) -> Tensor:
    stacked = torch.tensor(keys)
    cosines: Tensor = stacked @ torch.tensor(query) / stacked.norm(dim=-1)
    return cosines


def check_product_attention(answer: Answer) -> Verdict:
    """Check chapter 3's exercise "the whole of dot-product attention".

    Args:
        answer: ``answer(query, key, value, mask)`` returns the output ``(B, L_q, d_v)``. The mask
            is None or boolean, True = may attend.

    >>> def without_mask(query, key, value, mask):
    ...     return (query @ key.mT).softmax(-1) @ value
    >>> check_product_attention(without_mask)
    Not yet: the check mask_is_used saw: a mask changes the output by: 0. The mask never reaches \
the scores. `scores.masked_fill(...)` returns a new tensor: assign it. Or the mask is dropped on \
the path that returns the weights.
    """
    draw = torch.Generator().manual_seed(0)
    query, key = torch.randn(2, 2, 3, 4, generator=draw, dtype=torch.float64)
    if unfilled(answer(query, key, key, None)):
        return Verdict(None, "return the output, a tensor (B, L_q, d_v).")
    report = check_attention(
        lambda query, key, value, mask=None: answer(query, key, value, mask),
        scaled=False,
        fully_masked="zero",
    )
    if report.failed:
        first = report[report.failed[0]]
        return Verdict(False, f"the check {first.name} saw: {first.seen}. {first.hint}")
    return Verdict(True, f"all {len(report.passed)} checks that can see this attention pass.")


def check_even_keys(answer: Answer) -> Verdict:
    """Check chapter 3's exercise "equal lengths, same scores".

    Args:
        answer: ``answer(key)`` for keys ``(L_k, d)`` returns ``(L_k, d + 1)``: the same keys with
            one more feature, chosen so that all of them are equally long.

    >>> check_even_keys(lambda key: torch.cat([key, torch.zeros_like(key[:, :1])], dim=1))
    Not yet: the scores are unchanged, but the lengths still differ, from 0.88 to 2.10.
    """
    draw = torch.Generator().manual_seed(2)
    key = torch.randn(6, 4, generator=draw, dtype=torch.float64)
    even = answer(key.clone())
    if unfilled(even):
        return Verdict(None, "return the longer keys, a tensor (L_k, d + 1).")
    if not isinstance(even, Tensor) or even.shape != (6, 5):
        got = tuple(even.shape) if isinstance(even, Tensor) else type(even).__name__
        return Verdict(False, f"for keys of shape (6, 4) expected a tensor (6, 5), got {got}.")
    if not torch.allclose(even[:, :4], key):
        hint = "keep the first features as they are, and add one."
        if torch.allclose(even[:, :4], key / key.norm(dim=-1, keepdim=True)):
            hint = "dividing by the length makes the keys even, but it changes the scores."
        return Verdict(False, f"a query with a 0 appended no longer gets its scores: {hint}")
    lengths = even.norm(dim=-1)
    if not torch.allclose(lengths, lengths.mean()):
        hint = "."
        if torch.allclose(key.norm(dim=-1) + even[:, 4].abs(), key.norm(dim=-1).max()):
            hint = ": lengths do not add up, their squares do (Pythagoras)."
        return Verdict(
            False,
            "the scores are unchanged, but the lengths still differ, "
            f"from {lengths.min():.2f} to {lengths.max():.2f}{hint}",
        )
    return Verdict(True, "equal lengths, same scores: the best match is now the nearest key.")
