"""The command line, through main([...])."""

import re

import pytest
import torch

from companion import AdditiveAttention
from companion.g2p import evaluation, model_files, training
from companion.g2p.__main__ import alignment_text, main
from companion.g2p.model_files import read_facts, save_model
from companion.g2p.models import RecurrentG2P
from companion.g2p.recipes import RECIPES, Recipe

LEXICON = {
    "cab": (("K", "AE", "B"),),
    "bad": (("B", "AE", "D"),),
    "python": (("P", "AY", "TH", "AA", "N"),),
    "abducted": (("AE", "B", "D", "AH", "K", "T", "IH", "D"),),
}
FACTS = {"command": "train", "seed": 0, "steps": 3, "wall_minutes": 0.1}


def build_tiny():
    return RecurrentG2P(AdditiveAttention(4, 4, 3), d_model=4, embedding_dim=3)


def build_plain():
    return RecurrentG2P(d_model=4, embedding_dim=3)


@pytest.fixture
def checkpoints(tmp_path, monkeypatch):
    """Two tiny models in place of the real ones, and four words."""
    torch.manual_seed(0)
    for name, build in (("tiny", build_tiny), ("plain", build_plain)):
        monkeypatch.setitem(RECIPES, name, Recipe(name.capitalize(), 1, build))
        save_model(build(), tmp_path / f"{name}.safetensors", {"name": name, **FACTS})
    for module in (training, evaluation):
        monkeypatch.setattr(module, "load_lexicon", lambda: LEXICON)
    monkeypatch.setattr(model_files, "CHECKPOINTS", tmp_path)
    return tmp_path


@pytest.fixture
def run(checkpoints, capsys):
    """Run one command; gives (status, stdout, stderr)."""

    def run(*arguments):
        status = main([str(argument) for argument in arguments])
        return status, *capsys.readouterr()

    return run


def test_pronounce_writes_a_line_a_word(run):
    status, out, err = run("pronounce", "cab", "Bad", "--model", "tiny")
    assert (status, err) == (0, "")
    assert re.fullmatch(r"cab  [A-Z ]*\nBad  [A-Z ]*\n", out)


def test_pronounce_takes_a_file(run, checkpoints):
    named = run("pronounce", "cab", "--model", "tiny")
    assert run("pronounce", "cab", "--model", checkpoints / "tiny.safetensors") == named


def test_pronounce_shows_where_each_phoneme_looked(run):
    status, out, _ = run("pronounce", "cab", "--model", "tiny", "--show")
    assert status == 0
    head, letters, *rows = out.splitlines()
    assert letters.split() == ["c", "a", "b"]
    assert [row.split()[0] for row in rows] == head.split()[1:]
    for row in rows:
        assert sum(int(n) for n in row.replace(".", "0").split()[1:]) == pytest.approx(100, abs=2)


def test_alignment_by_hand():
    weights = torch.tensor([[0.904, 0.096, 0.0], [0.0, 1.0, 0.0], [0.5, 0.5, 0.0]])
    assert alignment_text("be", ["B", "IY"], weights).splitlines() == [
        "         b   e",
        "  B     90  10",
        "  IY     . 100",
    ]


def test_evaluate_shows_a_table(run):
    status, out, err = run("evaluate", "tiny")
    assert (status, err) == (0, "")
    title, heads, *rows = out.splitlines()
    parameters = sum(p.numel() for p in build_tiny().parameters())
    assert title == f"Tiny: {parameters:,} parameters, 3 steps"
    assert re.split(r" {2,}", heads) == ["letters", "words", "word errors", "phoneme errors"]
    assert [row.split()[:2] for row in rows] == [["7-8", "1"], ["all", "1"]]
    assert all(re.fullmatch(r"[\d.]+%", rate) for row in rows for rate in row.split()[2:])


def test_evaluate_scores_a_beam_search_too(run):
    status, out, err = run("evaluate", "tiny", "--split", "train", "--beams", 3)
    assert (status, err) == (0, "")
    assert out.splitlines()[-1].startswith(" beam 3")
    assert out.splitlines()[:-1] == run("evaluate", "tiny", "--split", "train")[1].splitlines()


def test_evaluate_takes_a_split(run):
    _, out, _ = run("evaluate", "tiny", "--split", "train")
    assert out.splitlines()[-1].split()[:2] == ["all", "2"]


def test_train_says_what_is_next_and_that_works(run, tmp_path):
    folder = tmp_path / "runs"
    status, out, _ = run("train", "tiny", "--steps", "2", "--seed", "4", "--folder", folder)
    assert status == 0
    path = folder / "tiny.safetensors"
    assert read_facts(path)["seed"] == 4
    next_command = out.partition("next: python -m companion.g2p ")[2].split()
    assert next_command == ["evaluate", str(path)]
    assert run(*next_command)[0] == 0
    assert run("train", "tiny", "--steps", 2, "--seed", 4, "--folder", folder, "--resume")[0] == 0


def test_export_says_what_it_wrote(run, tmp_path):
    status, out, err = run("export", "tiny", "--folder", tmp_path / "site")
    assert (status, err) == (0, "")
    path = tmp_path / "site" / "tiny.js"
    assert out == f"wrote {path}, {path.stat().st_size / 1e6:.2f} MB\n"


def test_ctrl_c_is_no_traceback(run, monkeypatch, tmp_path):
    def interrupt(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(RecurrentG2P, "forward", interrupt)
    status, out, err = run("train", "tiny", "--steps", 2, "--folder", tmp_path / "runs")
    assert (status, out) == (130, "")
    assert err.endswith("\nstopped\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["pronounce", "two words", "--model", "tiny"], "cannot read 'two words'"),
        (["pronounce", "naïve", "--model", "tiny"], "cannot read 'naïve'.*not 'ï'"),
        (["pronounce", "", "--model", "tiny"], "got an empty string"),
        (["pronounce", "cab", "--model", "tinny"], "no model is called 'tinny'; there are"),
        (["pronounce", "cab", "--model", "no.safetensors"], "there is no checkpoint no"),
        (["pronounce", "cab", "--model", "plain", "--show"], "plain has no attention to show"),
        (["evaluate", "tinny"], "no model is called 'tinny'; there are"),
        (["evaluate", "tiny", "--beams", "0"], "beams must be at least 1, got 0"),
        (["evaluate", "no.safetensors"], "there is no checkpoint no"),
        (["export", "tinny"], "no model is called 'tinny'; there are"),
        (["export", "plain", "--folder", "/nowhere"], "plain cannot be exported: the page runs"),
        (["train", "tiny", "--resume", "--folder", "/nowhere"], "nothing to resume: there is no"),
        (["train", "tiny", "--steps", "0", "--folder", "/nowhere"], "steps must be at least 1"),
    ],
)
def test_a_users_error_is_one_line(run, arguments, message):
    status, out, err = run(*arguments)
    assert status == 2
    assert re.fullmatch(f"error: .*{message}.*\n", err)
    assert out == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "huge"], "invalid choice: 'huge'"),
        (["evaluate", "tiny", "--split", "dev"], "invalid choice: 'dev'"),
        (["pronounce"], "required: WORD"),
        ([], "required: COMMAND"),
    ],
)
def test_a_wrong_command_shows_its_usage(run, capsys, arguments, message):
    with pytest.raises(SystemExit) as stop:
        run(*arguments)
    assert stop.value.code == 2
    err = capsys.readouterr().err
    assert err.startswith("usage: python -m companion.g2p")
    assert message in err


def test_a_folder_that_cannot_be_written_is_one_line(run, tmp_path):
    (tmp_path / "file").touch()
    status, _, err = run("train", "tiny", "--steps", 1, "--folder", tmp_path / "file")
    assert status == 2
    assert "error: " in err.splitlines()[-1]
