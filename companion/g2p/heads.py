"""What the heads of a trained Transformer look at, and what happens without them (chapter 6)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from companion.g2p.lexicon import (
    END,
    NUM_PHONEMES,
    PAD,
    PHONEME_INDEX,
    START,
    Lexicon,
    Pronunciation,
    encode_pronunciations,
    encode_words,
)
from companion.g2p.probes import LETTERS_OF_CONSONANT
from companion.g2p.transformer import TransformerG2P
from companion.masks import padding_mask
from companion.multi_head import MultiHeadAttention, without_heads

KINDS = ("encoder", "decoder", "cross")

PLACES = ("previous", "current", "next", "first", "last")


class Head(NamedTuple):
    """One head of the model: which attention, in which layer, which of its heads (from 0).

    Attributes:
        kind: ``"encoder"`` (letters to letters), ``"decoder"`` (phonemes to the phonemes before) or
            ``"cross"`` (phonemes to letters).
        layer: from 0.
        number: from 0.
    """

    kind: str
    layer: int
    number: int

    def __str__(self) -> str:
        return f"{self.kind} {self.layer + 1}.{self.number + 1}"


def all_heads(model: TransformerG2P) -> list[Head]:
    """List the model's heads: those of the encoder, of the decoder, and between the two.

    >>> model = TransformerG2P(2, d_model=8, num_layers=1, d_feedforward=8)
    >>> print(*all_heads(model), sep=", ")
    encoder 1.1, encoder 1.2, decoder 1.1, decoder 1.2, cross 1.1, cross 1.2
    """
    if not isinstance(model, TransformerG2P):
        raise TypeError(f"model must be a TransformerG2P, got {type(model).__name__}")
    return [
        Head(kind, layer, number)
        for kind in KINDS
        for layer in range(len(model.encoder))
        for number in range(_attention(model, Head(kind, layer, 0)).num_heads)
    ]


def _attention(model: TransformerG2P, head: Head) -> MultiHeadAttention:
    layers = model.encoder if head.kind == "encoder" else model.decoder
    if head.kind not in KINDS or not 0 <= head.layer < len(layers):
        raise ValueError(f"the model has no head {head}")
    layer = layers[head.layer]
    found = layer.cross_attention if head.kind == "cross" else layer.self_attention
    assert isinstance(found, MultiHeadAttention)  # noqa: S101 - for the type checker
    return found


@contextmanager
def heads_off(model: TransformerG2P, heads: Iterable[Head]) -> Iterator[None]:
    """Switch heads of a model off for the length of a ``with`` block.

    See :func:`companion.without_heads`.

    Raises:
        ValueError: a head that the model does not have.
    """
    with ExitStack() as stack:
        for head in heads:
            stack.enter_context(without_heads(_attention(model, head), [head.number]))
        yield


@torch.no_grad()
def forced_errors(
    model: TransformerG2P, lexicon: Lexicon, groups: Mapping[str, Collection[str]] | None = None
) -> dict[str, float]:
    """Share of phonemes that are predicted wrongly when the true ones before them are given.

    The END mark counts as a phoneme. It costs one pass over the words where writing them costs one
    for each phoneme, so it suits experiments that repeat it often. It is not the phoneme error rate
    of the scoreboard.

    Args:
        model: a trained model.
        lexicon: words and pronunciations; the first one listed is used.
        groups: phonemes to count on their own, ``{name: phonemes}``.

    Returns:
        ``{"all": share}``, and the share in each group; NaN where none of its phonemes occurs.
    """
    wrong, total = torch.zeros(2, NUM_PHONEMES, dtype=torch.float64)
    for _, letters, lengths, phonemes in _batches(lexicon):
        targets = phonemes[:, 1:]
        logits = model(letters, lengths, phonemes)
        logits[..., [PAD, START]] = -torch.inf
        missed = (logits.argmax(dim=-1) != targets).double()
        total += torch.bincount(targets.flatten(), minlength=NUM_PHONEMES)
        wrong += torch.bincount(targets.flatten(), missed.flatten(), minlength=NUM_PHONEMES)
    rows = {"all": list(range(END, NUM_PHONEMES))}  # not the padding
    rows |= {name: [PHONEME_INDEX[p] for p in group] for name, group in (groups or {}).items()}
    return {name: float(wrong[row].sum() / total[row].sum()) for name, row in rows.items()}


def removal_costs(model: TransformerG2P, lexicon: Lexicon) -> dict[Head, float]:
    """Switch off one head after the other, alone, and see how many more phonemes go wrong.

    Returns:
        ``{head: rise}`` of :func:`forced_errors`, the smallest first.

    Source: Michel, Levy and Neubig 2019. Chapter: 6.
    """
    base = forced_errors(model, lexicon)["all"]
    rises = {}
    for head in all_heads(model):
        with heads_off(model, [head]):
            rises[head] = forced_errors(model, lexicon)["all"] - base
    return dict(sorted(rises.items(), key=lambda item: item[1]))


@torch.no_grad()
def gaze(
    model: TransformerG2P, lexicon: Lexicon
) -> tuple[dict[Head, dict[str, float]], dict[str, float]]:
    """Measure how much of its weight each head puts on certain letters, on average.

    ``"current"`` is, for a letter of the encoder, the letter itself. For a phoneme it is the letter
    that spells it, as :func:`spelling_letters` finds it: other phonemes are not counted.
    ``"previous"`` and ``"next"`` are the letters beside it, ``"first"`` and ``"last"`` those of the
    word. The latter two are counted only where they are further away than the others.

    Args:
        model: a trained model.
        lexicon: words and pronunciations; the first one listed is used.

    Returns:
        ``(by_head, even)``: ``{head: {place: share}}`` for the heads that look at letters
        (``"encoder"`` and ``"cross"``), and ``{place: share}`` for weights that are all equal.

    Chapter: 6.
    """
    totals: dict[tuple[str, str], Tensor] = {}
    counts: dict[tuple[str, str], int] = {}
    for words, letters, lengths, phonemes in _batches(lexicon):
        seen = model.weights(letters, lengths, phonemes[:, :-1])
        own = torch.arange(letters.shape[1]).expand(letters.shape)
        of_letters = own.masked_fill(own >= lengths[:, None], -1)
        of_phonemes = torch.full_like(phonemes[:, :-1], -1)
        for row, word in enumerate(words):
            spelled = spelling_letters(word, lexicon[word][0])
            of_phonemes[row, : len(spelled)] = torch.tensor(spelled)
        even = padding_mask(lengths).to(seen.encoder) / lengths[:, None, None]  # (B, 1, L)
        even = even.expand(-1, letters.shape[1], -1)[None, :, None]
        for kind, weights, current in (
            ("encoder", seen.encoder, of_letters),
            ("cross", seen.cross, of_phonemes),
            ("even", even, of_letters),
        ):
            for place in PLACES:
                at = _place(place, current, lengths)  # (B, Q), -1 where it does not count
                on_it = weights.gather(-1, _for_all_heads(at.clamp(min=0), weights))[..., 0]
                total = (on_it * (at >= 0)[:, None]).sum(dim=(1, 3))  # (num_layers, H)
                totals[kind, place] = totals.get((kind, place), 0) + total
                counts[kind, place] = counts.get((kind, place), 0) + int((at >= 0).sum())
    shares = {key: total / max(1, counts[key]) for key, total in totals.items()}
    by_head = {
        head: {place: float(shares[head.kind, place][head.layer, head.number]) for place in PLACES}
        for head in all_heads(model)
        if head.kind != "decoder"
    }
    return by_head, {place: float(shares["even", place]) for place in PLACES}


def _place(
    place: str, current: Int[Tensor, "B Q"], lengths: Int[Tensor, "B"]
) -> Int[Tensor, "B Q"]:
    last = (lengths[:, None] - 1).expand_as(current)
    at = {
        "previous": current - 1,
        "current": current,
        "next": current + 1,
        "first": torch.zeros_like(current),
        "last": last,
    }[place]
    counts = (current >= 0) & (at >= 0) & (at <= last)
    if place in ("first", "last"):
        counts &= (at - current).abs() > 1
    return at.masked_fill(~counts, -1)


def _for_all_heads(at: Tensor, weights: Tensor) -> Tensor:
    return at[None, :, None, :, None].expand(*weights.shape[:-1], 1)


def spelling_letters(word: str, pronunciation: Pronunciation) -> list[int]:
    """Say for each phoneme which letter spells it, where the word leaves no doubt.

    That is where a consonant occurs once, and only one of the word's letters can take part in
    spelling it (``LETTERS_OF_CONSONANT``).

    Returns:
        For each phoneme the position of its letter, or -1.

    >>> spelling_letters("cabin", ("K", "AE", "B", "AH", "N"))
    [0, -1, 2, -1, 4]
    """
    positions = []
    for phoneme in pronunciation:
        letters = LETTERS_OF_CONSONANT.get(phoneme, "")
        able = [position for position, letter in enumerate(word) if letter in letters]
        certain = len(able) == 1 and pronunciation.count(phoneme) == 1
        positions.append(able[0] if certain else -1)
    return positions


def _batches(
    lexicon: Lexicon, size: int = 256
) -> Iterator[tuple[list[str], Tensor, Tensor, Tensor]]:
    """Yield words of similar length with their letters, lengths and first pronunciations."""
    words = sorted(lexicon, key=lambda word: (len(word), len(lexicon[word][0])))
    for start in range(0, len(words), size):
        batch = words[start : start + size]
        phonemes = encode_pronunciations(lexicon[word][0] for word in batch)
        yield batch, *encode_words(batch), phonemes
