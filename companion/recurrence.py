"""What chapter 1 measures on recurrent networks: gradient, information and memory by lag.

Everything here works on a *cell*: a module that maps ``(B, L, input_dim)`` to states
``(B, L, hidden_dim)``, or to a pair whose first entry they are, as :class:`torch.nn.RNN`,
:class:`torch.nn.GRU` and :class:`torch.nn.LSTM` with ``batch_first=True`` do. Lag k is the distance
from the last step back to the input in question: lag 0 is the last input itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from companion.attention import check_positive

Cell: TypeAlias = Callable[[Tensor], Any]


def tanh_rnn(
    spectral_radius: float, *, input_dim: int = 1, hidden_dim: int = 64, seed: int = 0
) -> nn.RNN:
    r"""Make a tanh network :math:`h_t = \tanh(W_x x_t + W_h h_{t-1})` with random weights.

    Args:
        spectral_radius: largest absolute eigenvalue of :math:`W_h`; below 1 the network forgets,
            above 1 it amplifies.
        input_dim: features of an input.
        hidden_dim: features of the state.
        seed: of the weights.

    Returns:
        A float64 :class:`torch.nn.RNN` without biases.

    Raises:
        TypeError, ValueError: a size that is not a positive integer; a radius that is not positive.

    Source: Elman 1990 (the network), Pascanu, Mikolov and Bengio 2013 (the radius). Chapter: 1.

    >>> cell = tanh_rnn(0.9, hidden_dim=8)
    >>> round(torch.linalg.eigvals(cell.weight_hh_l0).abs().max().item(), 6)
    0.9
    """
    if not spectral_radius > 0:
        raise ValueError(f"spectral_radius must be positive, got {spectral_radius}")
    cell: nn.RNN = _seeded(nn.RNN, seed, input_dim, hidden_dim, bias=False)
    with torch.no_grad():
        weight = torch.randn(
            hidden_dim, hidden_dim, dtype=torch.float64, generator=_generator(seed)
        )
        radius = torch.linalg.eigvals(weight).abs().max()
        cell.get_parameter("weight_hh_l0").copy_(weight * spectral_radius / radius)
    return cell


def gru(*, input_dim: int = 1, hidden_dim: int = 64, seed: int = 0) -> nn.GRU:
    """Make a GRU with torch's own initial weights, in float64.

    Raises:
        TypeError, ValueError: a size that is not a positive integer.

    Source: Cho et al. 2014. Chapter: 1.

    >>> gru(hidden_dim=8)
    GRU(1, 8, batch_first=True)
    """
    cell: nn.GRU = _seeded(nn.GRU, seed, input_dim, hidden_dim)
    return cell


def lstm(
    *,
    forget_bias: float = 0.0,
    input_bias: float = 0.0,
    input_dim: int = 1,
    hidden_dim: int = 64,
    seed: int = 0,
) -> nn.LSTM:
    """Make an LSTM whose gates start with chosen biases, in float64.

    Args:
        forget_bias: with b, the forget gate starts near ``sigmoid(b)``: what it keeps each step.
        input_bias: likewise for the input gate: how much of each new input it lets in.
        input_dim: features of an input.
        hidden_dim: features of the state.
        seed: of the weights.

    Raises:
        TypeError, ValueError: a size that is not a positive integer.

    Source: Hochreiter and Schmidhuber 1997; Gers, Schmidhuber and Cummins 2000 (the forget gate);
    Jozefowicz, Zaremba and Sutskever 2015 (a bias of 1); Tallec and Ollivier 2018 (biases of
    +ln L and -ln L for a memory of L steps). Chapter: 1.

    >>> cell = lstm(forget_bias=3.0, hidden_dim=2)
    >>> (cell.bias_ih_l0 + cell.bias_hh_l0).tolist()  # input, forget, candidate, output
    [0.0, 0.0, 3.0, 3.0, 0.0, 0.0, 0.0, 0.0]
    """
    cell: nn.LSTM = _seeded(nn.LSTM, seed, input_dim, hidden_dim)
    with torch.no_grad():
        cell.get_parameter("bias_hh_l0").zero_()  # torch adds two biases: one is enough
        bias = cell.get_parameter("bias_ih_l0").zero_()  # gates in the order i, f, g, o
        bias[:hidden_dim] = input_bias
        bias[hidden_dim : 2 * hidden_dim] = forget_bias
    return cell


def median_over_seeds(
    measure: Callable[..., Tensor], make: Callable[..., Cell], *, seeds: int, **options: Any
) -> Tensor:
    """Measure several cells that differ in their random weights alone, and take the median.

    Args:
        measure: called as ``measure(cell, **options)``, for example :func:`gradient_by_lag`.
        make: called as ``make(seed=seed)``; returns a cell.
        seeds: how many cells.
        **options: passed on to ``measure``.

    Returns:
        The median of each entry, of the shape that ``measure`` returns.

    Raises:
        TypeError, ValueError: ``seeds`` is not a positive integer.

    >>> median_over_seeds(gradient_by_lag, gru, seeds=3, max_lag=5).shape
    torch.Size([6])
    """
    check_positive(seeds=seeds)
    measured = torch.stack([measure(make(seed=seed), **options) for seed in range(seeds)])
    return measured.quantile(0.5, dim=0)


def gradient_by_lag(
    cell: Cell,
    *,
    input_dim: int = 1,
    max_lag: int = 50,
    burn_in: int = 100,
    trials: int = 64,
    seed: int = 0,
) -> Float[Tensor, "max_lag+1"]:
    r"""Measure how strongly the last state depends on the input k steps back, relative to lag 0.

    .. math:: g_k = \operatorname{median}\;
        \frac{\lVert \partial (u^\top h_T) / \partial x_{T-k} \rVert}
             {\lVert \partial (u^\top h_T) / \partial x_{T} \rVert}

    over random inputs x and random directions u.

    Args:
        cell: see the module's docstring.
        input_dim: features of an input.
        max_lag: largest lag measured.
        burn_in: inputs before the largest lag, so that the network's start has no influence.
        trials: sequences over which the median is taken.
        seed: of inputs and directions.

    Returns:
        ``(max_lag + 1,)``, no unit; entry 0 is 1.

    Raises:
        TypeError, ValueError: a size that is not a positive integer.

    Source: Bengio, Simard and Frasconi 1994; Pascanu, Mikolov and Bengio 2013. Chapter: 1.

    >>> gradient_by_lag(tanh_rnn(0.5), max_lag=20)[20] < 1e-4
    tensor(True)
    """
    check_positive(input_dim=input_dim, max_lag=max_lag, trials=trials)
    check_positive(burn_in=burn_in, at_least=0)
    x, generator = _noise(trials, burn_in + max_lag + 1, input_dim, seed)
    last = _states(cell, x.requires_grad_())[:, -1]
    direction = torch.randn(last.shape, dtype=last.dtype, generator=generator)
    (gradient,) = torch.autograd.grad((last * direction).sum(), x)
    norm = gradient.norm(dim=-1).flip(1)[:, : max_lag + 1]  # (trials, max_lag + 1), lag 0 first
    relative: Tensor = (norm / norm[:, :1]).quantile(0.5, dim=0)
    return relative


def information_by_lag(
    cell: Cell,
    *,
    input_dim: int = 1,
    max_lag: int = 50,
    burn_in: int = 100,
    trials: int = 4000,
    seed: int = 0,
) -> Float[Tensor, "max_lag+1"]:
    r"""Measure how much of the input k steps back a linear probe can read from the last state.

    A ridge regression from :math:`h_T` to :math:`x_{T-k}` is fitted on half of the sequences and
    scored on the other half: the share of the input's variance that it explains, :math:`R^2`.

    Args:
        cell: see the module's docstring; it is not trained.
        input_dim: features of an input.
        max_lag: largest lag probed.
        burn_in: inputs before the largest lag.
        trials: sequences, half of them to fit and half to score.
        seed: of the inputs.

    Returns:
        ``(max_lag + 1,)``: 1 where the input can be read exactly, 0 where it is lost (a little
        below 0 is the noise of the fit).

    Raises:
        TypeError, ValueError: a size that is not a positive integer.

    Source: Jaeger 2001 (memory capacity: for independent inputs these values cannot add up to more
    than ``hidden_dim``), Alain and Bengio 2016 (probes). Chapter: 1.

    >>> probe = information_by_lag(tanh_rnn(0.9), max_lag=40, trials=400)
    >>> probe[0] > 0.9, probe[40] < 0.1
    (tensor(True), tensor(True))
    """
    check_positive(input_dim=input_dim, max_lag=max_lag)
    check_positive(trials=trials, at_least=2)
    check_positive(burn_in=burn_in, at_least=0)
    x, _ = _noise(trials, burn_in + max_lag + 1, input_dim, seed)
    with torch.no_grad():
        state = _states(cell, x)[:, -1]
    features = torch.cat([state, torch.ones(trials, 1, dtype=state.dtype)], dim=1)
    target = x.flip(1)[:, : max_lag + 1].flatten(1)  # (trials, lags * input_dim)
    (fit_x, test_x), (fit_y, test_y) = features.chunk(2), target.chunk(2)
    ridge = 1e-6 * len(fit_x) * torch.eye(fit_x.shape[1], dtype=fit_x.dtype)
    coefficients = torch.linalg.solve(fit_x.T @ fit_x + ridge, fit_x.T @ fit_y)
    residual = (test_y - test_x @ coefficients).square().sum(0).view(max_lag + 1, -1).sum(1)
    spread = (test_y - fit_y.mean(0)).square().sum(0).view(max_lag + 1, -1).sum(1)
    explained: Tensor = 1 - residual / spread
    return explained


def learn_delayed_recall(
    cell: nn.LSTM | nn.GRU | nn.RNN,
    *,
    delay: int,
    num_symbols: int = 8,
    steps: int = 200,
    batch_size: int = 32,
    learning_rate: float = 1e-2,
    seed: int = 0,
    blanks: bool = True,
) -> float:
    """Train a cell to name, after a delay, the first symbol that it saw.

    The sequence is one symbol, then blanks, then a signal to answer. The cell is trained in place,
    together with a linear read-out, and tested on 500 new sequences.

    Args:
        cell: a recurrent module, or one that is called like it, with
            ``input_size == num_symbols + 1`` and a ``hidden_size``.
        delay: length of the sequence.
        num_symbols: how many symbols there are; chance is 1 over that.
        steps: training steps.
        batch_size: sequences a step.
        learning_rate: of Adam; gradients are clipped at norm 1.
        seed: of the read-out and the sequences.
        blanks: with False, other random symbols stand in place of the blanks.

    Returns:
        Accuracy on new sequences, 0 to 1.

    Raises:
        TypeError, ValueError: a size that is not a positive integer; a cell of another input size.

    Chapters: 1 and 5.

    >>> learn_delayed_recall(gru(input_dim=9), delay=3, steps=60)
    1.0
    """
    check_positive(delay=delay, num_symbols=num_symbols, steps=steps, batch_size=batch_size)
    if cell.input_size != num_symbols + 1:
        raise ValueError(
            f"cell must read num_symbols + 1 = {num_symbols + 1} features, got {cell.input_size}"
        )
    generator = _generator(seed)
    readout = _seeded_linear(cell.hidden_size, num_symbols, seed)
    parameters = [*cell.parameters(), *readout.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=learning_rate)

    def logits_and_target(batch: int) -> tuple[Tensor, Tensor]:
        symbol = torch.randint(num_symbols, (batch,), generator=generator)
        x = torch.zeros(batch, delay, num_symbols + 1, dtype=torch.float64)
        if not blanks:
            symbols = torch.randint(num_symbols, (batch, delay), generator=generator)
            x[:, 1:-1, :-1] = F.one_hot(symbols, num_symbols)[:, 1:-1].double()
        x[:, 0, :-1] = F.one_hot(symbol, num_symbols).double()
        x[:, -1, -1] = 1.0
        return readout(_states(cell, x)[:, -1]), symbol

    for _ in range(steps):
        logits, symbol = logits_and_target(batch_size)
        optimizer.zero_grad()
        F.cross_entropy(logits, symbol).backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
    with torch.no_grad():
        logits, symbol = logits_and_target(500)
    return float((logits.argmax(-1) == symbol).double().mean())


def _states(cell: Cell, x: Tensor) -> Tensor:
    if getattr(cell, "batch_first", True) is False:
        raise ValueError("cell must be built with batch_first=True: inputs are (B, L, input_dim)")
    output = cell(x)
    states: Tensor = output[0] if isinstance(output, tuple) else output
    return states


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _noise(batch: int, length: int, input_dim: int, seed: int) -> tuple[Tensor, torch.Generator]:
    generator = _generator(seed)
    shape = (batch, length, input_dim)
    return torch.randn(shape, dtype=torch.float64, generator=generator), generator


def _seeded(make: Callable[..., Any], seed: int, *sizes: int, **options: Any) -> Any:
    """Build a float64 module with weights from ``seed``, leaving torch's global seed alone."""
    check_positive(input_dim=sizes[0], hidden_dim=sizes[1])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make(*sizes, batch_first=True, dtype=torch.float64, **options)


def _seeded_linear(in_features: int, out_features: int, seed: int) -> nn.Linear:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Linear(in_features, out_features, dtype=torch.float64)
