"""Associative recall: the smallest task that needs attention."""

import pytest
import torch

from companion import AdditiveAttention
from companion.recall import (
    FixedWeights,
    RecallModel,
    recall_accuracy,
    recall_batch,
    run_recall,
    train_recall,
)
from tests.properties import make_problem


def batch_of(size, seed=0):
    return recall_batch(size, torch.Generator().manual_seed(seed))


def fixed(looks):
    torch.manual_seed(0)
    module = FixedWeights(looks, num_keys=4, query_dim=5).double()
    if looks != "nowhere":
        torch.nn.init.normal_(module.per_position)
    return module


# The task


def test_each_key_appears_once():
    keys, values = batch_of(50).items.split(8, dim=-1)
    assert (keys.sum(1) == 1).all()
    assert (keys.sum(2) == 1).all()
    assert (values.sum(2) == 1).all()


def test_the_answer_is_the_value_beside_the_asked_key():
    batch = batch_of(200)
    for query, items, answer in zip(batch.query, batch.items, batch.answer, strict=True):
        (row,) = [item for item in items if torch.equal(item[:8], query[0])]
        assert row[8:].argmax() == answer


def test_keys_positions_and_answers_are_drawn_evenly():
    batch = batch_of(8000)
    first_key, asked_key = batch.items[:, 0, :8].argmax(-1), batch.query[:, 0].argmax(-1)
    position = (batch.items[..., :8] * batch.query).sum(-1).argmax(-1)
    for drawn in (first_key, asked_key, position, batch.answer):
        assert (drawn.bincount(minlength=8) - 1000).abs().max() < 150  # 5 standard deviations


def test_a_seed_fixes_the_batch():
    first, same, other = batch_of(20), batch_of(20), batch_of(20, seed=1)
    assert torch.equal(first.items, same.items)
    assert torch.equal(first.answer, same.answer)
    assert not torch.equal(first.items, other.items)


@pytest.mark.parametrize(("size", "error"), [(0, ValueError), (2.0, TypeError)])
def test_batch_refuses_wrong_sizes(size, error):
    with pytest.raises(error, match="batch_size must be "):
        batch_of(size)


# Fixed weights


@pytest.mark.parametrize("looks", ["nowhere", "position", "query"])
def test_fixed_weights_never_look_at_keys_or_values(looks):
    module, problem, other = fixed(looks), make_problem(), make_problem(seed=1)
    _, weights = module(problem.query, problem.key, problem.value)
    _, weights_after = module(problem.query, other.key, other.value)
    assert torch.equal(weights, weights_after)


def test_fixed_weights_look_at_the_query_when_they_may():
    problem = make_problem()
    for looks, differ in (("nowhere", False), ("position", False), ("query", True)):
        _, weights = problem.apply(fixed(looks))
        assert torch.equal(weights, weights[:1, :1].expand_as(weights)) != differ
    _, equal = problem.apply(fixed("nowhere"))
    assert (equal == 0.25).all()


def test_what_looks_nowhere_learns_nothing():
    assert not any(parameter.requires_grad for parameter in fixed("nowhere").parameters())
    assert fixed("position").per_position.requires_grad


def test_fixed_weights_refuse_wrong_arguments():
    with pytest.raises(ValueError, match="one of nowhere, position, query, got 'key'"):
        FixedWeights("key", num_keys=4, query_dim=5)
    with pytest.raises(ValueError, match="num_keys must be at least 1, got 0"):
        FixedWeights("query", num_keys=0, query_dim=5)
    problem = make_problem(l_k=3)
    with pytest.raises(ValueError, match="key must have 4 positions, got 3"):
        problem.apply(fixed("position"))


# Models that learn the task


def model_with(attention):
    torch.manual_seed(0)
    return RecallModel(attention()).double()


def test_model_returns_logits_and_weights_over_the_items():
    batch = batch_of(5)
    logits, weights = model_with(lambda: AdditiveAttention(40, 24, 16))(batch.query, batch.items)
    assert logits.shape == (5, 8)
    torch.testing.assert_close(weights.sum(-1), torch.ones(5).double())


def test_attention_learns_to_recall():
    model = model_with(lambda: AdditiveAttention(40, 24, 16))
    losses = train_recall(model, steps=300)
    assert losses[0] == pytest.approx(2.08, abs=0.3)  # ln 8: guessing
    assert len(losses) == 300
    assert recall_accuracy(model, problems=1000) > 0.95


def test_equal_weights_have_a_ceiling():
    # The sum says how often each value occurs, not where: the best guess is the commonest.
    counts = batch_of(4000, seed=1).items[..., 8:].sum(1)
    ceiling = (counts.max(-1).values / 8).mean().item()
    model = model_with(lambda: FixedWeights("nowhere", num_keys=8, query_dim=40))
    train_recall(model, steps=150)
    assert ceiling - 0.15 < recall_accuracy(model) < ceiling + 0.02


def test_training_repeats_with_its_seed():
    losses = [
        train_recall(model_with(lambda: AdditiveAttention(40, 24, 4)), steps=4, seed=seed)
        for seed in (1, 1, 2)
    ]
    assert losses[0] == losses[1] != losses[2]


def test_a_run_repeats_with_its_seed_and_leaves_torchs_alone():
    torch.manual_seed(123)
    before = torch.get_rng_state()
    first, same, other = (
        run_recall(lambda: AdditiveAttention(40, 24, 4), seed=seed, steps=3) for seed in (5, 5, 6)
    )
    assert torch.equal(torch.get_rng_state(), before)
    assert first.losses == same.losses != other.losses
    assert first.accuracy == recall_accuracy(first.model)


def test_features_start_with_unit_variance_where_asked():
    batch = batch_of(500)
    for unit_variance, low, high in ((True, 0.9, 1.1), (False, 0.05, 0.2)):
        run = run_recall(
            lambda: FixedWeights("nowhere", num_keys=8, query_dim=1), seed=0, steps=1,
            query_dim=1000, item_dim=1500, unit_variance=unit_variance,
        )  # fmt: skip
        query, items = run.model.embed_query(batch.query), run.model.embed_item(batch.items)
        assert query.shape[-1] == 1000
        assert items.shape[-1] == 1500
        assert low < query.var().item() < high
        assert low < items.var().item() < high


def test_accuracy_is_measured_on_given_problems():
    model = model_with(lambda: AdditiveAttention(40, 24, 4))
    assert recall_accuracy(model, problems=100) == recall_accuracy(model, problems=100)
    assert 0 < recall_accuracy(model, problems=1000) < 0.3


@pytest.mark.parametrize("name", ["steps", "batch_size"])
def test_training_refuses_wrong_sizes(name):
    model = model_with(lambda: AdditiveAttention(40, 24, 4))
    with pytest.raises(ValueError, match=f"{name} must be at least 1, got 0"):
        train_recall(model, **{name: 0})


@pytest.mark.parametrize("name", ["query_dim", "item_dim"])
def test_model_refuses_wrong_sizes(name):
    with pytest.raises(ValueError, match=f"{name} must be at least 1, got 0"):
        RecallModel(AdditiveAttention(40, 24, 4), **{name: 0})
