"""How many heads? Small models that differ in nothing else, trained one after the other."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import torch
from tqdm import tqdm

from companion.attention import check_positive
from companion.g2p.evaluation import predict
from companion.g2p.lexicon import load_lexicon, select_split
from companion.g2p.metrics import error_rates
from companion.g2p.model_files import CHECKPOINTS, replace_file
from companion.g2p.training import training_pairs, training_steps
from companion.g2p.transformer import TransformerG2P

SWEEP = CHECKPOINTS / "head_sweep.json"
HEADS = (1, 2, 4, 8, 16)
SEEDS = (0, 1)

SweepRun: TypeAlias = dict[str, Any]


def read_sweep(path: Path = SWEEP) -> list[SweepRun]:
    """Read the runs that have been recorded, none if there is no file.

    Returns:
        For each run ``heads``, ``seed``, ``steps``, ``parameters``, ``wall_minutes``, and the test
        split's ``word_error_rate`` and ``phoneme_error_rate``.

    Chapter: 6.

    >>> sorted({run["heads"] for run in read_sweep()})
    [1, 2, 4, 8, 16]
    """
    runs: list[SweepRun] = json.loads(path.read_text("utf-8")) if path.exists() else []
    return runs


def head_sweep(
    *,
    steps: int,
    path: Path = SWEEP,
    heads: Sequence[int] = HEADS,
    seeds: Sequence[int] = SEEDS,
    d_model: int = 64,
) -> list[SweepRun]:
    """Train a small Transformer for each number of heads and each seed, and score it.

    The models have the same number of parameters, since the heads share ``d_model`` features. Each
    run is written to the file as soon as it is done, and is not repeated if it is there already.

    Args:
        steps: training steps of each run.
        path: the JSON file that holds the runs.
        heads: numbers of heads, divisors of ``d_model``.
        seeds: of the initial weights and the batches.
        d_model: features of a position's state.

    Returns:
        The runs, as :func:`read_sweep`.

    Raises:
        TypeError, ValueError: sizes that are not positive integers; heads that do not divide
            ``d_model``; a file whose runs have another number of steps.
    """
    check_positive(steps=steps)
    runs = read_sweep(path)
    others = {run["steps"] for run in runs} - {steps}
    if others:
        raise ValueError(
            f"the runs in {path} have --steps {others.pop()}, got --steps {steps}; "
            "to start again, delete the file"
        )
    done = {(run["heads"], run["seed"]) for run in runs}
    todo = [(count, seed) for seed in seeds for count in heads if (count, seed) not in done]
    path.parent.mkdir(parents=True, exist_ok=True)
    for count, seed in todo:
        runs.append(_train_one(count, seed, steps, d_model))
        runs.sort(key=lambda run: (run["heads"], run["seed"]))
        replace_file(path, partial(Path.write_text, data=json.dumps(runs, indent=2) + "\n"))
    return runs


def _train_one(num_heads: int, seed: int, steps: int, d_model: int) -> SweepRun:
    started = time.monotonic()
    lexicon = load_lexicon()
    torch.manual_seed(seed)
    model = TransformerG2P(num_heads, d_model=d_model, num_layers=2, d_feedforward=3 * d_model)
    training = training_steps(model, training_pairs(lexicon), steps=steps, seed=seed)
    for _ in tqdm(training, total=steps, desc=f"{num_heads} heads, seed {seed}", mininterval=1.0):
        pass
    test = select_split(lexicon, "test")
    rates = error_rates(predict(model.double(), test), test)
    return {
        "heads": num_heads,
        "seed": seed,
        "steps": steps,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "wall_minutes": round((time.monotonic() - started) / 60, 1),
        "word_error_rate": round(rates.word_error_rate, 4),
        "phoneme_error_rate": round(rates.phoneme_error_rate, 4),
    }
