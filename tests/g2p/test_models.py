"""The encoder-decoder whose attention is a part."""

import pytest
import torch
from torch import nn

from companion import AdditiveAttention, MultiHeadAttention
from companion.g2p.lexicon import END, NUM_PHONEMES, PAD, START, encode_pronunciations, encode_words
from companion.g2p.models import RecurrentG2P
from companion.g2p.transformer import TransformerG2P

WORDS = ["cab", "a", "attention", "it's"]
PHONEMES = [("K", "AE", "B"), ("AH",), ("AH", "T", "EH", "N"), ("IH",)]


class LooksAtFirst(nn.Module):
    """The plainest attention of the right interface: all weight on the first letter."""

    def forward(self, query, key, value, *, mask=None, need_weights=True):
        weights = torch.zeros(*query.shape[:-1], key.shape[-2], dtype=query.dtype)
        weights[..., 0] = 1
        return weights @ value, weights


MODELS = {
    "none": lambda **options: RecurrentG2P(d_model=6, embedding_dim=4, **options),
    "additive": lambda **options: RecurrentG2P(
        AdditiveAttention(6, 6, 5), d_model=6, embedding_dim=4, **options
    ),
    "one-way": lambda **options: RecurrentG2P(
        AdditiveAttention(6, 6, 5), d_model=6, embedding_dim=4, bidirectional=False, **options
    ),
    "own": lambda **options: RecurrentG2P(LooksAtFirst(), d_model=6, embedding_dim=4, **options),
}
each_model = pytest.mark.parametrize("kind", MODELS)


def make(kind, **options):
    torch.manual_seed(3)
    model = MODELS[kind](**options).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3)  # untrained models of this size would say the same for every word
    return model


@each_model
def test_teacher_forcing_gives_logits_for_every_phoneme_but_the_first(kind):
    logits = make(kind)(*encode_words(WORDS), encode_pronunciations(PHONEMES))
    assert logits.shape == (4, 5, NUM_PHONEMES)  # the longest: START, 4 phonemes, END


@each_model
def test_padding_changes_no_logit(kind):
    model = make(kind)
    together = model(*encode_words(WORDS), encode_pronunciations(PHONEMES))
    for word, phonemes, logits in zip(WORDS, PHONEMES, together, strict=True):
        (alone,) = model(*encode_words([word]), encode_pronunciations([phonemes]))
        torch.testing.assert_close(alone, logits[: len(alone)], rtol=1e-12, atol=1e-12)


@each_model
def test_what_stands_in_the_padding_changes_nothing(kind):
    model, (letters, lengths) = make(kind), encode_words(WORDS)
    filled = letters.masked_fill(letters == PAD, 5)
    phonemes = encode_pronunciations(PHONEMES)
    assert torch.equal(model(letters, lengths, phonemes), model(filled, lengths, phonemes))


@each_model
def test_padding_changes_no_pronunciation(kind):
    model = make(kind)
    phonemes, weights = model.pronounce(*encode_words(WORDS), max_len=8)
    assert weights is None or weights.shape == (4, phonemes.shape[1], 9)
    for index, word in enumerate(WORDS):
        (alone,), weights_alone = model.pronounce(*encode_words([word]), max_len=8)
        assert phonemes[index, : len(alone)].tolist() == alone.tolist()
        if weights is not None:
            t, length = weights_alone.shape[1:]
            torch.testing.assert_close(weights[index, :t, :length], weights_alone[0])
            assert (weights[index, :, length:] == 0).all()


@each_model
def test_weights_are_none_only_without_attention(kind):
    _, weights = make(kind).pronounce(*encode_words(WORDS), max_len=3)
    if kind == "none":
        assert weights is None
    else:
        torch.testing.assert_close(weights.sum(-1), torch.ones(4, 3).double())


def step_by_step(model, word, max_len):
    """Greedy decoding, spelled out for one word."""
    memory = model.encode(*encode_words([word]))
    state, previous, written = memory.summary, torch.tensor([START]), []
    while len(written) < max_len and previous.item() != END:
        logits, state, _ = model.step(previous, state, memory)
        previous = logits[:, END:].argmax(-1) + END  # neither PAD nor START
        written.append(previous.item())
    return written


@each_model
def test_greedy_decoding_equals_step_by_step(kind):
    model = make(kind)
    with torch.no_grad():
        model.to_logits.bias[END] += 1  # so that some words end before max_len
    phonemes, _ = model.pronounce(*encode_words(WORDS), max_len=8)
    expected = [step_by_step(model, word, 8) for word in WORDS]
    assert [[p for p in row if p != PAD] for row in phonemes.tolist()] == expected


@each_model
def test_greedy_decoding_picks_the_best_under_teacher_forcing(kind):
    model, (letters, lengths) = make(kind), encode_words(WORDS)
    phonemes, _ = model.pronounce(letters, lengths, max_len=6)
    framed = torch.cat([torch.full((4, 1), START), phonemes], dim=1)
    logits = model(letters, lengths, framed)
    logits[..., [PAD, START]] = -torch.inf
    written = phonemes != PAD
    assert torch.equal(logits.argmax(-1)[written], phonemes[written])


def test_words_are_padded_after_their_end_and_the_batch_stops_with_the_last():
    model = make("additive")
    with torch.no_grad():
        model.to_logits.bias[END] += 1
    phonemes, _ = model.pronounce(*encode_words(WORDS), max_len=30)
    ends = (phonemes == END).long()
    assert (ends.sum(1) <= 1).all()
    assert (phonemes[ends.cumsum(1) - ends == 1] == PAD).all()
    for row in phonemes:
        assert (row != START).all()
    with torch.no_grad():
        model.to_logits.bias[END] += 1000
    assert model.pronounce(*encode_words(WORDS))[0].tolist() == [[END]] * 4


@each_model
def test_pronouncing_needs_no_gradient_and_leaves_the_model_alone(kind):
    model = make(kind)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    first, second = (model.pronounce(*encode_words(WORDS), max_len=4) for _ in range(2))
    assert torch.equal(first[0], second[0])
    assert first[1] is None or not first[1].requires_grad
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_the_context_depends_on_attention():
    letters = encode_words(["cab"])
    logits = [model(*letters, encode_pronunciations([("B",)])) for model in map(make, MODELS)]
    for index, one in enumerate(logits):
        assert not any(torch.allclose(one, other) for other in logits[:index])


def test_attention_reads_every_letter_and_the_one_way_encoder_only_those_before():
    for kind, changed in (("additive", [True] * 3), ("one-way", [False, False, True])):
        model = make(kind)
        cab, car = (model.encode(*encode_words([word])).states[0] for word in ("cab", "car"))
        assert (cab != car).any(dim=1).tolist() == changed


def test_the_summary_is_the_last_letters_not_the_paddings():
    model = make("none")
    together = model.encode(*encode_words(WORDS)).summary
    alone = torch.cat([model.encode(*encode_words([word])).summary for word in WORDS])
    torch.testing.assert_close(together, alone, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", ["none", "additive", "one-way"])
def test_every_parameter_is_trained(kind):
    model = make(kind)
    model(*encode_words(WORDS), encode_pronunciations(PHONEMES)).square().sum().backward()
    idle = [name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()]
    assert idle == []


def test_dropout_acts_in_training_alone():
    model, letters = make("additive", dropout=0.5), encode_words(WORDS)
    phonemes = encode_pronunciations(PHONEMES)
    assert torch.equal(model(*letters, phonemes), model(*letters, phonemes))
    model.train()
    assert not torch.equal(model(*letters, phonemes), model(*letters, phonemes))


def test_dropout_acts_on_letters_phonemes_and_the_decoders_output():
    model, letters = make("additive", dropout=0.5), encode_words(WORDS)
    memory = model.encode(*letters)
    model.train()
    assert not torch.equal(model.encode(*letters).states, model.encode(*letters).states)

    previous = torch.full((4,), START)
    (_, one, _), (_, other, _) = (model.step(previous, memory.summary, memory) for _ in range(2))
    assert not torch.equal(one, other)

    torch.nn.init.zeros_(model.phoneme_embedding.weight)
    steps = [model.step(previous, memory.summary, memory) for _ in range(2)]
    assert torch.equal(steps[0][1], steps[1][1])
    assert not torch.equal(steps[0][0], steps[1][0])


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"d_model": 0}, ValueError, "d_model must be at least 1, got 0"),
        ({"embedding_dim": -1}, ValueError, "embedding_dim must be at least 1, got -1"),
        ({"d_model": 2.5}, TypeError, "d_model must be an integer, got float"),
        ({"dropout": 1.0}, ValueError, r"dropout must be in \[0, 1\), got 1.0"),
    ],
)
def test_model_refuses_wrong_sizes(options, error, message):
    with pytest.raises(error, match=message):
        RecurrentG2P(**options)


@pytest.mark.parametrize(
    ("lengths", "error", "message"),
    [
        ([3], ValueError, r"letters \(B, L\) and lengths \(B,\), got \(2, 3\) and \(1,\)"),
        ([3, 0], ValueError, "a word must have at least 1 letter"),
        ([3, 4], ValueError, "lengths must be at most max_len=3, got 4"),
        ([3.0, 1.0], TypeError, "lengths must be an integer tensor"),
    ],
)
@pytest.mark.parametrize(
    "model", [MODELS["none"](), TransformerG2P(1, d_model=4, num_layers=1, d_feedforward=4)]
)
def test_lengths_that_do_not_fit_the_letters_are_refused(model, lengths, error, message):
    letters, _ = encode_words(["cab", "a"])
    with pytest.raises(error, match=message):
        model.pronounce(letters, torch.tensor(lengths))


def test_of_several_heads_the_mean_weights_are_returned():
    torch.manual_seed(0)
    attention = MultiHeadAttention(6, 2)
    model = RecurrentG2P(attention, d_model=6, embedding_dim=4).eval()
    letters, lengths = encode_words(["cab", "a"])
    _, weights = model.pronounce(letters, lengths, max_len=2)
    assert weights.shape == (2, 2, 3)
    memory = model.encode(letters, lengths)
    _, heads = attention(memory.summary[:, None], memory.states, memory.states, mask=memory.mask)
    torch.testing.assert_close(weights[:, 0], heads.mean(dim=1)[:, 0])


def test_an_attention_is_a_module():
    with pytest.raises(TypeError, match="attention must be a module, got str"):
        RecurrentG2P("additive")
