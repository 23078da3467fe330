"""Command line: ``python -m companion.checks package.module:Name --arg d_model=64``."""

from __future__ import annotations

import argparse
import ast
import importlib
import inspect
import sys
from collections.abc import Callable, Sequence
from typing import Any, get_args

from companion.checks.adapters import Kind, MaskPolarity
from companion.checks.battery import check_attention
from companion.checks.probe import FullyMasked
from companion.checks.registry import error_text

# Options of check_attention that have the same name here.
_OPTIONS = (
    "kind", "query_dim", "key_dim", "value_dim", "num_heads", "causal", "scaled", "ordered",
    "mask_polarity", "mask_shape", "fully_masked", "seed",
)  # fmt: skip
_SIZE_NAMES = ("query_dim", "d_model", "embed_dim", "hidden_size", "dim")
_HEAD_NAMES = ("num_heads", "n_heads", "num_attention_heads", "heads", "nhead")


def main(arguments: Sequence[str] | None = None) -> int:
    """Check one attention: status 0 if it passes, 1 if a check fails, 2 if it cannot be made."""
    options = _parser().parse_args(arguments)
    try:
        given = dict(map(_read_argument, options.arg))
        attention = make_attention(options.name, given)
        report = check_attention(attention, **_check_options(options, given))
    except (ValueError, TypeError) as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    print(report.to_markdown() if options.markdown else report)
    return 1 if report.failed else 0


def make_attention(name: str, arguments: dict[str, Any]) -> Callable[..., Any]:
    """Import ``package.module:Name``; a class is made with the arguments, a function is itself.

    Raises:
        ValueError: it cannot be imported or made; the message says why.

    >>> make_attention("torch.nn.functional:relu", {}).__name__
    'relu'
    """
    module_name, _, attribute = name.partition(":")
    if not attribute:
        raise ValueError(f"name must be package.module:Name, got {name!r}")
    try:
        found: Any = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:  # an import can raise anything
        raise ValueError(f"cannot import {module_name}: {error_text(error)}") from error
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise ValueError(f"{module_name} has no {attribute}")
        found = getattr(found, part)
    if inspect.isclass(found):
        try:
            found = found(**arguments)
        except (Exception, SystemExit) as error:
            shown = ", ".join(f"{key}={value!r}" for key, value in arguments.items())
            raise ValueError(f"{attribute}({shown}) raised {error_text(error)}") from error
    elif arguments:
        raise ValueError(f"{attribute} is no class: --arg is for what a class is made with")
    if not callable(found):
        raise ValueError(f"{attribute} cannot be called, it is of type {type(found).__name__}")
    return found  # type: ignore[no-any-return]


def _read_argument(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise ValueError(f"--arg must be NAME=VALUE, got {text!r}")
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return name, value  # a word is a string


def _check_options(options: argparse.Namespace, given: dict[str, Any]) -> dict[str, Any]:
    """What was said on the command line; sizes that were not are those of the constructor."""
    said = {name: getattr(options, name) for name in _OPTIONS}
    for option, names in (
        ("query_dim", _SIZE_NAMES),
        ("key_dim", ("key_dim", "kdim")),
        ("value_dim", ("value_dim", "vdim")),
        ("num_heads", _HEAD_NAMES),
    ):
        sizes = [given[name] for name in names if isinstance(given.get(name), int)]
        if said[option] is None and sizes:
            said[option] = sizes[0]
    return said


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m companion.checks",
        description="Check an attention of your own: what fails, and the usual mistake behind it.",
        epilog="exit status: 0 no check fails, 1 a check fails, 2 it cannot be imported or made",
    )
    parser.add_argument("name", metavar="package.module:Name", help="a class or a function")
    parser.add_argument(
        "--arg", action="append", default=[], metavar="NAME=VALUE",
        help="an argument of the class, such as --arg d_model=64; may be repeated",
    )  # fmt: skip
    parser.add_argument("--kind", choices=get_args(Kind), default="cross")
    for size in ("query", "key", "value"):
        parser.add_argument(f"--{size}-dim", type=int, metavar="N")
    parser.add_argument("--num-heads", type=int, metavar="N")
    parser.add_argument("--causal", action="store_true", help="it hides the future by itself")
    parser.add_argument(
        "--unscaled", dest="scaled", action="store_false", help="not divided by √d on purpose"
    )
    parser.add_argument("--ordered", action="store_true", help="it knows positions on purpose")
    parser.add_argument("--mask-polarity", choices=get_args(MaskPolarity), default="keep")
    parser.add_argument("--mask-shape", metavar="AXES", help='such as "B 1 L_q L_k"')
    parser.add_argument("--fully-masked", choices=get_args(FullyMasked), default="finite")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--markdown", action="store_true", help="print a Markdown table")
    return parser


if __name__ == "__main__":
    sys.exit(main())
