"""The models that come with the package are as good as results.json says."""

import json

import pytest
import torch

from companion.g2p.evaluation import RESULTS, evaluate, predict, record
from companion.g2p.lexicon import load_lexicon
from companion.g2p.model_files import CHECKPOINTS, load_model, read_facts, save_model
from companion.g2p.recipes import RECIPES

TRAINED = json.loads(RESULTS.read_text("utf-8")) if RESULTS.exists() else {}
each_model = pytest.mark.parametrize("name", TRAINED)


def assert_scores_agree(actual, expected):
    """Rates to a tenth of a percent: a few words are decided by the last digits of float32."""
    assert actual.keys() == expected.keys()
    for group, rates in expected.items():
        if isinstance(rates, dict):
            assert_scores_agree(actual[group], rates)
        elif isinstance(rates, float):
            assert actual[group] == pytest.approx(rates, abs=1e-3), group
        else:
            assert actual[group] == rates, group


@pytest.mark.slow  # about 20 s a model; a minute more with a beam search
@each_model
def test_evaluating_again_gives_the_recorded_results(name):
    beams = TRAINED[name].get("test_beam_search", {}).get("beams", 1)
    assert_scores_agree(evaluate(name, beams=beams), TRAINED[name])


@each_model
def test_a_checkpoint_knows_how_it_was_trained(name):
    facts = read_facts(name)
    assert TRAINED[name].items() >= facts.items()
    train = "python -m companion.g2p train {name} --steps {steps} --seed {seed}"
    assert facts["command"] == train.format(**facts)


@each_model
def test_a_checkpoint_pronounces_the_books_word(name):
    words = {word: load_lexicon()[word] for word in ("attention", "cab", "reading")}
    for word, prediction in predict(load_model(name), words).items():
        assert prediction in words[word]


@each_model
def test_float64_decides_as_float32_does(name):
    words = list(load_lexicon())[:: len(load_lexicon()) // 100]
    assert predict(load_model(name), words) == predict(load_model(name, dtype=torch.float64), words)


def test_checkpoints_and_results_are_the_same_models():
    files = {path.stem for path in CHECKPOINTS.glob("*.safetensors")}
    assert files == set(TRAINED)
    assert files <= set(RECIPES)


def test_checkpoints_are_small_enough_to_install():
    for path in CHECKPOINTS.glob("*.safetensors"):
        assert path.stat().st_size < 5e6, path


def test_a_recorded_evaluation_is_found_again(tmp_path, monkeypatch):
    """The loop above, on a model that is not trained and a dictionary of two words."""
    lexicon = {"abducted": (("AE", "B"),), "abated": (("AH", "B"), ("B",))}
    monkeypatch.setattr("companion.g2p.evaluation.load_lexicon", lambda: lexicon)
    torch.manual_seed(0)
    facts = {"name": "recurrent", "command": "", "seed": 0, "steps": 0, "wall_minutes": 0.0}
    path = save_model(RECIPES["recurrent"].build(), tmp_path / "recurrent.safetensors", facts)
    record(evaluate(path), tmp_path / "results.json")
    recorded = json.loads((tmp_path / "results.json").read_text("utf-8"))
    assert_scores_agree(evaluate(path), recorded["recurrent"])
    assert recorded["recurrent"]["test"]["words"] == 2
    recorded["recurrent"]["test"]["word_error_rate"] -= 0.01
    with pytest.raises(AssertionError):
        assert_scores_agree(evaluate(path), recorded["recurrent"])
