"""What a trained model holds and where it looks: letter probes and scored alignments."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from companion.g2p.lexicon import (
    END,
    NUM_LETTERS,
    PAD,
    START,
    Lexicon,
    Pronunciation,
    decode_phonemes,
    encode_words,
)
from companion.g2p.models import RecurrentG2P

Aligned: TypeAlias = Mapping[str, tuple[Pronunciation, Tensor]]

# Letters that can be part of a spelling of each consonant: "ph" and "gh" spell F, so P, H and G
# count as well as F. Vowels are left out: nearly every vowel letter can spell nearly every vowel.
LETTERS_OF_CONSONANT = {
    "B": "b",
    "CH": "ctsh",
    "D": "d",
    "DH": "th",
    "F": "fphg",
    "G": "gx",
    "HH": "hwj",
    "JH": "jgd",
    "K": "ckqxh",
    "L": "l",
    "M": "m",
    "N": "n",
    "NG": "ng",
    "P": "p",
    "R": "r",
    "S": "scxz",
    "SH": "shctx",
    "T": "td",
    "TH": "th",
    "V": "vfw",
    "W": "wuo",
    "Y": "yuije",
    "Z": "zsx",
    "ZH": "zsgj",
}


@torch.no_grad()
def letter_probe(
    model: RecurrentG2P, fit_words: Sequence[str], test_words: Sequence[str]
) -> Float[Tensor, "L"]:
    """Ask a linear probe to spell words from the encoder's summary vector alone.

    For each position, a ridge regression from the summary to the letter (one-hot) is fitted on some
    words and tested on others.

    Args:
        model: a trained model; its summary is ``(d_model,)`` a word.
        fit_words: words to fit the probes on, all of one length L.
        test_words: other words of that length.

    Returns:
        ``(L,)``: share of test words whose letter at that position is named rightly.

    Raises:
        ValueError: words of different lengths.

    Source: Alain and Bengio 2016. Chapter: 1.
    """
    lengths = {len(word) for word in [*fit_words, *test_words]}
    if len(lengths) != 1:
        raise ValueError(f"all words must have the same length, got lengths {sorted(lengths)}")
    fit_x, fit_letters = _summaries(model, fit_words)
    test_x, test_letters = _summaries(model, test_words)
    target = F.one_hot(fit_letters, NUM_LETTERS).flatten(1).to(fit_x.dtype)  # (B, L * letters)
    guesses = (
        (test_x @ _ridge(fit_x, target)).view(len(test_x), -1, NUM_LETTERS).argmax(dim=-1)
    )  # (B, L)
    accuracy: Tensor = (guesses == test_letters).double().mean(dim=0)
    return accuracy


def _summaries(model: RecurrentG2P, words: Sequence[str]) -> tuple[Tensor, Tensor]:
    letters, lengths = encode_words(words)
    summary = model.encode(letters, lengths).summary
    return _with_constant(summary), letters


@torch.no_grad()
def neighbour_probe(
    model: RecurrentG2P, fit_words: Sequence[str], test_words: Sequence[str], offset: int
) -> float:
    """Ask a linear probe to name, from one encoder state, the letter ``offset`` places away.

    Args:
        model: a trained model.
        fit_words: words to fit the probe on.
        test_words: other words.
        offset: 0 for the state's own letter, -1 for the letter before it, 1 for the one after.

    Returns:
        Share of letters named rightly, over all positions whose neighbour lies inside the word.

    Source: Alain and Bengio 2016. Chapter: 2.
    """
    fit_x, fit_letters = _states_and_neighbours(model, fit_words, offset)
    test_x, test_letters = _states_and_neighbours(model, test_words, offset)
    target = F.one_hot(fit_letters, NUM_LETTERS).to(fit_x.dtype)
    guesses = (test_x @ _ridge(fit_x, target)).argmax(dim=-1)
    return float((guesses == test_letters).double().mean())


def _states_and_neighbours(
    model: RecurrentG2P, words: Sequence[str], offset: int
) -> tuple[Tensor, Tensor]:
    letters, lengths = encode_words(words)
    states = model.encode(letters, lengths).states
    position = torch.arange(letters.shape[1])
    inside = (position + offset >= 0) & (position + offset < lengths[:, None])
    inside &= position < lengths[:, None]
    neighbours = letters.roll(-offset, dims=1)[inside]
    return _with_constant(states[inside]), neighbours


def _with_constant(x: Tensor) -> Tensor:
    return torch.cat([x, torch.ones_like(x[:, :1])], dim=1)


def _ridge(x: Tensor, y: Tensor) -> Tensor:
    penalty = 1e-3 * len(x) * torch.eye(x.shape[1], dtype=x.dtype)
    coefficients: Tensor = torch.linalg.solve(x.T @ x + penalty, x.T @ y)
    return coefficients


@torch.no_grad()
def alignments(
    model: RecurrentG2P, words: Iterable[str]
) -> dict[str, tuple[Pronunciation, Float[Tensor, "T L"]]]:
    """Pronounce words and keep where each phoneme looked.

    Returns:
        ``{word: (pronunciation, weights)}`` with weights ``(phonemes, letters)``, rows sum to 1.

    Raises:
        ValueError: the model has no attention.
    """
    if model.attention is None:
        raise ValueError("this model has no attention, so there is no alignment")
    words = list(words)
    by_length = sorted(words, key=len)
    found = {}
    for start in range(0, len(words), 256):
        batch = by_length[start : start + 256]
        phonemes, weights = model.pronounce(*encode_words(batch))
        assert weights is not None  # noqa: S101 - there is attention: for the type checker
        for word, row, alignment in zip(batch, phonemes.tolist(), weights, strict=True):
            pronunciation = decode_phonemes(row)
            found[word] = (pronunciation, alignment[: len(pronunciation), : len(word)])
    return {word: found[word] for word in words}


def alignment_score(aligned: Aligned, lexicon: Lexicon, *, offset: int = 0) -> float:
    """Score how often a consonant's most attended letter is one that can spell it.

    Only words that the model pronounces as the dictionary does are scored, and only consonants
    (``LETTERS_OF_CONSONANT``).

    Args:
        aligned: from :func:`alignments`.
        lexicon: references for those words.
        offset: score the letter this many places to the right of the most attended one instead;
            a shifted alignment scores best at an offset that is not 0.

    Returns:
        Share of consonants, 0 to 1; a letter outside the word counts as wrong.

    Raises:
        ValueError: no consonant to score.

    Chapter: 2.

    >>> eye = torch.eye(2)
    >>> alignment_score({"be": (("B", "IY"), eye)}, {"be": (("B", "IY"),)})
    1.0
    """
    hits = [
        0 <= (at := int(row.argmax()) + offset) < len(word)
        and word[at] in LETTERS_OF_CONSONANT[phoneme]
        for word, (pronunciation, weights) in aligned.items()
        if pronunciation in lexicon[word]
        for phoneme, row in zip(pronunciation, weights, strict=True)
        if phoneme in LETTERS_OF_CONSONANT
    ]
    if not hits:
        raise ValueError("no consonant to score: no word is pronounced as in the dictionary")
    return sum(hits) / len(hits)


def alignment_shift(
    first: Aligned, second: Aligned, lexicon: Lexicon, *, at_least: int = 20
) -> dict[str, float]:
    """Measure how many letters further right a second model looks, for each phoneme.

    Only words that both models pronounce alike, and as the dictionary does, are compared.

    Args:
        first: from :func:`alignments`.
        second: the same words, by another model.
        lexicon: references for those words.
        at_least: phonemes that occur less often than this are left out.

    Returns:
        ``{phoneme: mean difference}`` in letters between the most attended positions, largest
        first.

    Raises:
        KeyError: a word that only the first holds.

    Chapter: 2.

    >>> one, other = torch.eye(2), torch.tensor([[0.0, 1.0], [0.0, 1.0]])
    >>> lexicon = {"be": (("B", "IY"),)}
    >>> aligned = [{"be": (("B", "IY"), weights)} for weights in (one, other)]
    >>> alignment_shift(*aligned, lexicon, at_least=1)
    {'B': 1.0, 'IY': 0.0}
    """
    shifts: dict[str, list[int]] = {}
    for word, (pronunciation, weights) in first.items():
        others, other_weights = second[word]
        if pronunciation == others and pronunciation in lexicon[word]:
            difference = other_weights.argmax(dim=-1) - weights.argmax(dim=-1)
            for phoneme, shift in zip(pronunciation, difference.tolist(), strict=True):
                shifts.setdefault(phoneme, []).append(shift)
    means = {p: sum(found) / len(found) for p, found in shifts.items() if len(found) >= at_least}
    return dict(sorted(means.items(), key=lambda item: -item[1]))


def spelling_shares(
    aligned: Aligned, lexicon: Lexicon, phoneme: str, spelling: str
) -> dict[str, float]:
    """Say on which letter of a spelling the most attended position lies, such as T or H of "th".

    Args:
        aligned: from :func:`alignments`; only words pronounced as the dictionary does count.
        lexicon: references for those words.
        phoneme: the phoneme that is written.
        spelling: different letters that stand side by side.

    Returns:
        ``{letter: share}``, adding up to 1, over all times that the position lies in that spelling.

    Raises:
        ValueError: it never does.

    Chapter: 2.

    >>> aligned = {"thaw": (("TH", "AO"), torch.tensor([[0, 1.0, 0, 0], [0, 0, 1.0, 0]]))}
    >>> spelling_shares(aligned, {"thaw": (("TH", "AO"),)}, "TH", "th")
    {'t': 0.0, 'h': 1.0}
    """
    counts = dict.fromkeys(spelling, 0)
    for word, (pronunciation, weights) in aligned.items():
        if pronunciation not in lexicon[word]:
            continue
        starts = [i for i in range(len(word)) if word.startswith(spelling, i)]
        inside = {i + k for i in starts for k in range(len(spelling))}
        for written, position in zip(pronunciation, weights.argmax(-1).tolist(), strict=True):
            if written == phoneme and position in inside:
                counts[word[position]] += 1
    total = sum(counts.values())
    if not total:
        raise ValueError(f"{phoneme} is never written while looking at {spelling!r}")
    return {letter: count / total for letter, count in counts.items()}


@torch.no_grad()
def hiding_effect(
    model: RecurrentG2P, words: Sequence[str], *, seed: int = 0
) -> tuple[float, float]:
    """Hide one letter's state from one step of the decoder, and see whether its phoneme changes.

    The decoder's state before the step is left as it was; only that step's attention is masked.

    Args:
        model: a model with attention.
        words: words of at least two letters.
        seed: of the choice of the other letter.

    Returns:
        ``(most, other)``: share of phonemes that change when the most attended letter is hidden,
        and when one of the other letters, at random, is.

    Raises:
        ValueError: the model has no attention; a word of fewer than two letters.

    Chapter: 2.
    """
    if model.attention is None:
        raise ValueError("this model has no attention to hide a letter from")
    if any(len(word) < 2 for word in words):
        raise ValueError("every word must have at least two letters")
    letters, lengths = encode_words(words)
    memory = model.encode(letters, lengths)
    phonemes, _ = model.pronounce(letters, lengths)
    random = torch.Generator().manual_seed(seed)
    state, previous = memory.summary, torch.full_like(lengths, START)
    changed_most: list[Tensor] = []
    changed_other: list[Tensor] = []
    for phoneme in phonemes.unbind(dim=1):
        _, next_state, weights = model.step(previous, state, memory)
        assert weights is not None  # noqa: S101 - there is attention: for the type checker
        most = F.one_hot(weights.argmax(dim=-1), letters.shape[1]).bool()
        chance = torch.rand(weights.shape, generator=random, dtype=weights.dtype)
        candidates = memory.mask.squeeze(1) & ~most
        other = F.one_hot(chance.masked_fill(~candidates, -1.0).argmax(-1), letters.shape[1]).bool()
        scored = phoneme > END
        for hidden, changed in ((most, changed_most), (other, changed_other)):
            masked = replace(memory, mask=memory.mask & ~hidden.unsqueeze(1))
            logits, _, _ = model.step(previous, state, masked)
            logits[:, [PAD, START]] = -torch.inf
            changed.append((logits.argmax(dim=-1) != phoneme)[scored])
        state, previous = next_state, phoneme
    most_share, other_share = (
        float(torch.cat(changed).double().mean()) for changed in (changed_most, changed_other)
    )
    return most_share, other_share
