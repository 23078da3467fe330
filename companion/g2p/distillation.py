"""Learning from trained models: what they expect, and how they pronounce further words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

import torch
from torch import Tensor
from tqdm import tqdm

from companion.attention import check_positive
from companion.g2p.decoding import Step, greedy
from companion.g2p.lexicon import (
    END,
    Pronunciation,
    check_words,
    decode_phonemes,
    encode_pronunciations,
    encode_words,
)
from companion.g2p.recipes import G2PModel

Pair: TypeAlias = tuple[str, Pronunciation]


@torch.no_grad()
def expectations(
    teachers: Sequence[G2PModel],
    pairs: Iterable[Pair],
    *,
    batch_size: int = 512,
    progress: bool = False,
) -> dict[Pair, Tensor]:
    r"""Ask trained models what follows each phoneme of known pronunciations, and average.

    .. math:: p_i = \frac{1}{n} \sum_{m=1}^{n} p^{(m)}(y_i \mid y_{<i}, x)

    Here :math:`x` are the letters, :math:`y_{<i}` the true phonemes before the one asked for, and
    :math:`p^{(m)}` is what model :math:`m` of :math:`n` expects. A model that learns these
    probabilities rather than the one right phoneme learns from all teachers what else is likely,
    and at which phonemes they doubt the dictionary.

    Args:
        teachers: trained models, in eval mode.
        pairs: words with their pronunciations.
        batch_size: pairs at a time.
        progress: whether to show a progress bar.

    Returns:
        For each pair ``(phonemes + 1, num_phonemes)``: probabilities of each phoneme, then of END,
        after the true ones before it. In half precision: 120,000 pairs take 0.1 GB.

    Raises:
        ValueError: no teachers.
        TypeError, ValueError: ``batch_size`` is not a positive integer.

    Source: Hinton, Vinyals and Dean 2015; for this task, Sun et al. 2019. Chapter: 6.

    >>> from companion.g2p.model_files import load_model
    >>> pair = ("cab", ("K", "AE", "B"))
    >>> expected = expectations([load_model("additive"), load_model("multi_head")], [pair])[pair]
    >>> expected.shape, bool(expected[0].max() > 0.9)  # the K is hardly in doubt
    (torch.Size([4, 42]), True)
    """
    check_positive(batch_size=batch_size)
    _check_teachers(teachers)
    ordered = sorted(set(pairs), key=lambda pair: (len(pair[1]), len(pair[0]), pair))
    expected: dict[Pair, Tensor] = {}
    starts = range(0, len(ordered), batch_size)
    for start in tqdm(starts, desc="teachers", mininterval=1.0, disable=not progress):
        batch = ordered[start : start + batch_size]
        letters, lengths = encode_words(word for word, _ in batch)
        phonemes = encode_pronunciations(pronunciation for _, pronunciation in batch)
        answers = [model(letters, lengths, phonemes).softmax(dim=-1) for model in teachers]
        mean = torch.stack(answers).mean(dim=0).half()
        for pair, row in zip(batch, mean, strict=True):
            expected[pair] = row[: len(pair[1]) + 1].clone()  # a view would keep the whole batch
    return expected


@torch.no_grad()
def pronounce_together(
    teachers: Sequence[G2PModel],
    words: Iterable[str],
    *,
    batch_size: int = 1024,
    progress: bool = False,
) -> list[Pair]:
    """Pronounce words with several trained models at once: greedily, by their mean probabilities.

    After each phoneme, every model says what it expects next, and all go on with the phoneme that
    is likeliest in the mean.

    Args:
        teachers: trained models, in eval mode.
        words: to pronounce.
        batch_size: words at a time.
        progress: whether to show a progress bar.

    Returns:
        ``(word, pronunciation)`` pairs, the shortest words first. Words that the models do not
        finish within 25 phonemes, or finish before the first, are left out.

    Raises:
        ValueError: no teachers; no words; a word that cannot be read.
        TypeError, ValueError: ``batch_size`` is not a positive integer.

    Chapter: 6.

    >>> from companion.g2p.model_files import load_model
    >>> pronounce_together([load_model("additive"), load_model("multi_head")], ["attentionally"])
    [('attentionally', ('AH', 'T', 'EH', 'N', 'SH', 'AH', 'N', 'AH', 'L', 'IY'))]
    """
    check_positive(batch_size=batch_size)
    _check_teachers(teachers)
    ordered = sorted(check_words(words), key=len)
    pairs: list[Pair] = []
    starts = range(0, len(ordered), batch_size)
    for start in tqdm(starts, desc="unlabelled", mininterval=1.0, disable=not progress):
        batch = ordered[start : start + batch_size]
        letters, lengths = encode_words(batch)
        together = _mean_of([model.writer(letters, lengths) for model in teachers])
        phonemes, _ = greedy(together, lengths, max_len=26)
        for word, row in zip(batch, phonemes.tolist(), strict=True):
            pronunciation = decode_phonemes(row)
            if END in row and pronunciation:
                pairs.append((word, pronunciation))
    return pairs


def _mean_of(writers: Sequence[Step]) -> Step:
    def step(previous: Tensor) -> tuple[Tensor, None]:
        answers = [write(previous)[0].softmax(dim=-1) for write in writers]
        return torch.stack(answers).mean(dim=0).log(), None

    return step


def _check_teachers(teachers: Sequence[G2PModel]) -> None:
    if not teachers:
        raise ValueError("expected at least one model to learn from, got none")


def greedy_word_error_rate(expected: Mapping[Pair, Tensor]) -> float:
    """Count the words that greedy decoding gets wrong, from what is expected after true phonemes.

    Greedy decoding writes a pronunciation if and only if, after each of its phonemes, the next one
    (at last END) is the likeliest. So nothing has to be written, and it works for a mean of models.

    Args:
        expected: from :func:`expectations`, with every listed pronunciation of each word.

    Returns:
        The share of words of which no listed pronunciation would be written.

    Raises:
        ValueError: no words.

    Chapter: 6.

    >>> sure = torch.eye(42)[encode_pronunciations([("AH",)])[0, 1:]]  # AH, then END
    >>> greedy_word_error_rate({("a", ("AH",)): sure, ("a", ("EY",)): sure, ("I", ("AY",)): sure})
    0.5
    """
    if not expected:
        raise ValueError("expected at least one word, got none")
    right = {
        word
        for (word, pronunciation), rows in expected.items()
        if rows.argmax(dim=-1).tolist() == encode_pronunciations([pronunciation])[0, 1:].tolist()
    }
    return 1 - len(right) / len({word for word, _ in expected})
