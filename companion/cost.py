"""What a computation costs: time, side by side, and the largest tensor that it makes."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from companion.attention import check_positive


def median_seconds(
    functions: Mapping[str, Callable[[], object]], *, rounds: int = 7
) -> dict[str, float]:
    """Time several functions in turn, A B C A B C ..., and keep each one's median.

    Taking turns lets a machine that slows down slow all of them. Compare the results by their
    ratio; a single time says little about another machine.

    Args:
        functions: ``{name: function without arguments}``.
        rounds: how many turns are counted, after one that is not.

    Returns:
        ``{name: seconds}``.

    Raises:
        TypeError, ValueError: ``rounds`` is not a positive integer.

    >>> sorted(median_seconds({"a": lambda: None, "b": lambda: None}, rounds=1))
    ['a', 'b']
    """
    check_positive(rounds=rounds)
    seconds: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(rounds + 1):
        for name, function in functions.items():
            start = time.perf_counter()
            function()
            seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(times[1:]) for name, times in seconds.items()}


def largest_tensor_bytes(function: Callable[[], object]) -> int:
    """Run a function and return the size of the largest tensor that any of its operations makes.

    It counts what torch allocates for results, not scratch space inside an operation, and is the
    same on every machine. Gradients are switched off.

    Args:
        function: called once, without arguments.

    Returns:
        Bytes.

    >>> largest_tensor_bytes(lambda: torch.ones(10, dtype=torch.float32) + 1)
    40
    """
    watch = _LargestResult()
    with torch.no_grad(), watch:
        function()
    return watch.bytes


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


class _LargestResult(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        given = {_storage(leaf) for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)}
        for leaf in tree_leaves(result):
            # A view is of a storage that was there before: nothing new.
            if isinstance(leaf, Tensor) and _storage(leaf) not in given:
                self.bytes = max(self.bytes, leaf.untyped_storage().nbytes())
        return result
