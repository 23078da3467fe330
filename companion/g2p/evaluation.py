"""How well a trained model pronounces: predictions for many words, and their error rates."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from companion.attention import check_positive
from companion.g2p.decoding import beam_search
from companion.g2p.lexicon import (
    Pronunciation,
    Split,
    check_words,
    decode_phonemes,
    encode_words,
    load_lexicon,
    select_split,
)
from companion.g2p.metrics import ErrorRates, error_rates, error_rates_by_length
from companion.g2p.model_files import CHECKPOINTS, load_model, read_facts, replace_file
from companion.g2p.recipes import RECIPES, G2PModel, recipe

RESULTS = CHECKPOINTS / "results.json"


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

    >>> predict(load_model("additive"), ["attention"])
    {'attention': ('AH', 'T', 'EH', 'N', 'SH', 'AH', 'N')}
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
        How it was trained (:func:`~companion.g2p.model_files.read_facts`), its ``label``,
        ``chapter`` and number of ``parameters``, and the error rates under ``split`` and
        ``split_by_length``; with several beams also under ``split_beam_search``, with the number
        of ``beams``.

    Raises:
        ValueError, FileNotFoundError: as :func:`~companion.g2p.model_files.load_model`.
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
