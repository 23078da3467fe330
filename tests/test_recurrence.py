"""What chapter 1 measures: gradient, information and memory by lag."""

import pytest
import torch
from torch import nn

from companion.recurrence import (
    gradient_by_lag,
    gru,
    information_by_lag,
    learn_delayed_recall,
    lstm,
    median_over_seeds,
    tanh_rnn,
)

LAGS = torch.arange(11, dtype=torch.float64)


def leaky(keep):
    """The cell h_t = keep * h_(t-1) + x_t, whose gradient and memory are known."""

    def cell(x):
        state, states = torch.zeros_like(x[:, 0]), []
        for x_t in x.unbind(1):
            state = keep * state + x_t
            states.append(state)
        return torch.stack(states, dim=1)

    return cell


def register(size):
    """A cell that holds the last ``size`` inputs and nothing else."""

    def cell(x):  # (B, L, 1) -> (B, L, size)
        padded = torch.cat([torch.zeros(len(x), size - 1, 1, dtype=x.dtype), x], dim=1)
        return padded.squeeze(2).unfold(1, size, 1)

    return cell


# The cells


@pytest.mark.parametrize("radius", [0.5, 1.0, 1.7])
@pytest.mark.parametrize("seed", [0, 1])
def test_spectral_radius_is_exact(radius, seed):
    weight = tanh_rnn(radius, hidden_dim=16, seed=seed).weight_hh_l0
    assert torch.linalg.eigvals(weight).abs().max().item() == pytest.approx(radius, rel=1e-12)


def test_tanh_rnn_is_its_formula():
    cell = tanh_rnn(0.9, input_dim=2, hidden_dim=3)
    x = torch.randn(1, 2, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    w_x, w_h = cell.parameters()
    first = torch.tanh(x[:, 0] @ w_x.T)
    second = torch.tanh(x[:, 1] @ w_x.T + first @ w_h.T)
    torch.testing.assert_close(cell(x)[0], torch.stack([first, second], dim=1))


def test_lstm_gates_start_where_asked():
    cell = lstm(forget_bias=3.0, input_bias=-2.0, hidden_dim=2)
    bias = cell.bias_ih_l0 + cell.bias_hh_l0
    input_gate, forget_gate, candidate, output_gate = bias.detach().chunk(4)
    assert input_gate.tolist() == [-2.0, -2.0]
    assert forget_gate.tolist() == [3.0, 3.0]
    assert candidate.tolist() == output_gate.tolist() == [0.0, 0.0]


CELLS = {
    "rnn": lambda **sizes: tanh_rnn(0.9, **sizes),
    "gru": gru,
    "lstm": lstm,
}
each_cell = pytest.mark.parametrize("make", CELLS.values(), ids=CELLS)


@each_cell
def test_cells_are_float64_and_batch_first(make):
    output, _ = make(input_dim=2, hidden_dim=3)(torch.zeros(4, 5, 2, dtype=torch.float64))
    assert output.shape == (4, 5, 3)


@each_cell
def test_a_seed_fixes_the_weights_and_leaves_torchs_alone(make):
    torch.manual_seed(123)
    before = torch.get_rng_state()
    cells = [make(hidden_dim=4, seed=seed) for seed in (5, 5, 6)]
    assert torch.equal(torch.get_rng_state(), before)
    first, same, other = (nn.utils.parameters_to_vector(cell.parameters()) for cell in cells)
    assert torch.equal(first, same)
    assert not torch.equal(first, other)


@each_cell
@pytest.mark.parametrize("name", ["input_dim", "hidden_dim"])
def test_cells_refuse_wrong_sizes(make, name):
    with pytest.raises(ValueError, match=f"{name} must be at least 1, got 0"):
        make(**{name: 0})
    with pytest.raises(TypeError, match=f"{name} must be an integer, got float"):
        make(**{name: 2.0})


@pytest.mark.parametrize("radius", [0.0, -0.5, float("nan")])
def test_tanh_rnn_refuses_a_radius_that_is_not_positive(radius):
    with pytest.raises(ValueError, match="spectral_radius must be positive, got"):
        tanh_rnn(radius)


# gradient_by_lag


@pytest.mark.parametrize("keep", [0.5, 0.9, 1.1])
def test_gradient_of_a_leaky_cell_is_known(keep):
    gradient = gradient_by_lag(leaky(keep), max_lag=10, burn_in=5, trials=4)
    torch.testing.assert_close(gradient, keep**LAGS)


def test_gradient_of_a_register_ends_with_it():
    gradient = gradient_by_lag(register(4), max_lag=6, burn_in=5, trials=2001)
    # Medians of a ratio of two independent absolute normal numbers: 1.
    torch.testing.assert_close(gradient[:4], torch.ones(4).double(), atol=0.1, rtol=0)
    assert (gradient[4:] == 0).all()


def test_gradient_counts_lags_from_the_last_input():
    def last_but_two(x):
        return x + 3 * x.roll(2, dims=1)

    gradient = gradient_by_lag(last_but_two, max_lag=4, burn_in=0, trials=3)
    torch.testing.assert_close(gradient, torch.tensor([1.0, 0, 3, 0, 0]).double())


def test_a_larger_radius_and_a_larger_forget_bias_carry_gradients_further():
    options = {"max_lag": 20, "burn_in": 20, "trials": 16}
    small, large = (gradient_by_lag(tanh_rnn(r, hidden_dim=16), **options)[20] for r in (0.5, 0.9))
    assert small < 1e-4 < large
    low, high = (
        gradient_by_lag(lstm(forget_bias=b, hidden_dim=16), **options)[20] for b in (0.0, 4.0)
    )
    assert 100 * low < high


# information_by_lag


@pytest.mark.parametrize("keep", [0.5, 0.9])
def test_information_in_a_leaky_cell_is_known(keep):
    information = information_by_lag(leaky(keep), max_lag=10, burn_in=60, trials=20_000)
    expected = keep ** (2 * LAGS) * (1 - keep**2)  # squared correlation of x_(T-k) and h_T
    torch.testing.assert_close(information, expected, atol=0.02, rtol=0)


def test_information_in_a_register_is_all_or_nothing():
    information = information_by_lag(register(4), max_lag=6, burn_in=5, trials=2000)
    torch.testing.assert_close(information[:4], torch.ones(4).double(), atol=1e-6, rtol=0)
    torch.testing.assert_close(information[4:], torch.zeros(3).double(), atol=0.02, rtol=0)


@pytest.mark.parametrize(
    "cell", [tanh_rnn(0.9, hidden_dim=6), gru(hidden_dim=6), lstm(hidden_dim=6), register(6)],
    ids=["rnn", "gru", "lstm", "register"],
)  # fmt: skip
def test_information_is_at_most_1_a_lag_and_hidden_dim_in_total(cell):
    information = information_by_lag(cell, max_lag=30, burn_in=30, trials=2000)
    assert information.max() <= 1
    assert information.min() > -0.05
    assert information.clamp(min=0).sum() <= 6.1


@pytest.mark.parametrize("measure", [gradient_by_lag, information_by_lag])
def test_measures_repeat_with_their_seed_and_leave_torchs_alone(measure):
    cell, options = gru(input_dim=2, hidden_dim=4), {"input_dim": 2, "max_lag": 5, "trials": 20}
    torch.manual_seed(123)
    before = torch.get_rng_state()
    first, same, other = (measure(cell, **options, seed=seed) for seed in (5, 5, 6))
    assert torch.equal(torch.get_rng_state(), before)
    assert first.shape == (6,)
    assert torch.equal(first, same)
    assert not torch.equal(first, other)
    assert all(parameter.grad is None for parameter in cell.parameters())


@pytest.mark.parametrize("measure", [gradient_by_lag, information_by_lag])
@pytest.mark.parametrize("name", ["input_dim", "max_lag", "trials"])
def test_measures_refuse_wrong_sizes(measure, name):
    with pytest.raises(ValueError, match=f"{name} must be at least "):
        measure(gru(hidden_dim=2), **{name: 0})
    with pytest.raises(TypeError, match=f"{name} must be an integer, got float"):
        measure(gru(hidden_dim=2), **{name: 2.0})


@pytest.mark.parametrize("measure", [gradient_by_lag, information_by_lag])
def test_measures_refuse_a_burn_in_below_0(measure):
    with pytest.raises(ValueError, match="burn_in must be at least 0, got -5"):
        measure(gru(hidden_dim=2), burn_in=-5)


def test_a_probe_needs_one_sequence_to_fit_and_one_to_score():
    with pytest.raises(ValueError, match="trials must be at least 2, got 1"):
        information_by_lag(gru(hidden_dim=2), trials=1)


def test_the_median_is_taken_over_cells_entry_by_entry():
    table = torch.tensor([[1.0, 9.0], [2.0, 7.0], [9.0, 8.0]])
    median = median_over_seeds(
        lambda cell, scale: cell * scale, lambda seed: table[seed], seeds=3, scale=2
    )
    assert median.tolist() == [4.0, 16.0]
    with pytest.raises(ValueError, match="seeds must be at least 1, got 0"):
        median_over_seeds(gradient_by_lag, gru, seeds=0)


# learn_delayed_recall


def test_a_short_delay_is_learned_and_a_long_one_is_not():
    short, long = (
        learn_delayed_recall(tanh_rnn(0.5, input_dim=9, hidden_dim=16), delay=delay, steps=60)
        for delay in (2, 40)
    )
    assert short > 0.95
    assert long < 0.3


class SecondInput(torch.nn.Module):
    """A cell whose last state is the sequence's second input."""

    input_size, hidden_size = 5, 4

    def forward(self, x):
        return x[:, 1:2, :4].expand(-1, x.shape[1], -1)


def test_other_symbols_may_stand_in_place_of_blanks():
    """They are random, and the answer is still the first symbol: the second one is of no use."""
    seen = []
    cell = SecondInput()
    cell.register_forward_hook(lambda _, inputs, __: seen.append(inputs[0]))
    options = {"delay": 6, "num_symbols": 4, "steps": 30}
    assert learn_delayed_recall(cell, blanks=False, **options) < 0.4
    symbols = seen[-1][..., :4]
    assert (symbols[:, :-1].sum(-1) == 1).all()
    assert (symbols[:, -1] == 0).all()
    assert (seen[-1][:, -1, 4] == 1).all()
    assert (symbols[:, 1:-1].mean((0, 1)) - 0.25).abs().max() < 0.1
    learn_delayed_recall(cell, **options)
    assert (seen[-1][:, 1:-1] == 0).all()


def test_recall_trains_the_cell_repeatably_and_leaves_torchs_seed_alone():
    torch.manual_seed(123)
    before = torch.get_rng_state()
    cells = [gru(input_dim=4, hidden_dim=5) for _ in range(2)]
    scores = [learn_delayed_recall(cell, delay=3, num_symbols=3, steps=5, seed=7) for cell in cells]
    assert torch.equal(torch.get_rng_state(), before)
    assert scores[0] == scores[1]
    for one, other, initial in zip(
        *(cell.parameters() for cell in (*cells, gru(input_dim=4, hidden_dim=5))), strict=True
    ):
        assert torch.equal(one, other)
        assert not torch.equal(one, initial)


def test_recall_refuses_a_cell_of_another_input_size():
    with pytest.raises(ValueError, match=r"num_symbols \+ 1 = 9 features, got 1"):
        learn_delayed_recall(gru(hidden_dim=2), delay=3)


@pytest.mark.parametrize("name", ["delay", "num_symbols", "steps", "batch_size"])
def test_recall_refuses_wrong_sizes(name):
    with pytest.raises(ValueError, match=f"{name} must be at least "):
        learn_delayed_recall(gru(input_dim=9), **{"delay": 3, name: 0})
