"""What heads look at, and what happens without them."""

import pytest
import torch

from companion.g2p.heads import (
    Head,
    all_heads,
    forced_errors,
    gaze,
    heads_off,
    removal_costs,
    spelling_letters,
)
from companion.g2p.lexicon import (
    END,
    NUM_PHONEMES,
    PHONEME_INDEX,
    encode_pronunciations,
    encode_words,
)
from companion.g2p.transformer import LayerWeights, TransformerG2P

LEXICON = {
    "cab": (("K", "AE", "B"),),
    "beds": (("B", "EH", "D", "Z"),),
    "python": (("P", "AY", "TH", "AA", "N"),),
}


def make():
    torch.manual_seed(0)
    model = TransformerG2P(2, d_model=8, num_layers=2, d_feedforward=12)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("output_projection.weight"):
                parameter.mul_(10)  # so that each head matters
    return model.double().eval()


def logits(model):
    words = list(LEXICON)
    return model(*encode_words(words), encode_pronunciations(LEXICON[word][0] for word in words))


def test_all_heads_are_listed_once():
    heads = all_heads(make())
    assert len(heads) == len(set(heads)) == 3 * 2 * 2
    assert str(heads[0]) == "encoder 1.1"
    assert str(heads[-1]) == "cross 2.2"


@pytest.mark.parametrize("head", all_heads(make()), ids=str)
def test_each_head_can_be_switched_off_and_comes_back(head):
    model = make()
    before = logits(model)
    with heads_off(model, [head]):
        assert not torch.allclose(logits(model), before)
    assert torch.equal(logits(model), before)


def test_different_heads_switch_off_different_things():
    model, seen = make(), []
    for head in all_heads(model):
        with heads_off(model, [head]):
            seen.append(logits(model))
    for index, one in enumerate(seen):
        assert not any(torch.allclose(one, other) for other in seen[:index])


def test_several_heads_of_one_attention_go_together():
    model = make()
    with heads_off(model, [Head("cross", 1, 0), Head("cross", 1, 1)]):
        assert not model.decoder[1].cross_attention.output_projection.weight.any()


class Always(TransformerG2P):
    """Predicts B, whatever the word."""

    def forward(self, letters, lengths, phonemes):
        scores = torch.zeros(*phonemes[:, 1:].shape, NUM_PHONEMES, dtype=torch.float64)
        scores[..., PHONEME_INDEX["B"]] = 1.0
        return scores


def test_errors_count_each_phoneme_and_the_end_but_no_padding():
    errors = forced_errors(Always(1, d_model=2, num_layers=1), LEXICON, {"b": ["B"], "kb": "KB"})
    assert errors["all"] == pytest.approx(13 / 15)  # 12 phonemes and 3 ENDs, 2 of them B
    assert errors["b"] == 0
    assert errors["kb"] == pytest.approx(1 / 3)
    assert END not in PHONEME_INDEX.values()


def test_removal_costs_are_sorted_rises():
    model = make()
    costs = removal_costs(model, LEXICON)
    assert set(costs) == set(all_heads(model))
    assert list(costs.values()) == sorted(costs.values())
    head = next(iter(costs))
    base = forced_errors(model, LEXICON)["all"]
    with heads_off(model, [head]):
        assert costs[head] == pytest.approx(forced_errors(model, LEXICON)["all"] - base)


@pytest.mark.parametrize(
    ("word", "pronunciation", "letters"),
    [
        ("cabin", ("K", "AE", "B", "AH", "N"), [0, -1, 2, -1, 4]),
        ("bob", ("B", "AA", "B"), [-1, -1, -1]),  # two letters, two sounds
        ("phone", ("F", "OW", "N"), [-1, -1, 3]),  # p or h
    ],
)
def test_spelling_letters_are_those_without_doubt(word, pronunciation, letters):
    assert spelling_letters(word, pronunciation) == letters


class Looking(TransformerG2P):
    """Every encoder head looks at the next letter, every cross head at the last one."""

    def weights(self, letters, lengths, phonemes):
        (batch, length), (_, steps) = letters.shape, phonemes.shape
        following = torch.eye(length).roll(1, 1).expand(1, batch, 1, -1, -1)
        last = torch.nn.functional.one_hot(lengths - 1, length)[None, :, None, None].float()
        return LayerWeights(following, following, last.expand(-1, -1, 1, steps, -1))


def test_gaze_finds_what_a_head_looks_at():
    by_head, _ = gaze(Looking(1, d_model=2, num_layers=1), LEXICON)
    encoder, cross = by_head[Head("encoder", 0, 0)], by_head[Head("cross", 0, 0)]
    assert encoder["next"] == 1
    assert encoder["current"] == encoder["previous"] == 0
    assert encoder["last"] == 0  # counted only where it is not the next one
    assert cross["last"] == 1
    assert cross["first"] == 0
    assert {head.kind for head in by_head} == {"encoder", "cross"}


def test_even_weights_are_one_over_the_length():
    _, even = gaze(make(), {"beds": LEXICON["beds"]})
    assert set(even.values()) == {0.25}


@pytest.mark.parametrize("head", [Head("foo", 0, 0), Head("cross", -1, 0), Head("encoder", 9, 0)])
def test_a_head_that_the_model_does_not_have_is_refused(head):
    model = TransformerG2P(2, d_model=4, num_layers=1, d_feedforward=4)
    with pytest.raises(ValueError, match="the model has no head"), heads_off(model, [head]):
        pass


def test_another_model_has_no_heads():
    with pytest.raises(TypeError, match="model must be a TransformerG2P, got Linear"):
        all_heads(torch.nn.Linear(1, 1))
