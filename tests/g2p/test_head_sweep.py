"""The sweep over numbers of heads."""

import json
import math

import pytest

from companion.g2p import head_sweep as module
from companion.g2p.__main__ import main
from companion.g2p.head_sweep import HEADS, SEEDS, SWEEP, head_sweep, read_sweep

LEXICON = {
    "cab": (("K", "AE", "B"),),
    "bad": (("B", "AE", "D"),),
    "python": (("P", "AY", "TH", "AA", "N"),),
    "abducted": (("AE", "B", "D", "AH", "K", "T", "IH", "D"),),
}
TINY = {"steps": 2, "heads": (1, 2), "seeds": (0,), "d_model": 4}


@pytest.fixture(autouse=True)
def four_words(monkeypatch):
    monkeypatch.setattr(module, "load_lexicon", lambda: LEXICON)
    monkeypatch.setattr(module, "select_split", lambda lexicon, split: lexicon)
    monkeypatch.setattr(module, "training_pairs", lambda lexicon: [("cab", ("K", "AE", "B"))])


def test_each_number_of_heads_is_trained_and_recorded(tmp_path):
    path = tmp_path / "new" / "sweep.json"
    runs = head_sweep(path=path, **TINY)
    assert [(run["heads"], run["seed"]) for run in runs] == [(1, 0), (2, 0)]
    assert read_sweep(path) == runs
    assert len({run["parameters"] for run in runs}) == 1
    assert all(0 <= run["word_error_rate"] <= 1 for run in runs)


def test_an_interrupted_sweep_loses_no_run_and_goes_on(tmp_path, monkeypatch):
    path, train, trained = tmp_path / "sweep.json", module._train_one, []

    def interrupted(num_heads, *rest):
        if num_heads == 2 and not trained:
            trained.append("once")
            raise KeyboardInterrupt
        trained.append(num_heads)
        return train(num_heads, *rest)

    monkeypatch.setattr(module, "_train_one", interrupted)
    trained.clear()
    with pytest.raises(KeyboardInterrupt):
        head_sweep(path=path, **{**TINY, "heads": (2,)})
    first = head_sweep(path=path, **{**TINY, "heads": (1,)})
    assert [run["heads"] for run in first] == [1]
    trained.clear()
    trained.append("resumed")
    assert len(head_sweep(path=path, **TINY)) == 2
    assert trained == ["resumed", 2]  # the first run is not repeated


def test_runs_of_another_length_are_not_mixed(tmp_path):
    path = tmp_path / "sweep.json"
    head_sweep(path=path, **TINY)
    with pytest.raises(ValueError, match="have --steps 2, got --steps 3"):
        head_sweep(path=path, **{**TINY, "steps": 3})


def test_steps_must_be_positive(tmp_path):
    with pytest.raises(ValueError, match="steps must be at least 1"):
        head_sweep(path=tmp_path / "sweep.json", steps=0)


def test_the_command_shows_what_is_recorded(tmp_path, capsys):
    path = tmp_path / "sweep.json"
    rates = {"word_error_rate": 0.5, "phoneme_error_rate": 0.25}
    runs = [{"heads": h, "seed": s, "steps": 9, **rates} for h in HEADS for s in SEEDS]
    path.write_text(json.dumps(runs), "utf-8")
    assert main(["sweep", "--steps", "9", "--file", str(path)]) == 0
    out = capsys.readouterr().out.splitlines()
    assert len(out) == 1 + len(runs)
    assert out[-1].split() == ["16", "1", "50.0%", "25.0%"]


def test_the_recorded_sweep_is_complete_and_compares_like_with_like():
    runs = read_sweep(SWEEP)
    assert [(run["heads"], run["seed"]) for run in runs] == [(h, s) for h in HEADS for s in SEEDS]
    assert len({(run["steps"], run["parameters"]) for run in runs}) == 1
    assert all(math.isfinite(run["phoneme_error_rate"]) for run in runs)
