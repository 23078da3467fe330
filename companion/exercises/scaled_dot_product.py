"""Checks of the exercises of chapter 4."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from companion.checks import check_attention
from companion.cost import largest_tensor_bytes
from companion.exercises.verdict import Answer, Verdict, unfilled


def check_score_spread(answer: Answer) -> Verdict:
    """Check chapter 4's exercise "how far apart are the scores?".

    Args:
        answer: ``answer(d, query_std, key_std)`` returns the standard deviation of
            ``q @ k`` for ``d`` independent parts with mean 0 and these standard deviations.

    >>> check_score_spread(lambda d, query_std, key_std: d * query_std**2 * key_std**2)
    Not yet: for d = 4 and standard deviations 3.0 and 0.5 expected 3.000, got 9.000: this is the \
variance; its root is the standard deviation.
    """
    for d, query_std, key_std in ((4, 3.0, 0.5), (64, 1.0, 1.0), (256, 0.5, 0.1)):
        spread = answer(d, query_std, key_std)
        if unfilled(spread):
            return Verdict(None, "return the standard deviation, a number.")
        spread, expected = float(spread), math.sqrt(d) * query_std * key_std
        if math.isclose(spread, expected, rel_tol=1e-6):
            continue
        hint = "each of the d products has variance query_std**2 * key_std**2; add them up."
        if math.isclose(spread, expected**2, rel_tol=1e-6):
            hint = "this is the variance; its root is the standard deviation."
        elif math.isclose(spread, math.sqrt(d), rel_tol=1e-6):
            hint = "this holds for parts of standard deviation 1; multiply by both of theirs."
        elif math.isclose(spread, d * query_std * key_std, rel_tol=1e-6):
            hint = (
                "variances add up, not standard deviations: d variances give a factor of sqrt(d)."
            )
        return Verdict(
            False,
            f"for d = {d} and standard deviations {query_std} and {key_std} expected "
            f"{expected:.3f}, got {spread:.3f}: {hint}",
        )
    return Verdict(True, "it grows with the root of d, and with the size of both sides.")


def check_scaled_attention(answer: Answer) -> Verdict:
    """Check chapter 4's exercise "three mistakes", with the battery of checks.

    Args:
        answer: ``answer(query, key, value, mask=None)`` returns the output of scaled dot-product
            attention, or the output and the weights; a mask is True where a query may attend.

    >>> import torch.nn.functional as F
    >>> check_scaled_attention(F.scaled_dot_product_attention).right
    True
    >>> check_scaled_attention(lambda q, k, v, mask=None: (q @ k.mT).softmax(-1) @ v)
    Not yet: "scale" fails (scores = 1 × q·k, expected 0.25: not divided at all). Scores are q·k / \
√d, with d the features of one head: `/ math.sqrt(d_head)`. For unscaled dot products on purpose \
say scaled=False.
    """
    draw = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(2, length, 16, generator=draw) for length in (3, 4, 4))
    if unfilled(answer(query, key, value)):
        return Verdict(None, "return the output, a tensor (B, L_q, d_v).")
    report = check_attention(answer)
    if report.failed:
        name = report.failed[0]
        failure = report[name]
        return Verdict(False, f'"{name}" fails ({failure.seen}). {failure.hint}')
    if "scale" in report.skipped:
        return Verdict(False, f"the scale could not be seen: {report['scale'].seen}.")
    return Verdict(True, f"{len(report.passed)} checks passed, none failed.")


def check_softmax_backward(answer: Answer) -> Verdict:
    """Check chapter 4's exercise "back through the softmax".

    Args:
        answer: ``answer(weights, gradient)`` returns the gradient of the loss with respect to the
            scores ``(L_q, L_k)``, given the weights and the gradient with respect to them, without
            making a tensor of more than ``4 * L_q * L_k`` numbers.

    >>> check_softmax_backward(lambda weights, gradient: weights * gradient)
    Not yet: the rows of a gradient with respect to scores add up to 0, yours do not: raising \
every score of a row changes no weight; the part with p pᵀ is missing.
    """
    draw = torch.Generator().manual_seed(0)
    scores, gradient = torch.randn(2, 40, 50, generator=draw, dtype=torch.float64)
    weights = scores.softmax(-1)
    found = answer(weights.clone(), gradient.clone())
    if unfilled(found):
        return Verdict(None, "return the gradient, a tensor of the shape of the weights.")
    if not isinstance(found, Tensor) or found.shape != weights.shape:
        got = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
        return Verdict(False, f"expected a tensor of shape {tuple(weights.shape)}, got {got}.")
    expected = weights * (gradient - (weights * gradient).sum(-1, keepdim=True))
    if not torch.allclose(found, expected):
        return Verdict(False, _explain_backward(found, weights, gradient))
    allowed = 4 * weights.numel() * weights.element_size()
    largest = largest_tensor_bytes(lambda: answer(weights, gradient))
    if largest > allowed:
        return Verdict(
            False,
            f"the gradient is right, but the largest tensor has {largest // 1024} KiB and "
            f"{allowed // 1024} are allowed: the Jacobian is written out; multiply by its two "
            "parts, diag(p) and p pᵀ, one after the other.",
        )
    return Verdict(True, "the same as autograd's, without writing out a Jacobian.")


def _explain_backward(found: Tensor, weights: Tensor, gradient: Tensor) -> str:
    if torch.allclose(found, weights * (1 - weights) * gradient):
        return (
            "only the diagonal of the Jacobian was used: a score also moves the other weights of "
            "its row, by -p_i p_j."
        )
    if found.sum(-1).abs().max() > 1e-6:
        return (
            "the rows of a gradient with respect to scores add up to 0, yours do not: raising "
            "every score of a row changes no weight; the part with p pᵀ is missing."
        )
    return "it differs from autograd's; multiply out (diag(p) - p pᵀ) g for one row."
