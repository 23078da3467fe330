"""The dictionary, its splits, and its two alphabets."""

from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from companion.g2p.lexicon import (
    END,
    LETTERS,
    NUM_LETTERS,
    NUM_PHONEMES,
    PAD,
    PHONEMES,
    START,
    decode_phonemes,
    encode_pronunciations,
    encode_word,
    encode_words,
    load_lexicon,
    parse_dictionary,
    select_split,
    split_of,
)

words_of_letters = st.text(LETTERS, min_size=1, max_size=12)

# Reading the file


@pytest.mark.parametrize(
    ("line", "entry"),
    [
        ("abbey AE1 B IY0", {"abbey": (("AE", "B", "IY"),)}),
        ("abbey  AE1 B IY0  # place, danish", {"abbey": (("AE", "B", "IY"),)}),
        ("ABBEY AE1 B IY0\n", {"abbey": (("AE", "B", "IY"),)}),
        ("o'clock AH0 K L AA1 K", {"o'clock": (("AH", "K", "L", "AA", "K"),)}),
        ("'em AH0 M", {"'em": (("AH", "M"),)}),
        ("actors' AE1 K T ER0 Z", {"actors'": (("AE", "K", "T", "ER", "Z"),)}),
        ("read(2) R IY1 D", {"read": (("R", "IY", "D"),)}),
        ("# a comment", {}),
        ("", {}),
        ("  \n", {}),
        ("3d TH R IY1 D IY2", {}),
        ("a.m. EY2 EH1 M", {}),
        ("co-op K OW1 AA2 P", {}),
        ("déjà D EY1 ZH AA1", {}),
    ],
)
def test_a_line(line, entry):
    assert parse_dictionary([line]) == entry


def test_variants_keep_their_order():
    lines = ["read R EH1 D", "a AH0", "read(2) R IY1 D"]
    assert parse_dictionary(lines)["read"] == (("R", "EH", "D"), ("R", "IY", "D"))


def test_variants_that_differ_in_stress_alone_become_one():
    lines = ["record R EH1 K ER0 D", "record(2) R EH0 K ER2 D", "record(3) R IH0 K AO1 R D"]
    expected = (("R", "EH", "K", "ER", "D"), ("R", "IH", "K", "AO", "R", "D"))
    assert parse_dictionary(lines) == {"record": expected}


def test_the_real_dictionary():
    lexicon = load_lexicon()
    assert len(lexicon) == 124_926
    assert sum(map(len, lexicon.values())) == 133_667
    assert lexicon["attention"] == (("AH", "T", "EH", "N", "SH", "AH", "N"),)
    assert lexicon["the"] == (("DH", "AH"), ("DH", "IY"))
    assert {letter for word in lexicon for letter in word} == set(LETTERS)
    assert {p for variants in lexicon.values() for v in variants for p in v} == set(PHONEMES)


def test_a_missing_dictionary_says_what_to_install(monkeypatch):
    def files(package):
        raise ModuleNotFoundError(f"No module named {package!r}", name=package)

    monkeypatch.setattr("companion.g2p.lexicon.resources.files", files)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'attention-companion\[g2p\]'"):
        load_lexicon.__wrapped__()


# Splits


def test_splits_are_those_of_the_published_numbers():
    sizes = Counter(map(split_of, load_lexicon()))
    assert sizes == {"train": 112_347, "valid": 6_336, "test": 6_243}
    pinned = {
        "attention": "train", "cab": "train", "python": "valid", "phoneme": "valid",
        "abducted": "test", "'round": "test", "abbey's": "test",
    }  # fmt: skip
    assert {word: split_of(word) for word in pinned} == pinned


def test_every_word_is_in_exactly_one_split():
    splits = [select_split(load_lexicon(), split) for split in ("train", "valid", "test")]
    assert sum(map(len, splits)) == len(load_lexicon())
    assert {word for split in splits for word in split} == set(load_lexicon())


def test_a_split_is_in_alphabetical_order_with_every_pronunciation():
    lexicon = {"python": (("P",), ("B",)), "phoneme": (("F",),), "cab": (("K",),)}
    assert list(select_split(lexicon, "valid").items()) == [
        ("phoneme", (("F",),)),
        ("python", (("P",), ("B",))),
    ]


@pytest.mark.parametrize("split", ["dev", "Train", "", None])
def test_an_unknown_split_is_refused(split):
    with pytest.raises(ValueError, match="split must be one of train, valid, test, got"):
        select_split({}, split)


# Alphabets


def test_alphabets_do_not_overlap_with_the_frame():
    assert (PAD, START, END) == (0, 1, 2)
    letters = [index for letter in LETTERS for index in encode_word(letter)]
    assert letters == list(range(1, NUM_LETTERS))
    phonemes = [encode_pronunciations([(phoneme,)])[0, 1].item() for phoneme in PHONEMES]
    assert phonemes == list(range(3, NUM_PHONEMES))
    assert len(PHONEMES) == 39


def test_words_by_hand():
    letters, lengths = encode_words(["Cab", "'a"])
    assert letters.tolist() == [[4, 2, 3], [1, 2, 0]]
    assert lengths.tolist() == [3, 2]
    assert letters.dtype == lengths.dtype == torch.int64


@settings(max_examples=20)
@given(st.lists(words_of_letters, min_size=1, max_size=4))
def test_words_can_be_read_back(words):
    letters, lengths = encode_words(words)
    alphabet = " " + LETTERS
    assert ["".join(alphabet[i] for i in row).rstrip() for row in letters.tolist()] == words
    assert lengths.tolist() == [len(word) for word in words]


@settings(max_examples=20)
@given(st.lists(st.lists(st.sampled_from(PHONEMES)).map(tuple), min_size=1, max_size=4))
def test_pronunciations_can_be_read_back(pronunciations):
    encoded = encode_pronunciations(pronunciations)
    assert (encoded[:, 0] == START).all()
    assert (encoded == END).sum(1).eq(1).all()
    assert [decode_phonemes(row.tolist()) for row in encoded] == pronunciations


def test_decoding_stops_at_the_first_end():
    assert decode_phonemes([START, 4, PAD, 9, END, 7]) == ("AE", "B")
    assert decode_phonemes([]) == decode_phonemes([END, 4]) == ()


@pytest.mark.parametrize(
    ("word", "unknown"),
    [("two words", "' '"), ("café", "'é'"), ("x2", "'2'"), ("co-op", "'-'"), ("don’t", "'’'")],
)
def test_a_word_that_cannot_be_read_names_the_character(word, unknown):
    with pytest.raises(ValueError, match=f"cannot read '{word}'.*a-z and the .*, not {unknown}"):
        encode_words(["good", word])


def test_other_input_is_refused():
    with pytest.raises(ValueError, match="at least one letter, got an empty string"):
        encode_words([""])
    with pytest.raises(ValueError, match="at least one word, got none"):
        encode_words([])
    with pytest.raises(TypeError, match="a word must be a string, got int"):
        encode_words([3])
