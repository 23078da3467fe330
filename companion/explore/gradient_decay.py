"""How a gradient fades with distance, and what sets the pace (chapter 1)."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from jaxtyping import Float
from torch import Tensor

from companion.attention import check_positive
from companion.explore.explorer import Explorer, plain_table

RADII, BIASES = (0.8, 0.9, 1.0, 1.1), (0.0, 1.0, 3.0, 4.6)


def explore_gradient_decay(
    measured: Mapping[str, Float[Tensor, "L"]] | None = None, *, max_lag: int = 50
) -> Explorer:
    r"""Show the gradient n steps back, with sliders for what a step multiplies it by.

    The lines are formulas, computed in the page: :math:`\rho^n` for a recurrent matrix of spectral
    radius :math:`\rho` without the tanh, and :math:`\operatorname{sigmoid}(b)^n` for the cell of an
    LSTM with forget bias b, without the recurrent weights. The curves that chapter 1 measures on
    whole networks can be laid over them as dots, to see how far the formulas carry.

    Args:
        measured: ``{network: gradient}``, entry k at lag k, relative to lag 0, for example from
            :func:`companion.recurrence.gradient_by_lag`; each at least ``max_lag + 1`` long.
        max_lag: largest distance shown, a multiple of 5, at most 1000.

    Raises:
        TypeError: a lag that is not an integer.
        ValueError: a lag that is not a multiple of 5 from 5 to 1000; a curve that is too short, not
            finite or not positive.

    Source: Pascanu, Mikolov and Bengio 2013; Jozefowicz, Zaremba and Sutskever 2015. Chapter: 1.

    >>> explore_gradient_decay()
    Gradient 50 steps back, relative to the last step
    spectral radius 0.8: 1.4e-05 by radius^n
    spectral radius 0.9: 0.0052 by radius^n
    spectral radius 1.0: 1 by radius^n
    spectral radius 1.1: 1.2e+02 by radius^n
    forget bias 0.0: 8.9e-16 by sigmoid(bias)^n
    forget bias 1.0: 1.6e-07 by sigmoid(bias)^n
    forget bias 3.0: 0.088 by sigmoid(bias)^n
    forget bias 4.6: 0.61 by sigmoid(bias)^n
    """
    check_positive(max_lag=max_lag)
    if max_lag % 5 or max_lag > 1000:
        raise ValueError(f"max_lag must be a multiple of 5 up to 1000, got {max_lag}")
    curves = {name: _every_fifth(name, c, max_lag) for name, c in (measured or {}).items()}
    rows = [[f"spectral radius {r}", f"{r**max_lag:.2g}", "radius^n"] for r in RADII]
    kept = {bias: 1 / (1 + math.exp(-bias)) for bias in BIASES}
    rows += [[f"forget bias {b}", f"{k**max_lag:.2g}", "sigmoid(bias)^n"] for b, k in kept.items()]
    rows += [[name, f"{10 ** logs[-1]:.1g}", "measurement"] for name, logs in curves.items()]
    head = f"Gradient {max_lag} steps back, relative to the last step"
    text = "\n".join([head, *(f"{name}: {value} by {how}" for name, value, how in rows)])
    table = plain_table(head, ["network", "gradient", "by"], rows)
    title = "How fast does a gradient fade?"
    data = {"lags": max_lag, "measured": curves}
    return Explorer(title, text, table, "gradient_decay.js", data)


def _every_fifth(name: str, curve: Tensor, max_lag: int) -> list[float]:
    values = torch.as_tensor(curve).detach().double()
    if values.ndim != 1 or len(values) <= max_lag:
        raise ValueError(
            f"measured[{name!r}] must hold lags 0 to {max_lag}, got the shape {tuple(values.shape)}"
        )
    values = values[: max_lag + 1]
    if not (values.isfinite() & (values > 0)).all():
        raise ValueError(f"measured[{name!r}] must be positive and finite")
    return [round(log, 2) for log in values[::5].log10().tolist()]
