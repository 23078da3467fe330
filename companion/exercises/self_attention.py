"""Checks of the exercises of chapter 5."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from companion.attention import attend
from companion.checks import check_attention
from companion.exercises.verdict import Answer, Verdict, unfilled
from companion.masks import causal_mask

Layer = Callable[[Tensor], Tensor]


def check_four_steps(answer: Answer) -> Verdict:
    """Check chapter 5's exercise "four steps".

    Args:
        answer: ``answer(x, w_query, w_key, w_value)`` returns self-attention's output ``(L, d_v)``
            for x ``(L, d_model)`` and matrices ``(d_k, d_model)``, ``(d_k, d_model)`` and
            ``(d_v, d_model)``.

    >>> check_four_steps(lambda x, q, k, v: ((x @ q.T) @ (x @ k.T).T).softmax(-1) @ (x @ v.T))
    Not yet: the scores are not scaled: divide them by the root of d_k before the softmax.
    """
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(5, 6, generator=draw, dtype=torch.float64)
    matrices = [torch.randn(d, 6, generator=draw, dtype=torch.float64) for d in (4, 4, 3)]
    output = answer(x.clone(), *matrices)
    if unfilled(output):
        return Verdict(None, "return the output, a tensor (L, d_v).")
    if not isinstance(output, Tensor) or output.shape != (5, 3):
        got = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
        return Verdict(False, f"for d_v = 3 and 5 positions expected a tensor (5, 3), got {got}.")
    query, key, value = (x @ matrix.T for matrix in matrices)
    products = query @ key.T
    if torch.allclose(output, attend(products / 2, value)[0]):
        return Verdict(True, "project, score and scale, softmax, weighted sum.")
    mistakes = {
        "the scores are not scaled: divide them by the root of d_k before the softmax.": (
            products.softmax(-1)
        ),
        "the scores are divided by the root of d_model; it is the root of d_k.": (
            (products / math.sqrt(6)).softmax(-1)
        ),
        "the scores are divided by d_k; it is the root of d_k.": (products / 4).softmax(-1),
        "the softmax runs over the queries; the keys are the last axis, dim=-1.": (
            (products / 2).softmax(0)
        ),
        "keys ask queries: the rows of the scores are the queries, query @ key.mT.": (
            (products.T / 2).softmax(-1)
        ),
        "the softmax is missing: the weights of a row must be positive and add up to 1.": (
            products / 2
        ),
    }
    for message, weights in mistakes.items():
        if torch.allclose(output, weights @ value):
            return Verdict(False, message)
    return Verdict(False, "the numbers differ; check one step at a time against the loop above.")


def check_decoder_layer(answer: Answer) -> Verdict:
    """Check chapter 5's exercise "a layer for a decoder", with the battery of checks.

    Args:
        answer: ``answer(x, mask=None)`` returns the output of causal self-attention without
            projections, or the output and the weights; x is ``(B, L, d)``, a mask ``(B, L, L)``,
            True where a position may attend.

    >>> def not_causal(x, mask=None):
    ...     scores = x @ x.mT / 4
    ...     if mask is not None:
    ...         scores = scores.masked_fill(~mask, -1e9)
    ...     return scores.softmax(-1) @ x
    >>> check_decoder_layer(not_causal).message.partition(" (")[0]
    '"no_look_into_the_future" fails'
    """
    x = torch.randn(2, 4, 16, generator=torch.Generator().manual_seed(0))
    if unfilled(answer(x)):
        return Verdict(None, "return the output, a tensor (B, L, d).")
    report = check_attention(answer, kind="self", causal=True)
    if report.failed:
        name = report.failed[0]
        failure = report[name]
        return Verdict(False, f'"{name}" fails ({failure.seen}). {failure.hint}')
    output = answer(x)
    output = output[0] if isinstance(output, tuple) else output
    if not torch.allclose(output, _decoder_layer(x), atol=1e-6):
        if torch.allclose(output, _decoder_layer(x, diagonal=-1), atol=1e-6):
            return Verdict(False, "a position may see itself: the mask's diagonal is True.")
        return Verdict(False, "the battery passes, but x is not query, key and value alike.")
    return Verdict(True, f"{len(report.passed)} checks passed, none failed.")


def _decoder_layer(x: Tensor, diagonal: int = 0) -> Tensor:
    mask = torch.ones(x.shape[-2], x.shape[-2], dtype=torch.bool).tril(diagonal)
    return attend(x @ x.mT / math.sqrt(x.shape[-1]), x, mask)[0]


def check_leak_test(answer: Answer) -> Verdict:
    """Check chapter 5's exercise "a leak test without gradients".

    Args:
        answer: ``answer(layer, x)`` says whether an output of ``layer``, a function from ``(L, d)``
            to ``(L, d)``, depends on an input after it.

    >>> check_leak_test(lambda layer, x: False)
    Not yet: "a layer without a mask" leaks, and was not found: change every input after a \
position, and compare the output there.
    """
    x = torch.randn(6, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for (name, leaks), (layer, why) in _LAYERS.items():
        found = answer(layer, x.clone())
        if unfilled(found):
            return Verdict(None, "return True or False.")
        if not isinstance(found, bool | Tensor):
            return Verdict(False, f"expected True or False, got {type(found).__name__}.")
        if bool(found) != leaks:
            what = "leaks, and was not found" if leaks else "does not leak, and was accused"
            return Verdict(False, f'"{name}" {what}: {why}')
    return Verdict(True, f"{len(_LAYERS)} layers, all judged rightly.")


def _with(mask: Tensor) -> Layer:
    return lambda x: attend(x @ x.mT / 2, x, mask)[0].detach()


def _masked_afterwards(x: Tensor) -> Tensor:
    return ((x @ x.mT / 2).softmax(-1).tril() @ x).detach()


def _peeks(position: int, ahead: int) -> Layer:
    """Causal, but for one position that also takes in one input after it."""

    def layer(x: Tensor) -> Tensor:
        output = _with(causal_mask(6))(x)
        output[position] += x[position + ahead].detach()
        return output

    return layer


# {(name, whether it leaks): (layer, what to do when it is judged wrongly)}
_LAYERS: dict[tuple[str, bool], tuple[Layer, str]] = {
    ("a layer without a mask", True): (
        _with(torch.ones(6, 6, dtype=torch.bool)),
        "change every input after a position, and compare the output there.",
    ),
    ("causal attention", False): (
        _with(causal_mask(6)),
        "an output may depend on its own input and on those before it; compare only the outputs "
        "before what you changed, up to rounding.",
    ),
    ("each position by itself", False): (
        lambda x: x.tanh().detach(),
        "an output that changes with its own input is no leak.",
    ),
    ("a mask that is off by one", True): (
        _with(torch.ones(6, 6).tril(1).bool()),
        "the position right before the change is where it shows.",
    ),
    ("a mask after the softmax", True): (
        _masked_afterwards,
        "its weights look right; change inputs and watch outputs.",
    ),
    ("one that peeks at the second input alone", True): (
        _peeks(0, 1),
        "only output 1 depends on input 2; changing the last input does not show it.",
    ),
    ("one that peeks at the last input alone", True): (
        _peeks(2, 3),
        "only output 3 depends on the last input; changing the next input does not show it.",
    ),
}
