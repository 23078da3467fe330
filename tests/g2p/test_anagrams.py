"""Anagrams: which words are paired, and what tells them apart."""

import pytest
import torch

from companion.g2p.anagrams import (
    FirstSound,
    learn_first_sound,
    split_anagrams,
    starts_with_vowel,
)
from companion.g2p.lexicon import encode_words

VOWEL, OTHER = ("AA", "T"), ("T", "AA")
# a before b or b before a, among letters that say nothing
WORDS = [a + "xyz"[i] + b + "pqr"[j] for a, b in ("ab", "ba") for i in range(3) for j in range(3)]


def test_pairs_differ_in_the_first_sound_and_others_share_no_letters_with_them():
    lexicon = {
        "ab": (VOWEL,), "ba": (OTHER,),  # a pair
        "cde": (OTHER,), "dec": (OTHER,), "ecd": (VOWEL,),  # one pair, the alphabet's first
        "fg": (OTHER,), "gf": (OTHER,),  # both alike
        "hi": (VOWEL,), "ih": (VOWEL, OTHER),  # one disagrees with itself
        "j": (VOWEL,),
    }  # fmt: skip
    pairs, others = split_anagrams(lexicon)
    assert pairs == [("ab", "ba"), ("ecd", "cde")]
    assert others == {"fg": False, "gf": False, "hi": True, "j": True}


@pytest.mark.parametrize(
    ("pronunciations", "expected"),
    [([("ER", "D")], True), ([("Y", "UW")], False), ([VOWEL, VOWEL], True), ([VOWEL, OTHER], None)],
)
def test_the_first_sound_decides(pronunciations, expected):
    assert starts_with_vowel(pronunciations) is expected


@pytest.mark.parametrize(
    ("options", "equal"), [({}, True), ({"positions": True}, False), ({"causal": True}, False)]
)
def test_only_positions_or_a_causal_mask_tell_anagrams_apart(options, equal):
    torch.manual_seed(0)
    one, other = FirstSound(**options).double()(*encode_words(["listen", "silent"])).detach()
    assert torch.isclose(one, other, rtol=1e-12, atol=1e-12) == equal


@pytest.mark.parametrize("options", [{}, {"positions": True}, {"causal": True}])
def test_padding_changes_nothing(options):
    torch.manual_seed(0)
    model = FirstSound(**options).double()
    together = model(*encode_words(["in", "silent"]))
    torch.testing.assert_close(together[:1], model(*encode_words(["in"])))


@pytest.mark.parametrize(("options", "right"), [({}, 0.5), ({"positions": True}, 1.0)])
def test_accuracy_is_that_on_the_pairs(options, right):
    words = {word: word[0] == "a" for word in WORDS}
    pairs = [("axb", "bxa"), ("azbp", "bzap")]
    before = torch.get_rng_state()
    assert learn_first_sound(words, pairs, seed=0, **options) == right
    assert torch.equal(torch.get_rng_state(), before)


def test_nothing_to_learn_from_is_refused():
    with pytest.raises(ValueError, match="expected words to learn from and pairs"):
        learn_first_sound({"a": True}, [], seed=0)
    with pytest.raises(ValueError, match="steps must be at least 1"):
        learn_first_sound({"a": True}, [("ab", "ba")], seed=0, steps=0)
