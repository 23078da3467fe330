"""Write a trained model as a script that a web page can load, also from a disk.

A file is JavaScript in UTF-16. It sets ``companionModels.NAME`` to an object: what the model is,
its alphabets, the shape of each tensor, and ``data``, a string that holds all numbers as one stream
of bits, 15 a character (U+3000 to U+AFFF, which need no escape). In the stream, in the order of the
tensors:

- embeddings, vectors and the last layer: float16, 16 bits each;
- every other matrix, 64 weights at a time: the largest of them, m, as float16; then 12 bits for
  each weight, which is m × (code − 2048) / 2047.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from companion.additive import AdditiveAttention
from companion.g2p.lexicon import LETTERS, PHONEMES
from companion.g2p.model_files import load_model, read_facts, replace_file
from companion.g2p.recipes import G2PModel, recipe
from companion.g2p.transformer import TransformerG2P

# Logits that differ by at most 0.01 need 12 bits: with 11 they differ by 0.02, with 8 by 0.2.
BITS, BLOCK = 12, 64
_CHARACTER_BITS, _FIRST_CHARACTER = 15, 0x3000
_EXACT = ("embedding", "to_logits")  # small, and errors in them reach the logits undamped


def export_model(source: str | Path, folder: str | Path) -> Path:
    """Write ``folder/NAME.js``, the same bytes on every machine.

    Args:
        source: the name of a model that comes with the package, or the path of a checkpoint.
        folder: where the file goes; made if missing.

    Returns:
        The file's path.

    Raises:
        ValueError: an unknown name; a file that is not one of our checkpoints; a model that the
            page's script cannot run.
        FileNotFoundError: no such checkpoint.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     export_model("additive", folder).name
    'additive.js'
    """
    name, model = read_facts(source)["name"], load_model(source)
    text = f"(globalThis.companionModels ??= {{}}).{name} = {_json(name, model)};\n"
    path = Path(folder) / f"{name}.js"
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, lambda part: part.write_bytes(b"\xff\xfe" + text.encode("utf-16-le")))
    return path


def _json(name: str, model: G2PModel) -> str:
    architecture = _architecture(name, model)
    tensors: dict[str, dict[str, Any]] = {}
    stream: list[npt.NDArray[np.uint8]] = []
    for path, tensor in model.state_dict().items():
        values = tensor.numpy()
        is_exact = values.ndim == 1 or any(part in path for part in _EXACT)
        tensors[path] = {"shape": values.shape, "exact": is_exact}
        stream.append(_float16_bits(values) if is_exact else _quantised_bits(values))
    facts = {
        "name": name,
        "label": recipe(name).label,
        **architecture,
        "letters": LETTERS,
        "phonemes": PHONEMES,
        "bits": BITS,
        "block": BLOCK,
        "tensors": tensors,
        "data": _to_characters(np.concatenate(stream)),
    }
    return json.dumps(facts, ensure_ascii=False)


def _architecture(name: str, model: G2PModel) -> dict[str, Any]:
    if isinstance(model, TransformerG2P):
        attention: Any = model.encoder[0].self_attention
        return {
            "kind": "transformer",
            "num_layers": len(model.encoder),
            "num_heads": attention.num_heads,
        }
    if isinstance(model.attention, AdditiveAttention) and model.encoder.bidirectional:
        return {"kind": "additive"}
    raise ValueError(
        f"{name} cannot be exported: the page runs a TransformerG2P, or a RecurrentG2P that reads "
        "in both directions and has additive attention"
    )


def _float16_bits(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint8]:
    return _to_bits(values.astype("<f2").view("<u2").reshape(-1, 1), 16).ravel()


def _quantised_bits(matrix: npt.NDArray[np.float32]) -> npt.NDArray[np.uint8]:
    steps = 2 ** (BITS - 1) - 1
    blocks = np.pad(matrix.ravel(), (0, -matrix.size % BLOCK)).reshape(-1, BLOCK)
    largest = np.abs(blocks).max(axis=1, keepdims=True).astype("<f2")
    scale = np.maximum(largest.astype("<f4"), 1e-8) / steps
    codes = np.rint(blocks / scale).clip(-steps, steps) + steps + 1
    bits = np.hstack([_to_bits(largest.view("<u2"), 16), _to_bits(codes.astype("<u2"), BITS)])
    return bits.ravel()[: 16 * len(blocks) + BITS * matrix.size]


def _to_bits(values: npt.NDArray[np.uint16], width: int) -> npt.NDArray[np.uint8]:
    """Write the numbers of each row with ``width`` binary digits, the highest first."""
    places = np.arange(width - 1, -1, -1, dtype="<u2")
    bits = (values[..., None] >> places) & 1
    return bits.astype("u1").reshape(len(values), -1)


def _to_characters(bits: npt.NDArray[np.uint8]) -> str:
    padded = np.pad(bits, (0, -len(bits) % _CHARACTER_BITS)).reshape(-1, _CHARACTER_BITS)
    codes = padded @ (1 << np.arange(_CHARACTER_BITS - 1, -1, -1)) + _FIRST_CHARACTER
    return codes.astype("<u2").tobytes().decode("utf-16-le")
