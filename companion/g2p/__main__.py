"""Command line: ``python -m companion.g2p`` with train, evaluate, pronounce, export or sweep."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

import torch

from companion.g2p.evaluation import evaluate, record
from companion.g2p.export import export_model
from companion.g2p.head_sweep import SWEEP, head_sweep
from companion.g2p.lexicon import Split, decode_phonemes, encode_words
from companion.g2p.model_files import load_model
from companion.g2p.recipes import RECIPES
from companion.g2p.training import train


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; errors of the user's are one line on stderr and exit status 2."""
    options = _parser().parse_args(arguments)
    torch.set_num_threads(1)
    try:
        options.run(options)
    except (ValueError, OSError, ModuleNotFoundError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\nstopped", file=sys.stderr)
        return 130
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m companion.g2p", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    command = commands.add_parser("train", help="train a model (about 40 minutes on one core)")
    command.add_argument("name", choices=RECIPES, metavar="NAME", help=", ".join(RECIPES))
    command.add_argument("--steps", type=int, default=20_000)
    command.add_argument("--seed", type=int, default=0)
    command.add_argument("--folder", type=Path, default=Path("g2p-runs"), help="where files go")
    command.add_argument("--resume", action="store_true", help="go on where a run stopped")
    command.set_defaults(run=_train)

    command = commands.add_parser("evaluate", help="error rates of a model")
    command.add_argument("source", metavar="NAME", help="a model, or a .safetensors file")
    command.add_argument("--split", choices=get_args(Split), default="test")
    command.add_argument("--beams", type=int, default=1, help="above 1: score a beam search too")
    command.add_argument("--record", action="store_true", help="write the package's results.json")
    command.set_defaults(run=_evaluate)

    command = commands.add_parser("pronounce", help="pronounce words")
    command.add_argument("words", nargs="+", metavar="WORD")
    command.add_argument("--model", default="additive", help="a model, or a .safetensors file")
    command.add_argument("--show", action="store_true", help="show where each phoneme looked")
    command.set_defaults(run=_pronounce)

    command = commands.add_parser("export", help="write a model as a script for a web page")
    command.add_argument("source", metavar="NAME", help="a model, or a .safetensors file")
    command.add_argument("--folder", type=Path, default=Path("g2p-runs"), help="where it goes")
    command.set_defaults(run=_export)

    command = commands.add_parser("sweep", help="train small Transformers with 1 to 16 heads")
    command.add_argument("--steps", type=int, default=3_000)
    command.add_argument("--file", type=Path, default=SWEEP, help="where the runs are recorded")
    command.set_defaults(run=_sweep)
    return parser


def _train(options: argparse.Namespace) -> None:
    path = train(
        options.name,
        steps=options.steps,
        seed=options.seed,
        folder=options.folder,
        resume=options.resume,
    )
    print(f"wrote {path}; next: python -m companion.g2p evaluate {path}")


def _evaluate(options: argparse.Namespace) -> None:
    result = evaluate(options.source, split=options.split, beams=options.beams)
    print(f"{result['label']}: {result['parameters']:,} parameters, {result['steps']:,} steps")
    print("letters   words   word errors   phoneme errors")
    rows = {**result[f"{options.split}_by_length"], "all": result[options.split]}
    if options.beams > 1:
        rows[f"beam {options.beams}"] = result[f"{options.split}_beam_search"]
    for group, rates in rows.items():
        print(
            f"{group:>7}  {rates['words']:>6}  {rates['word_error_rate']:>12.1%}"
            f"  {rates['phoneme_error_rate']:>15.1%}"
        )
    if options.record:
        record(result)


def _pronounce(options: argparse.Namespace) -> None:
    letters, lengths = encode_words(options.words)
    phonemes, weights = load_model(options.model).pronounce(letters, lengths)
    if options.show and weights is None:
        raise ValueError(f"{options.model} has no attention to show")
    for index, word in enumerate(options.words):
        pronunciation = decode_phonemes(phonemes[index].tolist())
        print(f"{word}  {' '.join(pronunciation)}")
        if weights is not None and options.show:
            print(alignment_text(word, pronunciation, weights[index]))


def _export(options: argparse.Namespace) -> None:
    path = export_model(options.source, options.folder)
    print(f"wrote {path}, {path.stat().st_size / 1e6:.2f} MB")


def _sweep(options: argparse.Namespace) -> None:
    print("heads  seed   word errors   phoneme errors")
    for run in head_sweep(steps=options.steps, path=options.file):
        print(
            f"{run['heads']:>5}  {run['seed']:>4}  {run['word_error_rate']:>12.1%}"
            f"  {run['phoneme_error_rate']:>15.1%}"
        )


def alignment_text(word: str, pronunciation: Sequence[str], weights: torch.Tensor) -> str:
    """Draw attention weights as text: a row a phoneme, a column a letter, in percent.

    Args:
        word: the letters, ``L`` of them.
        pronunciation: the phonemes, ``T`` of them.
        weights: ``(>= T, >= L)``, a row for each phoneme.

    >>> print(alignment_text("be", ["B", "IY"], torch.tensor([[0.9, 0.1], [0.0, 1.0]])))
           b   e
      B   90  10
      IY   .  100
    """
    rows = ["      " + "".join(f"{letter:>4}" for letter in word)]
    for phoneme, row in zip(pronunciation, weights[:, : len(word)].tolist(), strict=False):
        percents = [round(100 * weight) for weight in row]
        rows.append(f"  {phoneme:<4}" + "".join(f"{p or '.':>4}" for p in percents))
    return "\n".join(rows)


if __name__ == "__main__":
    sys.exit(main())
