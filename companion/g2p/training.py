"""Train a model on the dictionary, keep it in a file, and read it back."""

from __future__ import annotations

import itertools
import json
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor
from tqdm import tqdm

from companion.additive import AdditiveAttention
from companion.attention import check_positive
from companion.dot_product import DotProductAttention
from companion.g2p.decoding import beam_search
from companion.g2p.lexicon import (
    PAD,
    Lexicon,
    Pronunciation,
    Split,
    check_words,
    decode_phonemes,
    encode_pronunciations,
    encode_words,
    load_lexicon,
    select_split,
)
from companion.g2p.metrics import ErrorRates, error_rates, error_rates_by_length
from companion.g2p.models import RecurrentG2P
from companion.g2p.transformer import TransformerG2P
from companion.scaled_dot_product import ScaledDotProductAttention

G2PModel: TypeAlias = RecurrentG2P | TransformerG2P

CHECKPOINTS = Path(__file__).parent / "checkpoints"
RESULTS = CHECKPOINTS / "results.json"
WARMUP_STEPS = 500


@dataclass(frozen=True)
class Recipe:
    """A named model: how to build it, and where the book introduces it."""

    label: str
    chapter: int
    build: Callable[[], G2PModel]


# Where the attention has fewer parameters, wider states make up for it: all have about 1.3 million.
RECIPES: Mapping[str, Recipe] = {
    "recurrent": Recipe(
        "Fixed context (GRU encoder-decoder)", 1, lambda: RecurrentG2P(d_model=280, dropout=0.2)
    ),
    "additive": Recipe(
        "Additive attention",
        2,
        lambda: RecurrentG2P(AdditiveAttention(256, 256, 128), d_model=256, dropout=0.2),
    ),
    "additive_unidirectional": Recipe(
        "Additive attention, encoder reads left to right only",
        2,
        lambda: RecurrentG2P(
            AdditiveAttention(320, 320, 128), d_model=320, bidirectional=False, dropout=0.2
        ),
    ),
    "dot_product": Recipe(
        "Dot-product attention",
        3,
        lambda: RecurrentG2P(DotProductAttention(), d_model=264, dropout=0.2),
    ),
    "scaled_dot_product": Recipe(
        "Scaled dot-product attention",
        4,
        lambda: RecurrentG2P(ScaledDotProductAttention(), d_model=264, dropout=0.2),
    ),
    "self_attention": Recipe(
        "Self-attention (Transformer, one head)", 5, lambda: TransformerG2P(1, dropout=0.1)
    ),
    "multi_head": Recipe(
        "Multi-head attention (Transformer, 4 heads)", 6, lambda: TransformerG2P(4, dropout=0.1)
    ),
    # What the task allows below two million parameters: not comparable with the models above.
    "scaled_dot_product_large": Recipe(
        "Scaled dot-product attention, larger (GRU encoder of 2 layers)",
        6,
        lambda: RecurrentG2P(
            ScaledDotProductAttention(), d_model=224, encoder_layers=2, dropout=0.4
        ),
    ),
}


def recipe(name: str) -> Recipe:
    """Look up a model by name.

    Raises:
        ValueError: no model has that name; the message lists those that exist.
    """
    if name not in RECIPES:
        raise ValueError(f"no model is called {name!r}; there are {', '.join(RECIPES)}")
    return RECIPES[name]


def training_pairs(lexicon: Lexicon) -> list[tuple[str, Pronunciation]]:
    """List every (word, pronunciation) of the training split, in alphabetical order."""
    return [(word, p) for word, ps in select_split(lexicon, "train").items() for p in ps]


def training_steps(
    model: G2PModel,
    pairs: list[tuple[str, Pronunciation]],
    *,
    steps: int,
    seed: int = 0,
    batch_size: int = 128,
    learning_rate: float = 2e-3,
    label_smoothing: float = 0.1,
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
        state: a dictionary that is kept up to date with what is needed to resume (``step``,
            ``optimizer``, ``rng``); pass it back to go on where a run stopped.

    Yields:
        The smoothed cross-entropy of each batch, in nats a phoneme.

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
    first = state.get("step", 0)
    batches = _batches(pairs, batch_size, seed, first)
    try:
        for step, batch in zip(range(first, steps), batches, strict=False):
            warmup = min(1.0, (step + 1) / min(WARMUP_STEPS, steps))
            optimizer.param_groups[0]["lr"] = learning_rate * warmup * (1 - step / steps)
            loss = _loss(model, batch, label_smoothing)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            state.update(step=step + 1, optimizer=optimizer.state_dict(), rng=torch.get_rng_state())
            yield loss.item()
    finally:
        model.eval()


def _loss(
    model: G2PModel, batch: list[tuple[str, Pronunciation]], label_smoothing: float
) -> Tensor:
    letters, lengths = encode_words(word for word, _ in batch)
    phonemes = encode_pronunciations(p for _, p in batch)
    logits = model(letters, lengths, phonemes)
    return F.cross_entropy(
        logits.flatten(0, 1),
        phonemes[:, 1:].flatten(),
        ignore_index=PAD,
        label_smoothing=label_smoothing,
    )


def _batches(
    pairs: list[tuple[str, Pronunciation]], batch_size: int, seed: int, first: int
) -> Iterator[list[tuple[str, Pronunciation]]]:
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


@torch.no_grad()
def predict(
    model: G2PModel, words: Iterable[str], *, batch_size: int = 256, beams: int = 1
) -> dict[str, Pronunciation]:
    """Pronounce many words, in batches of similar length.

    Args:
        model: a trained model.
        words: to pronounce.
        batch_size: words at a time.
        beams: 1 for greedy decoding; more for :func:`~companion.g2p.decoding.beam_search`.

    Returns:
        ``{word: pronunciation}``, in the order of the words.

    Raises:
        TypeError, ValueError: a word that cannot be read, or no words.
    """
    check_positive(batch_size=batch_size, beams=beams)
    words = check_words(words)
    by_length = sorted(words, key=len)
    predictions: dict[str, Pronunciation] = {}
    for start in range(0, len(by_length), batch_size):
        batch = by_length[start : start + batch_size]
        letters, lengths = encode_words(batch)
        if beams == 1:
            phonemes, _ = model.pronounce(letters, lengths)
        else:
            phonemes = beam_search(model, letters, lengths, beams=beams)
        predictions.update(zip(batch, map(decode_phonemes, phonemes.tolist()), strict=True))
    return {word: predictions[word] for word in words}


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
        FileNotFoundError: nothing to resume.
        KeyboardInterrupt: after the files are written.
    """
    check_positive(steps=steps)
    chosen, pairs = recipe(name), training_pairs(load_lexicon())
    folder.mkdir(parents=True, exist_ok=True)  # fail now rather than after training
    torch.manual_seed(seed)
    model = chosen.build()
    run: dict[str, Any] = {"steps": steps, "seed": seed, "minutes": 0.0, "training": {}}
    if resume:
        run = _read_state(folder / f"{name}.state.pt", model, steps, seed)
    started = time.monotonic() - 60 * run["minutes"]
    valid = dict(list(select_split(load_lexicon(), "valid").items())[::6])

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

    training = training_steps(model, pairs, steps=steps, seed=seed, state=run["training"])
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


def _read_state(path: Path, model: G2PModel, steps: int, seed: int) -> dict[str, Any]:
    if not path.exists():
        raise FileNotFoundError(f"nothing to resume: there is no {path}")
    run: dict[str, Any] = torch.load(path, weights_only=True)
    if (run["steps"], run["seed"]) != (steps, seed):
        raise ValueError(
            f"the run in {path} has --steps {run['steps']} --seed {run['seed']}, "
            f"got --steps {steps} --seed {seed}"
        )
    model.load_state_dict(run["model"])
    return run


def replace_file(path: Path, write: Callable[[Path], object]) -> None:
    """Write a file beside its place and move it there, so that no reader sees half of it."""
    unfinished = path.with_name(path.name + ".part")
    write(unfinished)
    unfinished.replace(path)


def save_model(model: G2PModel, path: Path, facts: Mapping[str, Any]) -> Path:
    """Write a model's weights in half precision, with facts about its training as metadata."""
    weights = {name: tensor.half().contiguous() for name, tensor in model.state_dict().items()}
    metadata = {"facts": json.dumps(facts)}
    replace_file(path, lambda part: save_file(weights, part, metadata=metadata))
    return path


def load_model(source: str | Path, *, dtype: torch.dtype = torch.float32) -> G2PModel:
    """Read a trained model, ready to pronounce (in eval mode).

    Args:
        source: the name of a model that comes with the package, or the path of a checkpoint.
        dtype: of the weights; float64 gives the same decisions on every machine.

    Raises:
        ValueError: an unknown name; a file that is not one of our checkpoints.
        FileNotFoundError: no such file.

    >>> model = load_model("additive")
    >>> predict(model, ["attention"])
    {'attention': ('AH', 'T', 'EH', 'N', 'SH', 'AH', 'N')}
    """
    path = _checkpoint_path(source)
    model = recipe(read_facts(path)["name"]).build().to(dtype)
    with safe_open(path, framework="pt") as file:
        weights = {name: file.get_tensor(name).to(dtype) for name in file.keys()}  # noqa: SIM118
    try:
        model.load_state_dict(weights)
    except RuntimeError:
        raise ValueError(
            f"{path} is not a checkpoint of this package: it has other weights"
        ) from None
    return model.eval()


def read_facts(source: str | Path) -> dict[str, Any]:
    """Read how a checkpoint was trained: name, command, seed, steps, wall_minutes.

    Raises:
        ValueError, FileNotFoundError: as :func:`load_model`.
    """
    path = _checkpoint_path(source)
    try:
        with safe_open(path, framework="pt") as file:
            facts: dict[str, Any] = json.loads(file.metadata()["facts"])
            str(facts["name"])
    except (SafetensorError, KeyError, TypeError, ValueError, OSError) as error:
        raise ValueError(f"{path} is not a checkpoint of this package: {error}") from error
    return facts


def _checkpoint_path(source: str | Path) -> Path:
    path = Path(source)
    if path.suffix != ".safetensors":
        recipe(str(source))
        path = CHECKPOINTS / f"{source}.safetensors"
    if not path.exists():
        raise FileNotFoundError(f"there is no checkpoint {path}")
    return path


def evaluate(
    source: str | Path,
    *,
    split: Split = "test",
    dtype: torch.dtype = torch.float32,
    beams: int = 1,
) -> dict[str, Any]:
    """Score a checkpoint on one split.

    Args:
        source: a named model, or the path of a checkpoint.
        split: which words.
        dtype: of the weights.
        beams: with more than one, score :func:`~companion.g2p.decoding.beam_search` too.

    Returns:
        How it was trained (:func:`read_facts`), its ``label``, ``chapter`` and number of
        ``parameters``, and the error rates under ``split`` and ``split_by_length``; with several
        beams also under ``split_beam_search``, with the number of ``beams``.

    Raises:
        ValueError, FileNotFoundError: as :func:`load_model`.
    """
    check_positive(beams=beams)
    references = select_split(load_lexicon(), split)
    model, facts = load_model(source, dtype=dtype), read_facts(source)
    chosen = recipe(facts["name"])
    predictions = predict(model, references)
    groups = error_rates_by_length(predictions, references)
    result = {
        **facts,
        "label": chosen.label,
        "chapter": chosen.chapter,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        split: _rounded(error_rates(predictions, references)),
        f"{split}_by_length": {group: _rounded(rates) for group, rates in groups.items()},
    }
    if beams > 1:
        searched = error_rates(predict(model, references, beams=beams), references)
        result[f"{split}_beam_search"] = {"beams": beams, **_rounded(searched)}
    return result


def _rounded(rates: ErrorRates) -> dict[str, float]:
    return {name: round(value, 6) for name, value in asdict(rates).items()}


def record(result: Mapping[str, Any], path: Path = RESULTS) -> None:
    """Put one model's evaluation into ``results.json``, replacing what was there for it."""
    results = json.loads(path.read_text("utf-8")) if path.exists() else {}
    results[result["name"]] = dict(result)
    ordered = {name: results[name] for name in RECIPES if name in results}
    text = json.dumps(ordered, indent=2) + "\n"
    replace_file(path, lambda part: part.write_text(text, "utf-8"))
