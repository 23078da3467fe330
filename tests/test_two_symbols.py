"""Two symbols at once: the task that asks one position to look at two places."""

import pytest
import torch

from companion import without_heads
from companion.two_symbols import TwoSymbols, draw_symbols, name_both, train_two_symbols


def symbols(batch_size=4):
    return draw_symbols(batch_size, torch.Generator().manual_seed(0))


@pytest.mark.parametrize("num_heads", [2, 4])
def test_heads_cost_no_parameters(num_heads):
    one, more = (sum(p.numel() for p in TwoSymbols(h).parameters()) for h in (1, num_heads))
    assert one == more


def test_an_answer_depends_on_no_later_symbol():
    model, before = TwoSymbols(2), symbols()
    after = before.clone()
    after[:, 5:] = (after[:, 5:] + 1) % 12
    logits = [model(sequence)[0] for sequence in (before, after)]
    torch.testing.assert_close(logits[0][:, :2], logits[1][:, :2])  # positions 3 and 4
    assert not torch.allclose(logits[0][:, 2:], logits[1][:, 2:])


def test_the_answers_are_the_symbols_one_and_three_places_back():
    class Right(TwoSymbols):
        def forward(self, symbols):
            answers = [[[row[i - 1], row[i - 3]] for i in range(3, 8)] for row in symbols.tolist()]
            return torch.nn.functional.one_hot(torch.tensor(answers), 12).double(), None

    assert name_both(Right(1)) == (1.0, 1.0, 1.0)


def test_without_training_it_guesses():
    assert all(share < 0.2 for share in name_both(TwoSymbols(2).double()))


def test_each_of_two_heads_learns_a_symbol():
    model = train_two_symbols(2, seed=0, steps=200)
    assert name_both(model)[2] > 0.95
    for head in range(2):
        with without_heads(model.attention, [head]):
            near, far, _ = name_both(model)
            assert max(near, far) > 0.95
            assert min(near, far) < 0.3


def test_the_seed_decides():
    one, same, other = (train_two_symbols(1, seed=seed, steps=3) for seed in (0, 0, 1))
    assert torch.equal(one.embedding.weight, same.embedding.weight)
    assert not torch.equal(one.embedding.weight, other.embedding.weight)


def test_training_leaves_the_global_generator_alone():
    torch.manual_seed(5)
    before = torch.get_rng_state()
    train_two_symbols(1, seed=0, steps=1)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_heads": 3}, "num_heads must divide"),
        ({"num_heads": 1, "hidden": 0}, "hidden must be at least 1"),
    ],
)
def test_odd_sizes_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        TwoSymbols(**options)


def test_steps_must_be_positive():
    with pytest.raises(ValueError, match="steps must be at least 1"):
        train_two_symbols(1, seed=0, steps=0)
