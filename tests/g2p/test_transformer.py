"""The model made of attention alone."""

import pytest
import torch
from torch import nn

from companion import MultiHeadAttention, causal_mask, to_torch_attn_mask
from companion.g2p.evaluation import predict
from companion.g2p.lexicon import END, NUM_PHONEMES, PAD, START, encode_pronunciations, encode_words
from companion.g2p.training import training_steps
from companion.g2p.transformer import TransformerG2P

WORDS = ["cab", "a", "attention", "it's"]
PHONEMES = [("K", "AE", "B"), ("AH",), ("AH", "T", "EH", "N"), ("IH",)]
each_number_of_heads = pytest.mark.parametrize("num_heads", [1, 2, 4])


def make(num_heads=2, **options):
    torch.manual_seed(3)
    sizes = {"d_model": 8, "num_layers": 2, "d_feedforward": 12}
    return TransformerG2P(num_heads, **{**sizes, **options}).double().eval()


def framed(phonemes):
    return torch.cat([torch.full((len(phonemes), 1), START), phonemes], dim=1)


@each_number_of_heads
def test_teacher_forcing_gives_logits_for_every_phoneme_but_the_first(num_heads):
    logits = make(num_heads)(*encode_words(WORDS), encode_pronunciations(PHONEMES))
    assert logits.shape == (4, 5, NUM_PHONEMES)  # the longest: START, 4 phonemes, END


def test_padding_changes_no_logit():
    model = make()
    together = model(*encode_words(WORDS), encode_pronunciations(PHONEMES))
    for word, phonemes, logits in zip(WORDS, PHONEMES, together, strict=True):
        (alone,) = model(*encode_words([word]), encode_pronunciations([phonemes]))
        torch.testing.assert_close(alone, logits[: len(alone)], rtol=1e-12, atol=1e-12)


def test_what_stands_in_the_padding_changes_nothing():
    model, (letters, lengths) = make(), encode_words(WORDS)
    filled, phonemes = letters.masked_fill(letters == PAD, 5), encode_pronunciations(PHONEMES)
    assert torch.equal(model(letters, lengths, phonemes), model(filled, lengths, phonemes))


def test_no_logit_depends_on_later_phonemes():
    model, letters = make(), encode_words(["attention"])
    phonemes = torch.tensor([[START, 5, 6, 7, 8]])
    changed = torch.tensor([[START, 5, 6, 9, 10]])
    before, after = model(*letters, phonemes)[0], model(*letters, changed)[0]
    torch.testing.assert_close(before[:3], after[:3], rtol=0, atol=0)
    assert not torch.allclose(before[3], after[3])


def test_letters_can_be_hidden_from_letters():
    """With a causal mask, what is read at a letter does not depend on the letters after it."""
    model, mask = make(), torch.ones(3, 3, dtype=torch.bool).tril()
    one, other = (model.encode(*encode_words([word]), mask).letters for word in ("cab", "cat"))
    for (keys, values), (other_keys, other_values) in zip(one, other, strict=True):
        torch.testing.assert_close(keys[..., :2, :], other_keys[..., :2, :], rtol=0, atol=0)
        torch.testing.assert_close(values[..., :2, :], other_values[..., :2, :], rtol=0, atol=0)
        assert not torch.allclose(keys[..., 2, :], other_keys[..., 2, :])


def test_a_mask_between_letters_is_each_words_own_and_padding_stays_hidden():
    model, (letters, lengths) = make(), encode_words(WORDS)
    mask = torch.ones(4, 9, 9, dtype=torch.bool)
    everything = model.pronounce(letters, lengths, mask, max_len=6)
    for ours, plain in zip(everything, model.pronounce(letters, lengths, max_len=6), strict=True):
        assert torch.equal(ours, plain)
    mask[2, 0, 1:] = False
    hidden, cache = model.encode(letters, lengths, mask), model.encode(letters, lengths)
    assert torch.equal(hidden.mask, cache.mask)
    (keys, _), (plain, _) = hidden.letters[0], cache.letters[0]
    same = torch.isclose(keys, plain, rtol=0, atol=0).all(dim=-1).all(dim=1)  # (B, L)
    assert same[[0, 1, 3]].all()
    assert not same[2].any()  # two layers: the change has reached every letter


def test_the_order_of_the_letters_matters():
    """Without positions, anagrams would give the same states in another order."""
    model = make()
    one, other = (
        model(*encode_words([word]), framed(torch.tensor([[5]]))) for word in ("ab", "ba")
    )
    assert not torch.allclose(one, other)


@each_number_of_heads
def test_keeping_keys_and_values_changes_nothing(num_heads):
    model, (letters, lengths) = make(num_heads), encode_words(WORDS)
    phonemes = framed(torch.randint(3, NUM_PHONEMES, (4, 6)))
    at_once, _ = model.decode(phonemes, model.encode(letters, lengths))
    cache, steps = model.encode(letters, lengths), []
    for index, column in enumerate(phonemes.split(1, dim=1)):
        assert cache.length == index
        steps.append(model.decode(column, cache)[0])
    torch.testing.assert_close(torch.cat(steps, dim=1), at_once, rtol=1e-10, atol=1e-12)


def test_greedy_decoding_picks_the_best_under_teacher_forcing():
    model, (letters, lengths) = make(), encode_words(WORDS)
    with torch.no_grad():
        model.to_logits.bias[END] += 1  # so that some words end before max_len
    phonemes, _ = model.pronounce(letters, lengths, max_len=6)
    logits = model(letters, lengths, torch.cat([framed(phonemes), phonemes[:, :1]], dim=1))
    logits = logits[:, : phonemes.shape[1]]
    logits[..., [PAD, START]] = -torch.inf
    written = phonemes != PAD
    assert torch.equal(logits.argmax(-1)[written], phonemes[written])
    for row in phonemes.tolist():
        ended = END in row
        assert ended or len(row) == 6
        assert all(phoneme == PAD for phoneme in row[row.index(END) + 1 :]) if ended else True


def test_padding_changes_no_pronunciation():
    model = make()
    phonemes, weights = model.pronounce(*encode_words(WORDS), max_len=8)
    assert weights.shape == (4, phonemes.shape[1], 9)
    torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights[..., 0]))
    for index, word in enumerate(WORDS):
        (alone,), weights_alone = model.pronounce(*encode_words([word]), max_len=8)
        assert phonemes[index, : len(alone)].tolist() == alone.tolist()
        t, length = weights_alone.shape[1:]
        torch.testing.assert_close(weights[index, :t, :length], weights_alone[0])
        assert (weights[index, :, length:] == 0).all()


@each_number_of_heads
def test_weights_of_every_layer_and_head(num_heads):
    model, (letters, lengths) = make(num_heads), encode_words(WORDS)
    phonemes, alignment = model.pronounce(letters, lengths, max_len=5)
    seen = model.weights(letters, lengths, framed(phonemes)[:, :-1])
    assert seen.encoder.shape == (2, 4, num_heads, 9, 9)
    assert seen.decoder.shape == (2, 4, num_heads, 5, 5)
    assert seen.cross.shape == (2, 4, num_heads, 5, 9)
    for weights in (seen.encoder, seen.decoder, seen.cross):
        torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights[..., 0]))
    assert (seen.decoder.triu(1) == 0).all()
    torch.testing.assert_close(seen.cross.mean(dim=(0, 2)), alignment)


def test_the_number_of_heads_changes_no_number_of_parameters():
    sizes = {sum(p.numel() for p in make(heads).parameters()) for heads in (1, 2, 4, 8)}
    assert len(sizes) == 1


def test_dropout_in_training_only():
    model, inputs = make(dropout=0.5), (*encode_words(WORDS), encode_pronunciations(PHONEMES))
    assert torch.equal(model(*inputs), model(*inputs))
    model.train()
    assert not torch.equal(model(*inputs), model(*inputs))


def test_every_parameter_learns():
    model = make().train()
    model(*encode_words(WORDS), encode_pronunciations(PHONEMES)).square().sum().backward()
    for name, parameter in model.named_parameters():
        # A key's bias adds the same to all scores of a query, and the softmax cancels it.
        assert "key_projection.bias" in name or parameter.grad.abs().max() > 1e-12, name


def test_it_learns_two_words():
    model = make(d_model=16).train()
    inputs, phonemes = encode_words(WORDS[:2]), encode_pronunciations(PHONEMES[:2])
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(60):
        optimizer.zero_grad()
        logits = model(*inputs, phonemes)
        loss = torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), phonemes[:, 1:].flatten(), ignore_index=PAD
        )
        loss.backward()
        optimizer.step()
    written, _ = model.eval().pronounce(*inputs)
    assert torch.equal(written, phonemes[:, 1:])


class TorchAttention(nn.Module):
    """nn.MultiheadAttention where the model expects ours; keys and values are kept as they come."""

    def __init__(self, d_model, num_heads):
        super().__init__()
        self.module = nn.MultiheadAttention(d_model, num_heads, batch_first=True)

    def project(self, key, value):
        return key, value

    def attend(self, query, keys, values, *, mask=None, is_causal=False, need_weights=True):
        if is_causal:
            mask = causal_mask(query.shape[1], keys.shape[1])
        sizes = {"batch_size": len(query), "q_len": query.shape[1]}
        hidden = to_torch_attn_mask(mask, num_heads=self.module.num_heads, **sizes)
        return self.module(
            query,
            keys,
            values,
            attn_mask=hidden,
            average_attn_weights=False,
            need_weights=need_weights,
        )

    def forward(self, query, key, value, **options):
        return self.attend(query, *self.project(key, value), **options)


def replace_attention(model, kind, make):
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, kind):
                setattr(parent, name, make(child))


def test_a_model_trained_with_torchs_attention_says_the_same_words_with_ours():
    words = {"cab": "K AE B", "bad": "B AE D", "dad": "D AE D", "beds": "B EH D Z", "a": "AH"}
    words = {word: tuple(phonemes.split()) for word, phonemes in words.items()}
    model = make(num_heads=2, d_model=16).float()
    replace_attention(model, MultiHeadAttention, lambda ours: TorchAttention(ours.d_model, 2))
    for _ in training_steps(model, list(words.items()), steps=80, learning_rate=0.02):
        pass
    expected = predict(model, [*words, "abed"])
    assert {word: expected[word] for word in words} == words
    before = model(*encode_words(WORDS), encode_pronunciations(PHONEMES))
    replace_attention(
        model, TorchAttention, lambda theirs: MultiHeadAttention.from_torch(theirs.module)
    )
    assert predict(model, [*words, "abed"]) == expected
    after = model(*encode_words(WORDS), encode_pronunciations(PHONEMES))
    torch.testing.assert_close(after, before, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["num_heads", "d_model", "num_layers", "d_feedforward"])
def test_sizes_must_be_positive_integers(name):
    with pytest.raises(ValueError, match=f"{name} must be at least 1, got 0"):
        TransformerG2P(**{"num_heads": 2, name: 0})
    with pytest.raises(TypeError, match=f"{name} must be an integer, got float"):
        TransformerG2P(**{"num_heads": 2, name: 2.0})


def test_wrong_options_are_refused():
    with pytest.raises(ValueError, match="num_heads must divide d_model = 128, got 3"):
        TransformerG2P(3)
    with pytest.raises(ValueError, match=r"dropout must be in \[0, 1\)"):
        TransformerG2P(2, dropout=1.0)
    with pytest.raises(ValueError, match="max_len must be at least 1, got 0"):
        make().pronounce(*encode_words(["a"]), max_len=0)


@pytest.mark.parametrize(
    ("mask", "error", "message"),
    [
        (torch.ones(3, 3), TypeError, "mask must be boolean"),
        (torch.ones(4, 4).bool(), ValueError, "mask must broadcast"),
        (torch.ones(2, 2, 3, 3).bool(), ValueError, "mask must broadcast"),
    ],
)
def test_an_encoders_mask_is_checked(mask, error, message):
    model = TransformerG2P(2, d_model=4, num_layers=1, d_feedforward=4)
    with pytest.raises(error, match=message):
        model.pronounce(*encode_words(["cab", "a"]), mask)


def test_an_encoders_mask_may_be_of_integers():
    torch.manual_seed(0)
    model = TransformerG2P(2, d_model=4, num_layers=1, d_feedforward=4).eval()
    batch, twos = encode_words(["cab", "a"]), torch.full((3, 3), 2).tril()
    one, other = (model.encode(*batch, mask).letters[0][0] for mask in (twos, twos.bool()))
    assert torch.equal(one, other)
