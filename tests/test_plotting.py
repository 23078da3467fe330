"""Figures: what was passed in is what is drawn, and it can be read without colour."""

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt
import pytest
import seaborn as sns
import torch
from matplotlib.colors import to_rgb

from companion.plotting import (
    plot_by_lag,
    plot_costs,
    plot_gradients,
    plot_groups,
    plot_losses,
    plot_weights,
    use_style,
)

TEXTS = {"ylabel": "how much", "title": "It falls"}


@pytest.fixture(autouse=True)
def _clean_figures():
    """Each test has the book's style, and leaves neither figures nor settings behind."""
    with mpl.rc_context():
        use_style()
        yield
    plt.close("all")


def draw_lines(number):
    """Every figure made of lines, with ``number`` of them: (axes, points expected of line 0)."""
    names = [f"model {index}" for index in range(number)]
    return {
        "by_lag": (
            plot_by_lag({n: torch.tensor([1.0, 0.5, 0.25]) for n in names}, **TEXTS),
            [[0, 1], [1, 0.5], [2, 0.25]],
        ),
        "groups": (
            plot_groups({n: {"1-4": 0.25, "5+": 0.75} for n in names}, xlabel="letters", **TEXTS),
            [[0, 0.25], [1, 0.75]],
        ),
        "costs": (
            plot_costs({n: {64: 0.5, 128: 2.0} for n in names}, xlabel="length", **TEXTS),
            [[64, 0.5], [128, 2.0]],
        ),
    }


@pytest.mark.parametrize("name", ["by_lag", "groups", "costs"])
def test_lines_show_the_numbers_and_their_names(name):
    figure, points = draw_lines(2)[name]
    (axes,) = figure.axes
    figure.canvas.draw()
    for line in axes.lines:
        assert line.get_xydata().tolist() == points
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["model 0", "model 1"]
    assert axes.get_ylabel() == "how much"
    assert axes.get_title() == "It falls"
    assert axes.get_xlabel()


@pytest.mark.parametrize("name", ["by_lag", "groups", "costs"])
def test_seven_lines_differ_in_more_than_colour(name):
    figure, _ = draw_lines(7)[name]
    looks = {(str(line._dash_pattern), line.get_marker()) for line in figure.axes[0].lines}
    assert len(looks) == 7


def test_groups_keep_their_order_and_start_at_0():
    (axes,) = draw_lines(1)["groups"][0].axes
    axes.figure.canvas.draw()
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["1-4", "5+"]
    assert axes.get_ylim()[0] == 0


def test_costs_name_each_size_on_logarithmic_axes():
    (axes,) = draw_lines(1)["costs"][0].axes
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["64", "128"]


@pytest.mark.parametrize(("log", "scale"), [(False, "linear"), (True, "log")])
def test_by_lag_can_be_logarithmic(log, scale):
    figure = plot_by_lag({"a": torch.tensor([1.0, 0.1])}, log=log, **TEXTS)
    assert figure.axes[0].get_yscale() == scale


def test_losses_are_running_means():
    losses = {"run": list(map(float, range(25))), "short": [4.0, 2.0]}
    figure = plot_losses(losses, title="")
    long, short = (line.get_ydata() for line in figure.axes[0].lines)
    assert list(long) == [9.5, 10.5, 11.5, 12.5, 13.5, 14.5]
    assert list(short) == [3.0]


def test_a_running_mean_is_drawn_at_the_step_that_completes_it():
    figure = plot_losses({"run": [1.0] * 25}, title="")
    assert list(figure.axes[0].lines[0].get_xdata()) == [19, 20, 21, 22, 23, 24]


# Attention weights

WEIGHTS = torch.tensor([[0.1, 0.2, 0.7], [0.0, 1.0, 0.0]])
TOKENS = {"query_tokens": [["K", "AE"]] * 2, "key_tokens": [list("cab")] * 2}


def test_weights_are_drawn_on_one_scale_with_their_tokens():
    figure = plot_weights({"left": WEIGHTS, "right": WEIGHTS / 2}, **TOKENS, title="It looks")
    left, right, bar = figure.axes
    for axes, values, caption in ((left, WEIGHTS, "left"), (right, WEIGHTS / 2, "right")):
        (mesh,) = axes.collections
        assert mesh.get_array().reshape(2, 3).tolist() == values.tolist()
        assert mesh.get_clim() == (0, 1)
        assert [tick.get_text() for tick in axes.get_xticklabels()] == ["c", "a", "b"]
        assert [tick.get_text() for tick in axes.get_yticklabels()] == ["K", "AE"]
        assert axes.get_xlabel() == "key"
        assert axes.get_title() == caption
    assert left.get_ylabel() == "query"
    assert bar.get_ylabel() == "weight"
    assert figure.get_suptitle() == "It looks"


def test_the_first_query_is_at_the_top():
    axes = plot_weights({"one": WEIGHTS, "two": WEIGHTS}, **TOKENS, title="").axes[0]
    bottom, top = axes.get_ylim()
    assert top < bottom


def test_weights_may_need_a_gradient():
    plot_weights(
        dict.fromkeys(["one", "two"], WEIGHTS.clone().requires_grad_()), **TOKENS, title=""
    )


def test_weights_refuse_tokens_of_another_number():
    with pytest.raises(ValueError, match=r"one: weights must be \(2, 3\) .*, got \(3, 2\)"):
        plot_weights({"one": WEIGHTS.T}, **TOKENS, title="")


def test_gradients_are_drawn_on_one_logarithmic_scale_with_blanks_where_there_is_no_path():
    values = torch.tensor([[2.0, 0.0], [0.2, 1.0]])
    figure = plot_gradients({"left": values, "right": values.T}, title="It fades")
    left, right, bar = figure.axes
    for axes, expected in ((left, values / 2), (right, values.T / 2)):
        (mesh,) = axes.collections
        drawn = mesh.get_array().reshape(2, 2)
        assert drawn.filled(0).tolist() == expected.tolist()
        assert drawn.mask.tolist() == (expected == 0).tolist()
        assert mesh.get_clim() == (1e-8, 1)
        assert axes.get_xlabel() == "input"
    assert (left.get_ylabel(), left.get_title(), right.get_title()) == ("output", "left", "right")
    assert bar.get_yscale() == "log"
    assert figure.get_suptitle() == "It fades"


# The style


def test_the_palette_is_the_colour_blind_safe_one():
    cycle = [to_rgb(colour) for colour in mpl.rcParams["axes.prop_cycle"].by_key()["color"]]
    assert cycle == [to_rgb(colour) for colour in sns.color_palette("colorblind")]


def test_figures_have_a_ground_of_their_own_on_dark_pages():
    assert to_rgb(mpl.rcParams["figure.facecolor"]) == (1, 1, 1)
