"""Train a model on the dictionary, resumable at any step."""

from __future__ import annotations

import copy
import itertools
import pickle
import random
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from tqdm import tqdm

from companion.attention import check_positive
from companion.g2p.distillation import Pair, expectations, pronounce_together
from companion.g2p.evaluation import predict
from companion.g2p.lexicon import (
    PAD,
    Lexicon,
    encode_pronunciations,
    encode_words,
    load_lexicon,
    select_split,
)
from companion.g2p.metrics import error_rates
from companion.g2p.model_files import load_model, replace_file, save_model
from companion.g2p.recipes import G2PModel, Recipe, recipe
from companion.g2p.unlabelled import unlabelled_words

WARMUP_STEPS = 500


def training_pairs(lexicon: Lexicon) -> list[Pair]:
    """List every (word, pronunciation) of the training split, in alphabetical order."""
    return [(word, p) for word, ps in select_split(lexicon, "train").items() for p in ps]


def training_steps(
    model: G2PModel,
    pairs: list[Pair],
    *,
    steps: int,
    seed: int = 0,
    batch_size: int = 128,
    learning_rate: float = 2e-3,
    label_smoothing: float = 0.1,
    targets: Mapping[Pair, Tensor] | None = None,
    dtype: torch.dtype | None = None,
    state: dict[str, Any] | None = None,
) -> Iterator[float]:
    """Train a model in place, yielding the loss of each step.

    Adam, learning rate rising for 500 steps and then falling linearly to 0, gradients clipped at
    norm 1. Every step's batch depends on ``seed`` and the step alone, so that a run can be resumed.
    Dropout draws from torch's global generator, which is seeded when the run starts.

    Args:
        model: the model to train.
        pairs: the words and pronunciations to learn from.
        steps: how many steps the whole run has; the learning rate reaches 0 there.
        seed: of the batches and of dropout.
        batch_size: pairs a step.
        learning_rate: the largest learning rate.
        label_smoothing: share of the target probability spread over all phonemes.
        targets: for each pair, the probabilities ``(phonemes + 1, num_phonemes)`` to learn in place
            of the dictionary's phonemes and END, as
            :func:`~companion.g2p.distillation.expectations` makes them. They are not smoothed.
        dtype: of the arithmetic; by default the model's. With ``torch.bfloat16`` each step works on
            a rounded copy of the weights: faster where the processor has such products.
        state: a dictionary that is kept up to date with what is needed to resume (``step``,
            ``optimizer``, ``rng``); pass it back to go on where a run stopped.

    Yields:
        The (smoothed) cross-entropy of each batch, in nats a phoneme.

    Raises:
        TypeError, ValueError: sizes that are not positive integers; no pairs.

    Chapter: 1.
    """
    check_positive(steps=steps, batch_size=batch_size)
    if not pairs:
        raise ValueError("expected at least one (word, pronunciation) pair, got none")
    state = {} if state is None else state
    optimizer = torch.optim.Adam(model.parameters(), lr=learning_rate)
    if "optimizer" in state:
        optimizer.load_state_dict(state["optimizer"])
        torch.set_rng_state(state["rng"])
    else:
        torch.manual_seed(seed)
    model.train()
    # The optimizer keeps the model as it is: in 16 bits, small changes would be rounded away.
    worker = model if dtype is None else copy.deepcopy(model).to(dtype)
    first = state.get("step", 0)
    batches = _batches(pairs, batch_size, seed, first)
    try:
        for step, batch in zip(range(first, steps), batches, strict=False):
            warmup = min(1.0, (step + 1) / min(WARMUP_STEPS, steps))
            optimizer.param_groups[0]["lr"] = learning_rate * warmup * (1 - step / steps)
            if worker is not model:
                worker.load_state_dict(model.state_dict())
            worker.zero_grad()
            loss = _loss(worker, batch, label_smoothing, targets)
            loss.backward()  # type: ignore[no-untyped-call]
            for ours, theirs in zip(model.parameters(), worker.parameters(), strict=True):
                ours.grad = None if theirs.grad is None else theirs.grad.to(ours.dtype)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            state.update(step=step + 1, optimizer=optimizer.state_dict(), rng=torch.get_rng_state())
            yield loss.item()
    finally:
        model.eval()


def _loss(
    model: G2PModel,
    batch: list[Pair],
    label_smoothing: float,
    targets: Mapping[Pair, Tensor] | None,
) -> Tensor:
    letters, lengths = encode_words(word for word, _ in batch)
    phonemes = encode_pronunciations(p for _, p in batch)
    logits = model(letters, lengths, phonemes)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if targets is not None:
        target = pad_sequence([targets[pair] for pair in batch], batch_first=True).to(logits)
        loss: Tensor = -(target * logits.log_softmax(dim=-1)).sum() / target.sum()
        return loss
    return F.cross_entropy(
        logits.flatten(0, 1),
        phonemes[:, 1:].flatten(),
        ignore_index=PAD,
        label_smoothing=label_smoothing,
    )


def _batches(pairs: list[Pair], batch_size: int, seed: int, first: int) -> Iterator[list[Pair]]:
    """Yield batches of words of similar length for ever, from batch number ``first`` on."""
    per_epoch = -(-len(pairs) // batch_size)
    for epoch in itertools.count(first // per_epoch):
        rng = random.Random(f"{seed}-{epoch}")
        shuffled = rng.sample(pairs, len(pairs))
        shuffled.sort(key=lambda pair: (len(pair[1]), len(pair[0])))  # stable: ties stay shuffled
        batches = [shuffled[i : i + batch_size] for i in range(0, len(shuffled), batch_size)]
        rng.shuffle(batches)
        yield from batches[first % per_epoch :]
        first = 0


def train(name: str, *, steps: int, seed: int, folder: Path, resume: bool = False) -> Path:
    """Train a named model, with a progress bar, keeping a checkpoint as it goes.

    ``folder/NAME.safetensors`` holds the weights, ``folder/NAME.state.pt`` what is needed to go on.
    Both are replaced whole every 1,000 steps, at the end, and on Ctrl-C.

    Args:
        name: one of ``RECIPES``, the named models.
        steps: how many steps the whole run has.
        seed: of the initial weights, the batches and dropout.
        folder: where the files go; made if missing.
        resume: go on from ``NAME.state.pt`` rather than start again.

    Returns:
        The checkpoint's path.

    Raises:
        ValueError: an unknown name; a run to resume that had another seed or number of steps.
        FileNotFoundError: nothing to resume; no checkpoint of a model to learn from.
        ModuleNotFoundError: for a model with teachers, a package that lists words is missing.
        KeyboardInterrupt: after the files are written.
    """
    check_positive(steps=steps)
    chosen, lexicon = recipe(name), load_lexicon()
    folder.mkdir(parents=True, exist_ok=True)  # fail now rather than after training
    torch.manual_seed(seed)
    model = chosen.build()
    run: dict[str, Any] = {"steps": steps, "seed": seed, "minutes": 0.0, "training": {}}
    if resume:
        run = _read_state(folder / f"{name}.state.pt", model, steps, seed)
    started = time.monotonic() - 60 * run["minutes"]
    pairs, targets = _lessons(chosen, lexicon)
    valid = dict(list(select_split(lexicon, "valid").items())[::6])

    def save() -> Path:
        run["minutes"] = (time.monotonic() - started) / 60
        run["model"] = model.state_dict()
        replace_file(folder / f"{name}.state.pt", lambda path: torch.save(run, path))
        facts = {
            "name": name,
            "command": f"python -m companion.g2p train {name} --steps {steps} --seed {seed}",
            "seed": seed,
            "steps": run["training"].get("step", 0),
            "wall_minutes": round(run["minutes"], 1),
        }
        return save_model(model, folder / f"{name}.safetensors", facts)

    training = training_steps(
        model, pairs, steps=steps, seed=seed, state=run["training"], targets=targets,
        **chosen.options,
    )  # fmt: skip
    done = run["training"].get("step", 0)
    with tqdm(total=steps, initial=done, desc=name, unit="step", mininterval=1.0) as bar:
        try:
            for loss in training:
                bar.update()
                if bar.n % 1000 == 0:
                    save()
                    model.eval()
                    wrong = error_rates(predict(model, valid), valid).word_error_rate
                    model.train()
                    bar.set_postfix(loss=f"{loss:.3f}", valid_wer=f"{wrong:.1%}")
        except KeyboardInterrupt:
            save()
            raise
    return save()


def _lessons(chosen: Recipe, lexicon: Lexicon) -> tuple[list[Pair], dict[Pair, Tensor] | None]:
    """List what to learn, and from teachers also what they expect, there and in further words."""
    pairs = training_pairs(lexicon)
    if not chosen.teachers:
        return pairs, None
    teachers = [load_model(name) for name in chosen.teachers]
    pairs += pronounce_together(teachers, unlabelled_words(lexicon), progress=True)
    return pairs, expectations(teachers, pairs, progress=True)


def _read_state(path: Path, model: G2PModel, steps: int, seed: int) -> dict[str, Any]:
    if not path.exists():
        raise FileNotFoundError(f"nothing to resume: there is no {path}")
    try:
        run: dict[str, Any] = torch.load(path, weights_only=True)
        model.load_state_dict(run["model"])
    except (pickle.UnpicklingError, EOFError, LookupError, TypeError, RuntimeError) as error:
        raise ValueError(f"{path} is no run of this model: {error}") from error
    if (run["steps"], run["seed"]) != (steps, seed):
        raise ValueError(
            f"the run in {path} has --steps {run['steps']} --seed {run['seed']}, "
            f"got --steps {steps} --seed {seed}"
        )
    return run
