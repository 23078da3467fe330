"""Training: repeatable, resumable, and kept in a file that is whole or absent."""

import copy
import json
import math

import pytest
import torch
from safetensors.torch import load_file, save_file

from companion import AdditiveAttention
from companion.g2p import evaluation, model_files, recipes, training
from companion.g2p.evaluation import evaluate, predict, record
from companion.g2p.lexicon import split_of
from companion.g2p.model_files import load_model, read_facts, save_model
from companion.g2p.models import RecurrentG2P
from companion.g2p.recipes import Recipe, recipe
from companion.g2p.training import train, training_pairs, training_steps

LEXICON = {
    "a": (("AH",), ("EY",)),
    "cab": (("K", "AE", "B"),),
    "bad": (("B", "AE", "D"),),
    "dad": (("D", "AE", "D"),),
    "phoneme": (("F", "OW", "N", "IY", "M"),),
    "abducted": (("AE", "B", "D", "AH", "K", "T", "IH", "D"),),
}
FACTS = {"name": "tiny", "command": "train tiny", "seed": 0, "steps": 3, "wall_minutes": 0.1}


def build():
    return RecurrentG2P(AdditiveAttention(4, 4, 3), d_model=4, embedding_dim=3, dropout=0.2)


def tiny(seed=0):
    torch.manual_seed(seed)
    return build()


def same_weights(one, other):
    return all(torch.equal(a, b) for a, b in zip(one.values(), other.values(), strict=True))


@pytest.fixture(autouse=True)
def _small_world(monkeypatch):
    """A model called "tiny" and a dictionary of six words, in place of the real ones."""
    monkeypatch.setitem(recipes.RECIPES, "tiny", Recipe("Tiny", 2, build))
    for module in (training, evaluation):
        monkeypatch.setattr(module, "load_lexicon", lambda: LEXICON)


# The data


def test_pairs_are_every_pronunciation_of_the_training_words():
    assert [word for word in LEXICON if split_of(word) == "train"] == ["a", "cab", "bad", "dad"]
    assert training_pairs(LEXICON) == [
        ("a", ("AH",)),
        ("a", ("EY",)),
        ("bad", ("B", "AE", "D")),
        ("cab", ("K", "AE", "B")),
        ("dad", ("D", "AE", "D")),
    ]


# The steps


PAIRS = training_pairs(LEXICON)


def losses_of(model, **options):
    return list(training_steps(model, PAIRS, **{"steps": 6, "batch_size": 2, **options}))


def test_a_seed_fixes_the_run():
    models = [tiny() for _ in range(3)]
    losses = [losses_of(m, seed=s) for m, s in zip(models, (1, 1, 2), strict=True)]
    assert len(losses[0]) == 6
    assert losses[0] == losses[1] != losses[2]
    assert same_weights(models[0].state_dict(), models[1].state_dict())
    assert not same_weights(models[0].state_dict(), models[2].state_dict())


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_training_teaches(dtype):
    torch.manual_seed(0)
    model = RecurrentG2P(AdditiveAttention(16, 16, 8), d_model=16, embedding_dim=8)
    losses = losses_of(
        model, steps=120, batch_size=5, learning_rate=0.02, label_smoothing=0.0, dtype=dtype
    )
    assert losses[0] > 3
    assert losses[-1] < 0.5
    words = {"cab": "K AE B", "bad": "B AE D", "dad": "D AE D"}
    assert predict(model, words) == {word: tuple(p.split()) for word, p in words.items()}


def test_the_loss_is_that_of_guessing_at_first_and_leaves_padding_out():
    model = tiny()
    with torch.no_grad():
        for parameter in model.to_logits.parameters():
            parameter.zero_()
        model.to_logits.bias[0] = -1000  # padding, which the model never has to write
    (loss,) = losses_of(model, steps=1, batch_size=5, label_smoothing=0.0)
    assert loss == pytest.approx(math.log(41), abs=1e-4)


def test_arithmetic_in_16_bits_leaves_the_weights_as_they_are():
    """A change of a millionth of a weight would be lost if the weights themselves had 16 bits."""
    model, half = tiny(), tiny()
    exact = losses_of(model, learning_rate=1e-6)
    assert losses_of(half, learning_rate=1e-6, dtype=torch.bfloat16) == pytest.approx(
        exact, rel=0.1
    )
    moved = [
        (after - before).abs().max() > 0
        for before, after in zip(tiny().parameters(), half.parameters(), strict=True)
    ]
    assert all(moved)
    assert {p.dtype for p in half.parameters()} == {torch.float32}
    assert not half.training


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_a_model_in_double_precision_stays_so(dtype):
    model = tiny().double()
    losses_of(model, dtype=dtype)
    assert {p.dtype for p in model.parameters()} == {torch.float64}


def test_the_learning_rate_rises_and_falls_to_0(monkeypatch):
    monkeypatch.setattr(training, "WARMUP_STEPS", 2)
    state = {}
    run = training_steps(tiny(), PAIRS, steps=6, learning_rate=0.06, state=state)
    rates = [state["optimizer"]["param_groups"][0]["lr"] for _ in run]
    assert rates == pytest.approx([0.03, 0.05, 0.04, 0.03, 0.02, 0.01])


def test_gradients_are_clipped():
    model = tiny()
    with torch.no_grad():
        model.to_logits.weight.mul_(1000)
    next(training_steps(model, PAIRS, steps=1))
    norm = sum(p.grad.square().sum() for p in model.parameters() if p.grad is not None).sqrt()
    assert norm == pytest.approx(1.0, abs=1e-3)


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
@pytest.mark.parametrize("stop", [1, 3, 4])  # an epoch has 3 batches
def test_a_stopped_run_goes_on_exactly(stop, dtype):
    whole, state = tiny(), {}
    expected = losses_of(whole, dtype=dtype)

    stopped = tiny()
    run = training_steps(stopped, PAIRS, steps=6, batch_size=2, dtype=dtype, state=state)
    before = [next(run) for _ in range(stop)]
    weights, state = copy.deepcopy(stopped.state_dict()), copy.deepcopy(state)
    assert state["step"] == stop
    run.close()

    torch.manual_seed(999)
    resumed = tiny(seed=5)
    resumed.load_state_dict(weights)
    after = losses_of(resumed, dtype=dtype, state=state)
    assert before + after == expected
    assert same_weights(resumed.state_dict(), whole.state_dict())


def test_an_epoch_shows_every_pair_once():
    seen = []

    class Watched(RecurrentG2P):
        def forward(self, letters, lengths, phonemes):
            seen.extend(tuple(row[row > 2].tolist()) for row in phonemes)
            return super().forward(letters, lengths, phonemes)

    model = Watched(d_model=4, embedding_dim=3)
    losses_of(model, steps=3)
    assert len(seen) == len(set(seen)) == len(PAIRS)


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_the_model_trains_in_training_mode_and_ends_ready(dtype):
    modes = []

    class Watched(RecurrentG2P):
        def forward(self, letters, lengths, phonemes):
            modes.append(self.training)
            return super().forward(letters, lengths, phonemes)

    model = Watched(d_model=4, embedding_dim=3).eval()
    losses_of(model, steps=2, dtype=dtype)
    assert modes == [True, True]
    assert not model.training


@pytest.mark.parametrize("name", ["steps", "batch_size"])
def test_steps_refuse_wrong_sizes(name):
    with pytest.raises(ValueError, match=f"{name} must be at least 1, got 0"):
        losses_of(tiny(), **{name: 0})


def test_steps_refuse_to_learn_from_nothing():
    with pytest.raises(ValueError, match=r"at least one \(word, pronunciation\) pair, got none"):
        next(training_steps(tiny(), [], steps=1))


# Predictions


def test_predictions_do_not_depend_on_the_batch():
    model, words = tiny().double().eval(), ["dad", "phoneme", "a", "abducted", "cab"]
    whole = predict(model, words)
    assert list(whole) == words
    assert predict(model, words, batch_size=2) == predict(model, words, batch_size=1) == whole


def test_predict_refuses_words_that_cannot_be_read():
    with pytest.raises(ValueError, match="cannot read 'x2'"):
        predict(tiny(), ["cab", "x2"])
    with pytest.raises(ValueError, match="at least one word, got none"):
        predict(tiny(), [])
    with pytest.raises(ValueError, match="batch_size must be at least 1, got -1"):
        predict(tiny(), ["cab"], batch_size=-1)


# Files


def test_a_checkpoint_comes_back_in_half_precision(tmp_path):
    model, path = tiny(), tmp_path / "tiny.safetensors"
    assert save_model(model, path, FACTS) == path
    assert read_facts(path) == FACTS
    for dtype in (torch.float32, torch.float64):
        loaded = load_model(path, dtype=dtype)
        assert not loaded.training
        for name, tensor in loaded.state_dict().items():
            assert torch.equal(tensor, model.state_dict()[name].half().to(dtype))
    assert path.stat().st_size < 2 * sum(p.numel() for p in model.parameters()) + 3000
    assert [file.name for file in tmp_path.iterdir()] == ["tiny.safetensors"]


def test_a_write_that_fails_leaves_the_old_file(tmp_path, monkeypatch):
    path = save_model(tiny(), tmp_path / "tiny.safetensors", FACTS)
    old = path.read_bytes()

    def fails(weights, target, metadata):
        target.write_bytes(b"half of it")
        raise OSError("disk full")

    monkeypatch.setattr(model_files, "save_file", fails)
    with pytest.raises(OSError, match="disk full"):
        save_model(tiny(seed=1), path, FACTS)
    assert path.read_bytes() == old


def test_a_file_that_is_no_checkpoint_is_refused(tmp_path):
    path = tmp_path / "other.safetensors"
    with pytest.raises(FileNotFoundError, match=r"there is no checkpoint .*other\.safetensors"):
        load_model(path)
    path.write_text("not a checkpoint")
    with pytest.raises(ValueError, match=r"other\.safetensors is not a checkpoint of this package"):
        load_model(path)
    save_file({"w": torch.zeros(2)}, path)
    with pytest.raises(ValueError, match=r"other\.safetensors is not a checkpoint of this package"):
        load_model(path)


@pytest.mark.parametrize("facts", ["{", "[]", "{}", '{"name": "tiny"}'])
def test_a_checkpoint_that_lacks_something_is_refused(tmp_path, facts):
    path = tmp_path / "other.safetensors"
    save_file({"w": torch.zeros(2)}, path, metadata={"facts": facts})
    with pytest.raises(ValueError, match=r"other\.safetensors is not a checkpoint of this package"):
        load_model(path)


def test_a_checkpoint_of_an_unknown_model_is_refused(tmp_path):
    path = save_model(tiny(), tmp_path / "x.safetensors", {**FACTS, "name": "elsewhere"})
    with pytest.raises(ValueError, match="no model is called 'elsewhere'"):
        load_model(path)


@pytest.mark.parametrize("use", [load_model, read_facts, recipe, evaluate])
def test_an_unknown_name_lists_the_known_ones(use):
    with pytest.raises(ValueError, match=r"no model is called 'addtive'; there are .*additive"):
        use("addtive")


# Evaluation


def test_evaluate_counts_words_by_length(tmp_path):
    path = save_model(tiny(), tmp_path / "tiny.safetensors", FACTS)
    result = evaluate(path, split="train")
    assert result.items() >= {**FACTS, "label": "Tiny", "chapter": 2}.items()
    assert result["parameters"] == sum(p.numel() for p in build().parameters())
    assert result["train"]["words"] == 4
    assert {group: r["words"] for group, r in result["train_by_length"].items()} == {"1-4": 4}
    json.dumps(result)


def test_evaluate_refuses_an_unknown_split(tmp_path):
    path = save_model(tiny(), tmp_path / "tiny.safetensors", FACTS)
    with pytest.raises(ValueError, match="split must be one of train, valid, test, got 'dev'"):
        evaluate(path, split="dev")


def test_record_replaces_one_entry_and_keeps_the_recipes_order(tmp_path):
    path = tmp_path / "results.json"
    for name, steps in (("tiny", 1), ("additive", 5), ("tiny", 2)):
        record({"name": name, "steps": steps}, path)
    results = json.loads(path.read_text())
    assert [(name, result["steps"]) for name, result in results.items()] == [
        ("additive", 5),
        ("tiny", 2),
    ]
    assert [file.name for file in tmp_path.iterdir()] == ["results.json"]


# Whole runs


def interrupt_at(monkeypatch, number):
    """Let Ctrl-C come at the start of a step, counted from 0."""
    forward, calls = RecurrentG2P.forward, iter(range(100))

    def interrupted(self, *arguments):
        if next(calls) == number:
            raise KeyboardInterrupt
        return forward(self, *arguments)

    monkeypatch.setattr(RecurrentG2P, "forward", interrupted)
    return lambda: monkeypatch.setattr(RecurrentG2P, "forward", forward)


def test_train_writes_a_checkpoint_with_its_facts(tmp_path):
    path = train("tiny", steps=3, seed=5, folder=tmp_path / "new" / "folder")
    assert path == tmp_path / "new" / "folder" / "tiny.safetensors"
    facts = read_facts(path)
    command = "python -m companion.g2p train tiny --steps 3 --seed 5"
    assert facts.items() >= {"name": "tiny", "command": command, "seed": 5, "steps": 3}.items()
    assert set(predict(load_model(path), ["cab"])) == {"cab"}


def test_ctrl_c_keeps_the_run_and_resume_finishes_it_exactly(tmp_path, monkeypatch):
    whole = train("tiny", steps=6, seed=5, folder=tmp_path / "whole")
    undo = interrupt_at(monkeypatch, 4)
    with pytest.raises(KeyboardInterrupt):
        train("tiny", steps=6, seed=5, folder=tmp_path / "stopped")
    undo()
    assert read_facts(tmp_path / "stopped" / "tiny.safetensors")["steps"] == 4
    assert not list((tmp_path / "stopped").glob("*.part"))

    resumed = train("tiny", steps=6, seed=5, folder=tmp_path / "stopped", resume=True)
    assert read_facts(resumed)["steps"] == 6
    assert same_weights(load_file(resumed), load_file(whole))
    states = [torch.load(p.with_name("tiny.state.pt"), weights_only=True) for p in (resumed, whole)]
    assert same_weights(states[0]["model"], states[1]["model"])


def test_resume_refuses_another_run(tmp_path):
    with pytest.raises(
        FileNotFoundError, match=r"nothing to resume: there is no .*tiny\.state\.pt"
    ):
        train("tiny", steps=3, seed=0, folder=tmp_path, resume=True)
    train("tiny", steps=3, seed=0, folder=tmp_path)
    for steps, seed in ((4, 0), (3, 1)):
        with pytest.raises(ValueError, match=f"has --steps 3 --seed 0, got --steps {steps} --seed"):
            train("tiny", steps=steps, seed=seed, folder=tmp_path, resume=True)


def test_train_refuses_an_unknown_name(tmp_path):
    with pytest.raises(ValueError, match="no model is called 'huge'; there are"):
        train("huge", steps=1, seed=0, folder=tmp_path)
    assert not list(tmp_path.iterdir())


def test_recipes_build_what_their_label_says():
    assert recipe("recurrent").build().attention is None
    assert isinstance(recipe("additive").build().attention, AdditiveAttention)
    assert recipe("additive").build().encoder.bidirectional
    assert not recipe("additive_unidirectional").build().encoder.bidirectional


def test_with_and_without_attention_are_of_one_size():
    without, with_attention = (
        sum(p.numel() for p in recipe(name).build().parameters())
        for name in ("recurrent", "additive")
    )
    assert without == pytest.approx(with_attention, rel=0.02)


def test_a_broken_state_is_no_run(tmp_path):
    (tmp_path / "tiny.state.pt").write_bytes(b"broken")
    with pytest.raises(ValueError, match="is no run of this model"):
        train("tiny", steps=2, seed=0, folder=tmp_path, resume=True)


def test_a_path_without_its_ending_is_refused():
    with pytest.raises(ValueError, match=r"must end in .safetensors, got runs/tiny"):
        load_model("runs/tiny")
