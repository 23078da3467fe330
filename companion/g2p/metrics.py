"""How wrong a pronunciation is: phoneme error rate and word error rate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from rapidfuzz.distance import Levenshtein

from companion.g2p.lexicon import Lexicon, Pronunciation

LENGTH_EDGES = (1, 5, 7, 9, 11, 13)


@dataclass(frozen=True)
class ErrorRates:
    """Error rates over a number of words.

    Attributes:
        words: how many words were scored.
        word_error_rate: share of words that match none of their references, 0 to 1.
        phoneme_error_rate: edits needed to reach the nearest reference, over the number of
            phonemes in those references; 0 is perfect, and it can exceed 1.
    """

    words: int
    word_error_rate: float
    phoneme_error_rate: float


def nearest_reference(
    prediction: Pronunciation, references: Sequence[Pronunciation]
) -> tuple[int, int]:
    """Compare a prediction with all listed pronunciations and keep the nearest.

    Returns:
        ``(edits, length)``: insertions, deletions and substitutions needed, and the length of that
        reference in phonemes. Of equally near references, the first one listed.

    Raises:
        ValueError: no references.

    >>> nearest_reference(("R", "IY", "D"), [("R", "EH", "D"), ("R", "IY", "D", "Z")])
    (1, 3)
    """
    if not references:
        raise ValueError("expected at least one reference pronunciation, got none")
    edits = [Levenshtein.distance(prediction, reference) for reference in references]
    best = edits.index(min(edits))
    return edits[best], len(references[best])


def error_rates(predictions: Mapping[str, Pronunciation], lexicon: Lexicon) -> ErrorRates:
    """Score predicted pronunciations against the dictionary.

    Args:
        predictions: ``{word: pronunciation}``.
        lexicon: references for at least those words.

    Raises:
        KeyError: a predicted word is not in the lexicon.
        ValueError: no predictions.

    >>> error_rates({"a": ("AH",), "be": ("B",)}, {"a": (("AH",),), "be": (("B", "IY"),)})
    ErrorRates(words=2, word_error_rate=0.5, phoneme_error_rate=0.3333333333333333)
    """
    if not predictions:
        raise ValueError("expected at least one prediction, got none")
    scored = [nearest_reference(p, lexicon[word]) for word, p in predictions.items()]
    return ErrorRates(
        words=len(scored),
        word_error_rate=sum(edits > 0 for edits, _ in scored) / len(scored),
        phoneme_error_rate=sum(edits for edits, _ in scored) / sum(n for _, n in scored),
    )


def phoneme_error_interval(
    predictions: Mapping[str, Pronunciation],
    lexicon: Lexicon,
    *,
    resamples: int = 1000,
    seed: int = 0,
) -> tuple[float, float]:
    """Bound the phoneme error rate by bootstrap: how much other words would change it.

    Words are drawn again and again with replacement; the middle 95 % of the rates are kept.

    Args:
        predictions: ``{word: pronunciation}``.
        lexicon: references for at least those words.
        resamples: how many times all words are drawn.
        seed: of the draws.

    Returns:
        ``(low, high)``, shares as in :class:`ErrorRates`.

    Raises:
        KeyError, ValueError: as :func:`error_rates`.

    Source: Bisani and Ney 2004, "Bootstrap estimates for confidence intervals in ASR performance
    evaluation", ICASSP. Chapter: 1.

    >>> phoneme_error_interval({"a": ("AH",)}, {"a": (("AH",),)})
    (0.0, 0.0)
    """
    if not predictions:
        raise ValueError("expected at least one prediction, got none")
    scored = torch.tensor(
        [nearest_reference(p, lexicon[word]) for word, p in predictions.items()],
        dtype=torch.float64,
    )
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randint(len(scored), (resamples, len(scored)), generator=generator)
    edits, length = scored[drawn].sum(dim=1).unbind(dim=1)
    low, high = (
        (edits / length).quantile(torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
    )
    return low, high


def error_rates_by_length(
    predictions: Mapping[str, Pronunciation],
    lexicon: Lexicon,
    edges: Sequence[int] = LENGTH_EDGES,
) -> dict[str, ErrorRates]:
    """Score words in groups of similar length.

    Args:
        predictions: ``{word: pronunciation}``.
        lexicon: references for at least those words.
        edges: increasing first lengths of each group, in letters; ``(1, 5, 9)`` makes the groups
            1-4, 5-8 and 9+.

    Returns:
        ``{group: rates}`` for the groups that hold a word.

    Raises:
        ValueError: no edges, or edges that do not increase.

    >>> lexicon = {"a": (("AH",),), "be": (("B", "IY"),)}
    >>> error_rates_by_length({"a": ("AH",), "be": ("B",)}, lexicon, edges=(1, 2))
    {'1': ErrorRates(words=1, word_error_rate=0.0, phoneme_error_rate=0.0), \
'2+': ErrorRates(words=1, word_error_rate=1.0, phoneme_error_rate=0.5)}
    """
    if not edges or any(low >= high for low, high in pairwise(edges)):
        raise ValueError(f"edges must increase, got {tuple(edges)}")
    groups: dict[str, ErrorRates] = {}
    for low, high in zip(edges, [*edges[1:], None], strict=True):
        inside = {
            word: p
            for word, p in predictions.items()
            if low <= len(word) and (high is None or len(word) < high)
        }
        if inside:
            groups[_group_name(low, high)] = error_rates(inside, lexicon)
    return groups


def _group_name(low: int, high: int | None) -> str:
    if high is None:
        return f"{low}+"
    return str(low) if high == low + 1 else f"{low}-{high - 1}"
