"""What a computation costs: time, side by side, and memory, in numbers that no machine changes."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

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


def kept_bytes(function: Callable[[], object]) -> int:
    """Run a function and return how much memory autograd keeps for the backward pass.

    It counts the tensors that are saved until ``backward`` has used them, also those that were
    there before, such as inputs and parameters; what shares its memory counts once. The result is
    the same on every machine.

    Args:
        function: called once, without arguments, with gradients switched on; what it returns keeps
            its graph alive.

    Returns:
        Bytes.

    Chapter: 3, dot-product attention.

    >>> x = torch.ones(10, dtype=torch.float32, requires_grad=True)
    >>> kept_bytes(lambda: x.tanh()), kept_bytes(lambda: x + 1)
    (40, 0)
    """
    storages = {}

    def keep(tensor: Tensor) -> Tensor:
        storages[_storage(tensor)] = tensor.untyped_storage()
        return tensor

    with torch.enable_grad(), saved_tensors_hooks(keep, lambda tensor: tensor):
        function()
    return sum(storage.nbytes() for storage in storages.values())


def multiplications(function: Callable[[], object]) -> int:
    """Run a function and count the multiplications in its matrix products.

    Everything else (sums, softmax, gates) is left out. The result is the same on every machine.
    Gradients are switched off.

    Args:
        function: called once, without arguments.

    Returns:
        How many numbers are multiplied.

    Chapter: 5, self-attention.

    >>> multiplications(lambda: torch.ones(2, 3) @ torch.ones(3, 5))
    30
    """
    fused = {torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _fused_operations}
    with torch.no_grad(), FlopCounterMode(display=False, custom_mapping=fused) as counter:
        function()
    return int(counter.get_total_flops()) // 2  # it counts the additions as well


def _fused_operations(query: Any, key: Any, value: Any, *_: Any, **options: Any) -> int:
    return int(sdpa_flop_count(query, key, value))  # type: ignore[no-untyped-call]


def longest_chain(result: Tensor) -> int:
    """Count the operations that had to wait for one another until a result was there.

    It is the longest path through autograd's graph, where a whole matrix product is one operation:
    what is left to wait for on a machine that does at once all that can be done at once. The result
    is the same on every machine.

    Args:
        result: of a computation with gradients.

    Returns:
        The length of the longest chain.

    Raises:
        ValueError: a tensor without a graph.

    Chapter: 5, self-attention.

    >>> x = torch.ones(3, requires_grad=True)
    >>> longest_chain(x * 2 + x * 3), longest_chain(x.exp().log().exp())
    (2, 3)
    """
    if result.grad_fn is None:
        raise ValueError("result must come from a computation with gradients, it has no graph")
    length: dict[Any, int] = {}
    waiting = [result.grad_fn]
    while waiting:  # not recursive: a recurrent network's graph is deep
        node = waiting[-1]
        before = [parent for parent, _ in node.next_functions if parent is not None]
        missing = [parent for parent in before if parent not in length]
        if missing:
            waiting += missing
            continue
        own = not hasattr(node, "variable")  # what holds a parameter computes nothing
        length[waiting.pop()] = own + max((length[parent] for parent in before), default=0)
    return length[result.grad_fn]


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
