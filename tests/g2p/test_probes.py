"""Probes and alignments, on models whose memory and gaze are known."""

import random

import pytest
import torch
import torch.nn.functional as F

from companion.g2p.lexicon import END, LETTERS, NUM_LETTERS, NUM_PHONEMES, PHONEMES, encode_words
from companion.g2p.models import Memory, RecurrentG2P
from companion.g2p.probes import (
    LETTERS_OF_CONSONANT,
    alignment_score,
    alignments,
    hiding_effect,
    letter_probe,
    neighbour_probe,
)
from companion.masks import padding_mask


def some_words(number, seed, lengths=(4,)):
    rng = random.Random(seed)
    return ["".join(rng.sample(LETTERS, rng.choice(lengths))) for _ in range(number)]


class Transparent:
    """A model whose states are its letters, and whose summary holds the letters at ``kept``.

    Its phoneme i is letter i, where it looks with all weight; where it may not, it says "AA".
    """

    attention = object()

    def __init__(self, kept=(0, 1, 2, 3)):
        self.kept = kept

    def encode(self, letters, lengths):
        states = F.one_hot(letters, NUM_LETTERS).double()
        summary = states[:, [k for k in self.kept if k < letters.shape[1]]].flatten(1)
        return Memory(states, padding_mask(lengths, letters.shape[1]), summary)

    def step(self, previous, state, memory):
        at = (state[:, 0] < 0) * -state[:, 0].long()  # the state counts downwards from 0
        at = at.clamp(max=memory.states.shape[1] - 1)
        weights = F.one_hot(at, memory.states.shape[1]).double()
        seen = (weights.bool() & memory.mask[:, 0]).any(-1)
        letter = memory.states[torch.arange(len(at)), at].argmax(-1)
        phoneme = torch.where(seen, 3 + letter, 3)
        return F.one_hot(phoneme, NUM_PHONEMES).double(), state - 1, weights

    def pronounce(self, letters, lengths):
        phonemes = F.pad(torch.where(letters > 0, letters + 3, END), (0, 1), value=END)
        weights = torch.eye(phonemes.shape[1], letters.shape[1])
        return phonemes, weights.expand(len(letters), -1, -1)


# Probes


@pytest.mark.parametrize("kept", [(0, 1, 2, 3), (3,), (0, 2)])
def test_letter_probe_finds_the_letters_that_are_kept(kept):
    accuracy = letter_probe(Transparent(kept), some_words(600, 0), some_words(200, 1))
    assert accuracy.shape == (4,)
    for position in range(4):
        if position in kept:
            assert accuracy[position] == 1
        else:
            assert accuracy[position] < 0.2


def test_letter_probe_refuses_words_of_several_lengths():
    with pytest.raises(ValueError, match=r"the same length, got lengths \[2, 3\]"):
        letter_probe(Transparent(), ["cab"], ["be"])


@pytest.mark.parametrize(("offset", "low", "high"), [(0, 1, 1), (1, 0, 0.2), (-1, 0, 0.2)])
def test_neighbour_probe_reads_a_states_own_letter_alone(offset, low, high):
    words = [some_words(300, seed, lengths=(2, 3, 5)) for seed in (0, 1)]
    assert low <= neighbour_probe(Transparent(), *words, offset) <= high


@pytest.mark.parametrize("offset", [-2, -1, 1, 2])
def test_neighbour_probe_knows_which_side_is_which(offset):
    class Shifted(Transparent):
        def encode(self, letters, lengths):
            memory = super().encode(letters, lengths)
            states = memory.states.roll(-offset, dims=1) * memory.mask.mT  # 0 at padding
            return Memory(states, memory.mask, memory.summary)

    words = [some_words(300, seed, lengths=(3, 4, 5)) for seed in (0, 1)]
    assert neighbour_probe(Shifted(), *words, offset) == 1
    assert neighbour_probe(Shifted(), *words, -offset) < 0.2


# Alignments


def test_alignments_are_cut_to_the_word_and_its_phonemes():
    class Tiny(Transparent):
        def pronounce(self, letters, lengths):
            weights = torch.arange(2 * 4 * 3.0).view(2, 4, 3)
            return torch.tensor([[9, 20, END, 0], [9, 9, 20, END]]), weights

    found = alignments(Tiny(), ["be", "bee"])
    assert [p for p, _ in found.values()] == [("B", "IY"), ("B", "B", "IY")]
    assert found["be"][1].tolist() == [[0, 1], [3, 4]]
    assert found["bee"][1].tolist() == [[12, 13, 14], [15, 16, 17], [18, 19, 20]]


def looks(*positions, length=4):
    return F.one_hot(torch.tensor(positions), length).float()


def test_alignment_score_by_hand():
    aligned = {
        "deaf": (("D", "EH", "F"), looks(0, 2, 3)),  # D at d, F at f: both right
        "cafe": (("K", "F", "EY"), looks(1, 2, 0)),  # K at a: wrong; F at f: right
        "fade": (("F", "EY"), looks(0, 0)),  # not as in the dictionary: not scored
    }
    lexicon = {"deaf": (("D", "EH", "F"),), "cafe": (("K",), ("K", "F", "EY")), "fade": (("F",),)}
    assert alignment_score(aligned, lexicon) == 3 / 4


def test_alignment_score_with_an_offset_looks_to_the_right_and_not_outside():
    aligned, lexicon = {"bd": (("B", "D"), looks(0, 1, length=2))}, {"bd": (("B", "D"),)}
    assert [alignment_score(aligned, lexicon, offset=offset) for offset in (-1, 0, 1)] == [0, 1, 0]
    around = {"bob": (("B", "AA", "B"), looks(0, 1, 2, length=3))}
    assert alignment_score(around, {"bob": (("B", "AA", "B"),)}, offset=-1) == 0
    shifted = {"bd": (("B", "D"), looks(0, 0, length=2))}
    assert [alignment_score(shifted, lexicon, offset=offset) for offset in (0, 1)] == [0.5, 0.5]


def test_alignment_score_needs_a_consonant():
    with pytest.raises(ValueError, match="no consonant to score"):
        alignment_score({"a": (("AH",), torch.ones(1, 1))}, {"a": (("AH",),)})


def test_every_consonant_has_letters_and_no_vowel_has():
    vowels = {phoneme for phoneme in PHONEMES if phoneme[0] in "AEIOU"}
    assert set(LETTERS_OF_CONSONANT) == set(PHONEMES) - vowels
    assert set("".join(LETTERS_OF_CONSONANT.values())) <= set(LETTERS)


# Hiding


def test_hiding_the_letter_looked_at_matters_and_another_does_not():
    words = [word.replace("'", "z") for word in some_words(50, 0, lengths=(2, 3, 4))]
    assert hiding_effect(Transparent(), words) == (1.0, 0.0)


def test_hiding_repeats_with_its_seed():
    torch.manual_seed(0)

    class Uniform(torch.nn.Module):
        def forward(self, query, key, value, *, mask=None, need_weights=True):
            weights = mask.double() / mask.double().sum(-1, keepdim=True)
            return weights @ value, weights

    model = RecurrentG2P(Uniform(), d_model=6, embedding_dim=4).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3)
    words = some_words(30, 0)
    first, same, other = (hiding_effect(model, words, seed=seed) for seed in (0, 0, 1))
    assert first == same
    assert first[0] == other[0]


def test_what_has_no_attention_is_refused():
    model = RecurrentG2P(d_model=4, embedding_dim=3)
    with pytest.raises(ValueError, match="no attention, so there is no alignment"):
        alignments(model, ["cab"])
    with pytest.raises(ValueError, match="no attention to hide a letter from"):
        hiding_effect(model, ["cab"])


def test_hiding_needs_another_letter():
    with pytest.raises(ValueError, match="every word must have at least two letters"):
        hiding_effect(Transparent(), ["cab", "a"])


def test_probes_read_the_real_encoder():
    model = RecurrentG2P(d_model=48, embedding_dim=32).double().eval()
    words = [some_words(400, seed) for seed in (0, 1)]
    assert neighbour_probe(model, *words, 0) > 0.9
    assert letter_probe(model, *words)[[0, 3]].min() > 0.5
    letters, lengths = encode_words(["cab"])
    assert model.encode(letters, lengths).summary.shape == (1, 48)
