"""The script that holds a model's weights, read back by other code than what wrote it."""

import json

import numpy as np
import pytest
import torch

from companion import AdditiveAttention, DotProductAttention
from companion.g2p import model_files
from companion.g2p.export import BITS, BLOCK, export_model
from companion.g2p.lexicon import LETTERS, PHONEMES
from companion.g2p.model_files import CHECKPOINTS, load_model, save_model
from companion.g2p.models import RecurrentG2P
from companion.g2p.recipes import RECIPES, Recipe
from companion.g2p.transformer import TransformerG2P

FACTS = {"command": "train", "seed": 0, "steps": 3, "wall_minutes": 0.1}
RECURRENT = {"d_model": 12, "embedding_dim": 5}
MODELS = {
    "additive_tiny": lambda: RecurrentG2P(AdditiveAttention(12, 12, 7), **RECURRENT),
    "heads_tiny": lambda: TransformerG2P(2, d_model=12, num_layers=2, d_feedforward=20),
    "one_way": lambda: RecurrentG2P(AdditiveAttention(12, 12, 7), bidirectional=False, **RECURRENT),
    "dot": lambda: RecurrentG2P(DotProductAttention(), **RECURRENT),
    "plain": lambda: RecurrentG2P(**RECURRENT),
}
exported_ones = pytest.mark.parametrize("name", ["additive_tiny", "heads_tiny"])


@pytest.fixture(autouse=True)
def checkpoints(tmp_path, monkeypatch):
    torch.manual_seed(0)
    for name, build in MODELS.items():
        monkeypatch.setitem(RECIPES, name, Recipe(name.capitalize(), 1, build))
        save_model(build(), tmp_path / f"{name}.safetensors", {"name": name, **FACTS})
    monkeypatch.setattr(model_files, "CHECKPOINTS", tmp_path)
    return tmp_path


def read(path, name):
    """The object that the script sets."""
    text = path.read_text("utf-16")  # by the mark at the start, as a browser reads it
    start = f"(globalThis.companionModels ??= {{}}).{name} = "
    assert text.startswith(start)
    assert text.endswith(";\n")
    return json.loads(text.removeprefix(start).removesuffix(";\n"))


def decode(exported):
    """Every tensor, from one long string of binary digits."""
    digits = "".join(f"{ord(character) - 0x3000:015b}" for character in exported["data"])
    at, found = 0, {}

    def take(width):
        nonlocal at
        at += width
        return int(digits[at - width : at], 2)

    def take_half():
        return float(np.uint16(take(16)).view(np.float16))

    for name, tensor in exported["tensors"].items():
        values = []
        for index in range(int(np.prod(tensor["shape"]))):
            if tensor["exact"]:
                values.append(take_half())
                continue
            if index % exported["block"] == 0:
                largest = take_half()
            values.append(largest * (take(exported["bits"]) - 2048) / 2047)
        found[name] = torch.tensor(values).view(tensor["shape"])
    assert len(digits) - at < 15
    assert set(digits[at:]) <= {"0"}
    return found


@exported_ones
def test_every_weight_is_there(name, tmp_path):
    exported = read(export_model(name, tmp_path), name)
    found, expected = decode(exported), load_model(name).state_dict()
    assert list(found) == list(expected)
    for path, tensor in expected.items():
        if exported["tensors"][path]["exact"]:
            assert torch.equal(found[path], tensor), path
        else:  # half a step of the scale
            error = (found[path] - tensor).abs()
            assert error.max() <= tensor.abs().max() / 2047 / 2 * 1.001, path
            assert error.max() > 0, path


@exported_ones
def test_only_large_matrices_are_rounded(name, tmp_path):
    tensors = read(export_model(name, tmp_path), name)["tensors"]
    for path, tensor in tensors.items():
        is_small = len(tensor["shape"]) == 1 or "embedding" in path or "to_logits" in path
        assert tensor["exact"] == is_small, path


def test_a_block_of_zeros_stays_zero(tmp_path):
    model = MODELS["additive_tiny"]()
    with torch.no_grad():
        model.attention.w_key.zero_()
    path = save_model(model, tmp_path / "zero.safetensors", {"name": "additive_tiny", **FACTS})
    exported = read(export_model(path, tmp_path), "additive_tiny")
    assert not decode(exported)["attention.w_key"].any()


def test_the_script_says_what_the_model_is(tmp_path):
    exported = read(export_model("heads_tiny", tmp_path), "heads_tiny")
    facts = {name: value for name, value in exported.items() if name not in ("data", "tensors")}
    assert facts == {
        "name": "heads_tiny",
        "label": "Heads_tiny",
        "kind": "transformer",
        "num_layers": 2,
        "num_heads": 2,
        "letters": LETTERS,
        "phonemes": list(PHONEMES),
        "bits": BITS,
        "block": BLOCK,
    }
    assert read(export_model("additive_tiny", tmp_path), "additive_tiny")["kind"] == "additive"


@exported_ones
def test_the_same_checkpoint_gives_the_same_bytes(name, tmp_path):
    first = export_model(name, tmp_path / "new" / "folder")
    second = export_model(tmp_path / f"{name}.safetensors", tmp_path / "other")
    assert first.name == second.name == f"{name}.js"
    assert first.read_bytes() == second.read_bytes()
    assert sorted(path.name for path in first.parent.iterdir()) == [first.name]


@pytest.mark.parametrize("name", ["additive", "multi_head"])
def test_a_real_model_is_at_most_2_2_mb(name, tmp_path, monkeypatch):
    if not (CHECKPOINTS / f"{name}.safetensors").exists():
        pytest.skip(f"{name} is not trained yet")
    monkeypatch.setattr(model_files, "CHECKPOINTS", CHECKPOINTS)
    assert export_model(name, tmp_path).stat().st_size <= 2.2e6


@pytest.mark.parametrize("name", ["one_way", "dot", "plain"])
def test_other_models_are_refused(name, tmp_path):
    with pytest.raises(ValueError, match=f"{name} cannot be exported: the page runs a Transformer"):
        export_model(name, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_an_unknown_name_is_refused(tmp_path):
    with pytest.raises(ValueError, match="no model is called 'tinny'; there are"):
        export_model("tinny", tmp_path)


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"there is no checkpoint .*none"):
        export_model(tmp_path / "none.safetensors", tmp_path)


def test_another_file_is_refused(tmp_path):
    path = tmp_path / "other.safetensors"
    path.write_bytes(b"not weights")
    with pytest.raises(ValueError, match="is not a checkpoint of this package"):
        export_model(path, tmp_path)
