"""Decoding: greedy and beam search on distributions that are known."""

import itertools

import pytest
import torch

from companion import AdditiveAttention
from companion.g2p.decoding import beam_search, greedy
from companion.g2p.evaluation import predict
from companion.g2p.lexicon import END, NUM_PHONEMES, PAD, START, encode_words
from companion.g2p.models import RecurrentG2P
from companion.g2p.transformer import TransformerG2P

A, B = 3, 4
# The likeliest first phoneme leads to a less likely whole: A is 0.6 and ends in 0.3 at best.
FIRST = {A: 0.6, B: 0.4}
SECOND = {A: {A: 0.3, B: 0.3, END: 0.4}, B: {END: 0.9, A: 0.1}}


class Known(torch.nn.Module):
    """A model whose next phoneme depends on the one before alone."""

    def forward(self, letters, lengths, phonemes):
        table = torch.full((NUM_PHONEMES, NUM_PHONEMES), -100.0)
        for before, row in {START: FIRST, **SECOND}.items():
            for phoneme, probability in row.items():
                table[before, phoneme] = torch.tensor(probability).log()
        return table[phonemes[:, :-1]]


def models():
    torch.manual_seed(0)
    return {
        "recurrent": RecurrentG2P(AdditiveAttention(8, 8, 4), d_model=8, embedding_dim=4),
        "fixed": RecurrentG2P(d_model=8, embedding_dim=4),
        "transformer": TransformerG2P(2, d_model=8, num_layers=2, d_feedforward=8),
    }


def step_of(model):
    def step(previous):
        phonemes = torch.stack([previous, previous], dim=1)
        return model(None, None, phonemes)[:, 0], None

    return step


def test_greedy_takes_the_likeliest_step_and_a_beam_the_likeliest_whole():
    letters, lengths = encode_words(["ab"])
    phonemes, weights = greedy(step_of(Known()), lengths, 5)
    assert phonemes.tolist() == [[A, END]]
    assert weights is None
    assert beam_search(Known(), letters, lengths, beams=1).tolist() == [[A, END]]
    assert beam_search(Known(), letters, lengths, beams=2).tolist() == [[B, END]]


@pytest.mark.parametrize("name", ["recurrent", "fixed", "transformer"])
def test_one_beam_is_greedy(name):
    model = models()[name].double().eval()
    letters, lengths = encode_words(["cab", "a", "phoneme"])
    expected, _ = model.pronounce(letters, lengths, max_len=12)
    actual = beam_search(model, letters, lengths, beams=1, max_len=12)
    assert torch.equal(actual, expected[:, : actual.shape[1]])
    assert (expected[:, actual.shape[1] :] == PAD).all()


@pytest.mark.parametrize("name", ["recurrent", "transformer"])
def test_a_wide_beam_finds_the_best_of_all(name):
    model = models()[name].double().eval()
    with torch.no_grad():  # leave five phonemes and END, so that all can be tried
        model.to_logits.bias[8:] = -1e4
    letters, lengths = encode_words(["cab"])
    found = beam_search(model, letters, lengths, beams=300, max_len=3)[0]
    candidates = [
        [*phonemes, END, PAD, PAD, PAD][:3]
        for count in range(4)
        for phonemes in itertools.product(range(3, 8), repeat=count)
    ]
    inputs = torch.tensor([[START, *candidate] for candidate in candidates])
    logits = model(letters.expand(len(inputs), -1), lengths.expand(len(inputs)), inputs)
    logits[..., [PAD, START]] = -torch.inf
    gains = logits.log_softmax(-1).gather(-1, inputs[:, 1:, None]).squeeze(-1)
    best = candidates[gains.masked_fill(inputs[:, 1:] == PAD, 0).sum(-1).argmax()]
    assert [*found.tolist(), PAD, PAD, PAD][:3] == best


def test_words_do_not_meet_in_a_beam():
    model, words = models()["transformer"].double().eval(), ["dad", "phoneme", "a"]
    assert predict(model, words, beams=3) == {
        word: predict(model, [word], beams=3)[word] for word in words
    }


@pytest.mark.parametrize("name", ["beams", "max_len"])
def test_sizes_must_be_positive(name):
    options = {"beams": 2, "max_len": 5, name: 0}
    with pytest.raises(ValueError, match=f"{name} must be at least 1, got 0"):
        beam_search(models()["fixed"], *encode_words(["a"]), **options)
