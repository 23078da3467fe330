"""The words without a pronunciation: none that the dictionary lists, and none that is no word."""

import re

import pytest

from companion.g2p.lexicon import encode_words, load_lexicon, split_of
from companion.g2p.unlabelled import unlabelled_words


@pytest.fixture(scope="module")
def words():
    return unlabelled_words(load_lexicon())


def test_the_dictionary_lists_none_of_them(words):
    """Its words for validation and for the test would leak, even without their pronunciation."""
    assert len(words) == 139_663
    assert not set(words) & set(load_lexicon())
    assert {split_of(word) for word in words} == {"train", "valid", "test"}  # the hash alone


def test_each_can_be_read_and_comes_once_in_order(words):
    assert words == sorted(set(words))
    assert all(re.fullmatch("[a-z][a-z']+", word) for word in words)
    _, lengths = encode_words(words)
    assert (int(lengths.min()), int(lengths.max())) == (3, 18)


def test_surnames_and_words_are_among_them(words):
    assert {"sciacchitano", "stedronsky", "sagaciously", "hartebeests"} <= set(words)


def test_only_the_given_dictionary_counts():
    assert {"attention", "smith"} <= set(unlabelled_words({}))


def test_missing_lists_say_what_to_install(monkeypatch):
    def files(package):
        raise ModuleNotFoundError(f"No module named {package!r}", name=package)

    monkeypatch.setattr("companion.g2p.unlabelled.resources.files", files)
    with pytest.raises(ModuleNotFoundError, match=r"attention-companion\[distillation\]"):
        unlabelled_words({})
