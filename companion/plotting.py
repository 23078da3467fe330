"""Figures of the book, in one style. Imported by notebooks alone: needs the extra ``plot``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import seaborn as sns
import torch
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from torch import Tensor

# Distinguished by dash and marker too, not by colour alone.
_DASHES = ["-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 2)), (0, (6, 3))]
_MARKERS = ["o", "s", "^", "D", "v", "P", "X"]


def use_style() -> None:
    """Set the book's style: colour-blind safe, white ground (readable on dark pages as a card)."""
    sns.set_theme(
        context="notebook",
        style="whitegrid",
        palette="colorblind",
        rc={
            "figure.figsize": (7.0, 3.8),
            "figure.dpi": 110,
            "figure.constrained_layout.use": True,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.titlesize": "medium",
            "axes.titleweight": "bold",
            "legend.frameon": False,
            "legend.fontsize": "small",
        },
    )


def plot_by_lag(
    curves: Mapping[str, Tensor], *, ylabel: str, title: str, log: bool = False
) -> Figure:
    """Draw one curve a model against the lag.

    Args:
        curves: ``{model: values}``, each ``(max_lag + 1,)``.
        ylabel: what the values are.
        title: the finding.
        log: whether the vertical axis is logarithmic.

    Returns:
        The figure.
    """
    figure, axes = plt.subplots()
    for index, (label, values) in enumerate(curves.items()):
        axes.plot(values.tolist(), label=label, linestyle=_dash(index), linewidth=2)
    if log:
        axes.set_yscale("log")
    axes.set(xlabel="lag: steps back from the last input", ylabel=ylabel, title=title)
    _legend_outside(axes)
    return figure


def plot_groups(
    series: Mapping[str, Mapping[str, float]], *, xlabel: str, ylabel: str, title: str
) -> Figure:
    """Draw values by group (for example error rates by word length), one line a model.

    Args:
        series: ``{model: {group: value}}``, the groups in order.
        xlabel: what the groups are.
        ylabel: what the values are.
        title: the finding.

    Returns:
        The figure; the vertical axis starts at 0.
    """
    figure, axes = plt.subplots()
    _plot_marked(axes, series)
    axes.set(xlabel=xlabel, ylabel=ylabel, title=title)
    axes.set_ylim(bottom=0)
    _legend_outside(axes)
    return figure


def plot_bars(values: Mapping[str, float], *, xlabel: str, ylabel: str, title: str) -> Figure:
    """Draw one bar a name.

    Args:
        values: ``{name: value}``, from left to right.
        xlabel: what the names are.
        ylabel: what the values are.
        title: the finding.

    Returns:
        The figure.
    """
    figure, axes = plt.subplots()
    axes.bar(list(values), list(values.values()))
    axes.axhline(0, color="black", linewidth=1)
    axes.grid(visible=False, axis="x")
    axes.set(xlabel=xlabel, ylabel=ylabel, title=title)
    return figure


def plot_losses(losses: Mapping[str, Sequence[float]], *, title: str) -> Figure:
    """Draw training losses against the step, each the running mean of 20 steps.

    Args:
        losses: ``{run: loss of each step}`` in nats.
        title: the finding.

    Returns:
        The figure.
    """
    figure, axes = plt.subplots()
    for index, (label, values) in enumerate(losses.items()):
        width = min(20, len(values))
        smooth = torch.tensor(values, dtype=torch.float64).unfold(0, width, 1).mean(-1)
        axes.plot(
            range(width - 1, len(values)),
            smooth.tolist(),
            label=label,
            linestyle=_dash(index),
            linewidth=2,
        )
    axes.set(xlabel="training step", ylabel="loss (nats)", title=title)
    axes.set_ylim(bottom=0)
    _legend_outside(axes)
    return figure


def plot_weights(
    weights: Mapping[str, Tensor],
    *,
    query_tokens: Sequence[Sequence[str]],
    key_tokens: Sequence[Sequence[str]],
    title: str,
) -> Figure:
    """Draw attention weights as heat maps side by side, on one scale from 0 to 1.

    Args:
        weights: ``{caption: (L_q, L_k)}``.
        query_tokens: for each map, the queries' names, from top to bottom.
        key_tokens: for each map, the keys' names, from left to right.
        title: the finding.

    Returns:
        The figure.

    Raises:
        ValueError: a map whose sizes differ from its tokens'.
    """
    for (caption, values), rows, columns in zip(
        weights.items(), query_tokens, key_tokens, strict=True
    ):
        if values.shape != (len(rows), len(columns)):
            raise ValueError(
                f"{caption}: weights must be {(len(rows), len(columns))} as the tokens are, "
                f"got {tuple(values.shape)}"
            )
    figure, all_axes = plt.subplots(1, len(weights), figsize=(7.0, 3.6), squeeze=False)
    for index, (axes, (caption, values)) in enumerate(
        zip(all_axes[0], weights.items(), strict=True)
    ):
        sns.heatmap(
            values.detach().numpy(),
            ax=axes,
            vmin=0,
            vmax=1,
            cmap="viridis",
            xticklabels=list(key_tokens[index]),
            yticklabels=list(query_tokens[index]),
            cbar=index == len(weights) - 1,
            cbar_kws={"label": "weight"},
        )
        axes.tick_params(axis="y", rotation=0)
        axes.tick_params(axis="x", rotation=0)
        axes.set(xlabel="key", ylabel="query" if index == 0 else "", title=caption)
    figure.suptitle(title, fontsize="medium", fontweight="bold")
    return figure


def plot_gradients(gradients: Mapping[str, Tensor], *, title: str) -> Figure:
    """Draw how strongly each output depends on each input, as heat maps on one logarithmic scale.

    Args:
        gradients: ``{caption: (outputs, inputs)}``, not negative, not all 0. Each map is divided by
            its largest entry. Where there is no path from input to output, at exactly 0, the map
            stays blank.
        title: the finding.

    Returns:
        The figure.
    """
    figure, all_axes = plt.subplots(1, len(gradients), figsize=(7.0, 3.6), squeeze=False)
    for index, (axes, (caption, values)) in enumerate(
        zip(all_axes[0], gradients.items(), strict=True)
    ):
        sns.heatmap(
            (values / values.max()).detach().numpy(),
            mask=(values == 0).numpy(),
            ax=axes,
            norm=LogNorm(1e-8, 1),
            cmap="viridis",
            xticklabels=10,
            yticklabels=10,
            square=True,
            cbar=index == len(gradients) - 1,
            cbar_kws={"label": "gradient, over its largest", "shrink": 0.8},
        )
        axes.grid(visible=False)
        axes.set(xlabel="input", ylabel="output" if index == 0 else "", title=caption)
    figure.suptitle(title, fontsize="medium", fontweight="bold")
    return figure


def plot_costs(
    costs: Mapping[str, Mapping[int, float]], *, xlabel: str, ylabel: str, title: str
) -> Figure:
    """Draw costs against a size, both axes logarithmic.

    Args:
        costs: ``{method: {size: cost}}``.
        xlabel: what the size is.
        ylabel: what the cost is, with its unit.
        title: the finding.

    Returns:
        The figure.
    """
    figure, axes = plt.subplots()
    _plot_marked(axes, costs)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    sizes = sorted({size for values in costs.values() for size in values})
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.set(xlabel=xlabel, ylabel=ylabel, title=title)
    _legend_outside(axes)
    return figure


def _plot_marked(axes: Axes, series: Mapping[str, Mapping[Any, float]]) -> None:
    for index, (label, values) in enumerate(series.items()):
        axes.plot(
            list(values),
            list(values.values()),
            label=label,
            marker=_MARKERS[index % len(_MARKERS)],
            linestyle=_dash(index),
            linewidth=2,
        )


def _dash(index: int) -> str | tuple[int, tuple[int, ...]]:
    return _DASHES[index % len(_DASHES)]  # type: ignore[return-value]


def _legend_outside(axes: Axes) -> None:
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
