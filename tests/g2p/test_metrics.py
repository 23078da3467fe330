"""Error rates, by hand."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from companion.g2p.metrics import (
    ErrorRates,
    error_rates,
    error_rates_by_length,
    nearest_reference,
    phoneme_error_interval,
)

pronunciations = st.lists(st.sampled_from(["AH", "B", "K"]), max_size=5).map(tuple)


def edit_distance(one, other):
    """The definition: the cheapest way to spend insertions, deletions and substitutions."""
    if not one or not other:
        return len(one) + len(other)
    return min(
        edit_distance(one[1:], other) + 1,
        edit_distance(one, other[1:]) + 1,
        edit_distance(one[1:], other[1:]) + (one[0] != other[0]),
    )


@pytest.mark.parametrize(
    ("prediction", "edits"),
    [
        ("K AE T", 0),
        ("K AE", 1),  # one is missing
        ("K AE T S", 1),  # one too many
        ("K AH T", 1),  # one is wrong
        ("T AE K", 2),
        ("", 3),
        ("CAET", 3),  # phonemes are compared whole, not letter by letter
    ],
)
def test_edits_by_hand(prediction, edits):
    assert nearest_reference(tuple(prediction.split()), [("K", "AE", "T")]) == (edits, 3)


@settings(max_examples=25)
@given(pronunciations, pronunciations)
def test_edits_agree_with_the_definition(prediction, reference):
    expected = (edit_distance(prediction, reference), len(reference))
    assert nearest_reference(prediction, [reference]) == expected


def test_the_nearest_reference_counts_and_of_equal_ones_the_first():
    far, near, as_near = ("B", "AH", "B"), ("B", "K", "AH"), ("B",)
    assert nearest_reference(("B", "K"), [far, near, as_near]) == (1, 3)
    assert nearest_reference(("B", "K"), [far, as_near, near]) == (1, 1)


LEXICON = {
    "a": (("AH",), ("EY",)),
    "be": (("B", "IY"),),
    "cab": (("K", "AE", "B"),),
    "abbey": (("AE", "B", "IY"),),
}
PREDICTIONS = {
    "a": ("EY",),  # right, by its second reference
    "be": ("B",),  # 1 edit in 2
    "cab": ("G", "AE", "P", "S"),  # 3 edits in 3
    "abbey": ("AE", "B", "IY"),  # right
}


def test_error_rates_by_hand():
    assert error_rates(PREDICTIONS, LEXICON) == ErrorRates(4, 2 / 4, (1 + 3) / (1 + 2 + 3 + 3))


def test_phoneme_error_rate_can_exceed_1():
    assert error_rates({"a": ("B", "K", "B")}, LEXICON) == ErrorRates(1, 1.0, 3.0)


def test_error_rates_by_length_by_hand():
    assert error_rates_by_length(PREDICTIONS, LEXICON, (1, 2, 4)) == {
        "1": ErrorRates(1, 0.0, 0.0),
        "2-3": ErrorRates(2, 1.0, 4 / 5),
        "4+": ErrorRates(1, 0.0, 0.0),
    }


def test_groups_without_a_word_are_left_out():
    assert list(error_rates_by_length(PREDICTIONS, LEXICON, (1, 3, 4, 9))) == ["1-2", "3", "4-8"]
    assert list(error_rates_by_length(PREDICTIONS, LEXICON, (3,))) == ["3+"]


def test_an_interval_covers_95_percent_of_what_other_words_would_give():
    # A word is wrong in its one phoneme with probability 0.2: over 400 words, 0.2 +- 1.96 * 0.02.
    words = {f"w{index}": (("AH",),) for index in range(400)}
    predictions = {w: ("AH",) if index % 5 else ("B",) for index, w in enumerate(words)}
    low, high = phoneme_error_interval(predictions, words, resamples=2000)
    assert (low, high) == pytest.approx((0.1608, 0.2392), abs=0.006)
    assert phoneme_error_interval(predictions, words, resamples=2000) == (low, high)


def test_an_interval_weighs_words_by_their_phonemes():
    assert phoneme_error_interval({"be": ("B",)}, LEXICON) == (0.5, 0.5)
    low, high = phoneme_error_interval(PREDICTIONS, LEXICON)
    assert low < (1 + 3) / (1 + 2 + 3 + 3) < high


@pytest.mark.parametrize("edges", [(), (3, 3), (5, 1)])
def test_edges_must_increase(edges):
    with pytest.raises(ValueError, match="edges must increase, got"):
        error_rates_by_length(PREDICTIONS, LEXICON, edges)


def test_other_input_is_refused():
    with pytest.raises(ValueError, match="at least one reference pronunciation, got none"):
        nearest_reference(("B",), [])
    with pytest.raises(ValueError, match="at least one prediction, got none"):
        error_rates({}, LEXICON)
    with pytest.raises(ValueError, match="at least one prediction, got none"):
        phoneme_error_interval({}, LEXICON)
    with pytest.raises(KeyError, match="zoo"):
        error_rates({"zoo": ("Z", "UW")}, LEXICON)
