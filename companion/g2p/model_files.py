"""Trained models in files: write them whole, and read them back."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from companion.g2p.recipes import G2PModel, recipe

CHECKPOINTS = Path(__file__).parent / "checkpoints"


def replace_file(path: Path, write: Callable[[Path], object]) -> None:
    """Write a file beside its place and move it there, so that no reader sees half of it."""
    unfinished = path.with_name(path.name + ".part")
    write(unfinished)
    unfinished.replace(path)


def save_model(model: G2PModel, path: Path, facts: Mapping[str, Any]) -> Path:
    """Write a model's weights in half precision, with facts about its training as metadata."""
    weights = {name: tensor.half().contiguous() for name, tensor in model.state_dict().items()}
    metadata = {"facts": json.dumps(facts)}
    replace_file(path, lambda part: save_file(weights, part, metadata=metadata))
    return path


def load_model(source: str | Path, *, dtype: torch.dtype = torch.float32) -> G2PModel:
    """Read a trained model, ready to pronounce (in eval mode).

    Args:
        source: the name of a model that comes with the package, or the path of a checkpoint.
        dtype: of the weights; float64 gives the same decisions on every machine.

    Raises:
        ValueError: an unknown name; a file that is not one of our checkpoints.
        FileNotFoundError: no such file.

    >>> type(load_model("additive")).__name__
    'RecurrentG2P'
    """
    path = _checkpoint_path(source)
    model = recipe(read_facts(path)["name"]).build().to(dtype)
    with safe_open(path, framework="pt") as file:
        weights = {name: file.get_tensor(name).to(dtype) for name in file.keys()}  # noqa: SIM118
    try:
        model.load_state_dict(weights)
    except RuntimeError:
        raise ValueError(
            f"{path} is not a checkpoint of this package: it has other weights"
        ) from None
    return model.eval()


def read_facts(source: str | Path) -> dict[str, Any]:
    """Read how a checkpoint was trained: name, command, seed, steps, wall_minutes.

    Raises:
        ValueError, FileNotFoundError: as :func:`load_model`.
    """
    path = _checkpoint_path(source)
    try:
        with safe_open(path, framework="pt") as file:
            facts: dict[str, Any] = json.loads(file.metadata()["facts"])
            str(facts["name"])
    except (SafetensorError, KeyError, TypeError, ValueError, OSError) as error:
        raise ValueError(f"{path} is not a checkpoint of this package: {error}") from error
    return facts


def _checkpoint_path(source: str | Path) -> Path:
    path = Path(source)
    if path.suffix != ".safetensors":
        if path.name != str(source):
            raise ValueError(f"a checkpoint's name must end in .safetensors, got {source}")
        recipe(str(source))
        path = CHECKPOINTS / f"{source}.safetensors"
    if not path.exists():
        raise FileNotFoundError(f"there is no checkpoint {path}")
    return path
