"""Time attention beside other implementations, on one thread, and write the book's page on speed.

    make bench

The implementations of a row take turns in one process, in an order shuffled for each round, so that
a machine that slows down slows all of them. The clock counts the CPU time of the process. A number
is a ratio of medians. Nothing is asserted here.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import gc
import itertools
import os
import platform
import random
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from companion import AdditiveAttention, causal_mask, padding_mask
from companion.multi_head import MultiHeadAttention, merge_heads, split_heads

SHAPES = [
    (32, 64, 128, 4),
    (8, 256, 256, 8),
    (4, 512, 512, 8),
    (1, 2048, 512, 8),
    (1, 8192, 256, 4),
]
MASKS = ["none", "causal", "padding"]
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
MODES = ["inference", "training"]

Shape = tuple[int, int, int, int]
Run = Callable[[Tensor], Tensor]


# The others


class Textbook(nn.Module):
    """Multi-head attention as textbooks write it: fill with -1e9, softmax, weighted sum."""

    def __init__(self, d_model: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads, self.d_head = num_heads, d_model // num_heads
        self.q, self.k, self.v, self.out = (nn.Linear(d_model, d_model) for _ in range(4))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        batch, length, d_model = x.shape

        def split(y: Tensor) -> Tensor:
            return y.view(batch, length, self.num_heads, self.d_head).transpose(1, 2)

        q, k, v = split(self.q(x)), split(self.k(x)), split(self.v(x))
        scores = torch.matmul(q, k.transpose(-2, -1)) / self.d_head**0.5
        if mask is not None:
            scores = scores.masked_fill(mask == 0, -1e9)
        weights = torch.softmax(scores, dim=-1)
        context = torch.matmul(weights, v).transpose(1, 2).contiguous()
        return self.out(context.view(batch, length, d_model)), weights


def _first(result: Tensor | tuple[Tensor, ...]) -> Tensor:
    return result if isinstance(result, Tensor) else result[0]


class Bare(nn.Module):
    """The four projections around a function of queries, keys and values, and nothing else."""

    def __init__(self, d_model: int, num_heads: int, core: Callable[..., Tensor]) -> None:
        super().__init__()
        self.num_heads, self.core = num_heads, core
        self.q, self.k, self.v, self.out = (nn.Linear(d_model, d_model) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (split_heads(layer(x), self.num_heads) for layer in (self.q, self.k, self.v))
        return self.out(merge_heads(self.core(q, k, v)))


def competitors(shape: Shape, mask: str, dtype: torch.dtype) -> dict[str, tuple[nn.Module, Run]]:
    """Every implementation for one kind of row: its module, and how to call it on ``x``."""
    batch, length, d_model, heads = shape
    causal = mask == "causal"
    lengths = torch.linspace(length // 2, length, batch).long()
    seen = padding_mask(lengths, length) if mask == "padding" else None
    triangle = functools.cache(lambda: causal_mask(length) if causal else None)
    four_axes = None if seen is None else seen[:, None]

    ours = MultiHeadAttention(d_model, heads)
    theirs = ours.to_torch()
    rows: dict[str, tuple[nn.Module, Run]] = {}

    def own(need_weights: bool) -> Run:
        return lambda x: ours(x, x, x, mask=seen, is_causal=causal, need_weights=need_weights)[0]

    def torchs(need_weights: bool, training: bool) -> Run:
        def run(x: Tensor) -> Tensor:
            theirs.train(training)
            return theirs(
                x, x, x,
                need_weights=need_weights,
                average_attn_weights=False,
                key_padding_mask=None if seen is None else ~seen[:, 0],
                attn_mask=~triangle() if causal else None,
                is_causal=causal,
            )[0]  # fmt: skip

        return run

    def fused(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=four_axes, is_causal=causal)

    rows["ours, weights"] = ours, own(need_weights=True)
    rows["ours, no weights"] = ours, own(need_weights=False)
    direct = Bare(d_model, heads, fused)
    rows["fused"] = direct, direct
    products = Bare(d_model, heads, lambda q, k, v: (q @ k.mT) @ v)
    rows["products"] = products, products
    for training in (True, False):
        mode = "train" if training else "eval"
        rows[f"torch, weights, {mode}"] = theirs, torchs(need_weights=True, training=training)
        rows[f"torch, no weights, {mode}"] = theirs, torchs(need_weights=False, training=training)
    textbook = Textbook(d_model, heads)
    rows["textbook"] = textbook, lambda x: textbook(x, triangle() if causal else four_axes)[0]
    with contextlib.suppress(ImportError):
        from x_transformers.x_transformers import Attention

        lucid = Attention(
            d_model, heads=heads, dim_head=d_model // heads, flash=True, causal=causal
        )
        keys = None if seen is None else seen[:, 0]
        rows["x-transformers"] = lucid, lambda x: _first(lucid(x, mask=keys))
    return {name: (module.to(dtype), run) for name, (module, run) in rows.items()}


# Measuring


def step(module: nn.Module, run: Run, x: Tensor, mode: str) -> Callable[[], None]:
    """One timed step: forward without gradients, or forward and backward to all of them."""
    gradient = torch.ones_like(x)

    def inference() -> None:
        with torch.no_grad():
            run(x)

    def training() -> None:
        run(x).backward(gradient)
        x.grad = None
        module.zero_grad()

    return inference if mode == "inference" else training


def medians(
    steps: dict[str, Callable[[], None]], seconds: float, most: int = 41
) -> dict[str, float]:
    """Median milliseconds of each step, in turns, for about ``seconds`` and at least 3 turns."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    begin, order = time.perf_counter(), random.Random(0)
    for turn in range(most + 1):
        # Shuffled: whoever comes after a large one finds the caches full of its numbers.
        for name in order.sample(list(steps), len(steps)):
            start = time.process_time()
            steps[name]()
            times[name].append(time.process_time() - start)
        if turn >= 3 and time.perf_counter() - begin > seconds:
            break
    return {name: 1000 * statistics.median(values[1:]) for name, values in times.items()}


@dataclass(frozen=True)
class Row:
    """What one shape, mask, dtype and mode cost, in milliseconds for each implementation."""

    shape: Shape
    mask: str
    dtype: str
    mode: str
    times: dict[str, float] = field(repr=False)

    def ratio(self, name: str, other: str) -> float | None:
        """Our time over that of another, in its faster mode."""
        others = [time for key, time in self.times.items() if key.startswith(other)]
        return self.times[name] / min(others) if others else None


def attention_row(shape: Shape, mask: str, dtype: str, mode: str, seconds: float) -> Row:
    torch.manual_seed(0)
    gc.collect()
    batch, length, d_model, _ = shape
    x = torch.randn(batch, length, d_model).to(DTYPES[dtype])
    x.requires_grad_(mode == "training")
    steps = {
        name: step(module, run, x, mode)
        for name, (module, run) in competitors(shape, mask, DTYPES[dtype]).items()
        # torch's evaluation mode is another path in inference alone.
        if not (mode == "training" and name.endswith("eval"))
    }
    return Row(shape, mask, dtype, mode, medians(steps, seconds))


def additive_row(shape: tuple[int, int, int], mode: str, seconds: float) -> tuple[float, float]:
    """Milliseconds of additive attention in chunks, and over that of the one-tensor form."""
    batch, length, hidden = shape
    module = AdditiveAttention(hidden, hidden, hidden)
    x = torch.randn(batch, length, hidden, requires_grad=mode == "training")

    def run(need_weights: bool) -> Callable[[], None]:
        return step(module, lambda x: module(x, x, x, need_weights=need_weights)[0], x, mode)

    times = medians({"whole": run(True), "chunks": run(False)}, seconds)
    return times["chunks"], times["chunks"] / times["whole"]


def peak(name: str, mode: str, mask: str, length: int = 8192) -> float:
    """Peak memory of one step above what was there before it, in copies of the scores.

    To be called in a process of its own, which has never needed as much.
    """
    module, run = competitors((1, length, 256, 4), mask, torch.float32)[name]
    x = torch.randn(1, length, 256, requires_grad=mode == "training")
    before = resident_peak()
    step(module, run, x, mode)()
    return (resident_peak() - before) / (4 * length * length * 4)


def resident_peak() -> int:
    """The most bytes that this process has held so far."""
    with contextlib.suppress(OSError):  # Linux, where getrusage counts the parent's peak too
        for line in Path("/proc/self/status").read_text("utf-8").splitlines():
            if line.startswith("VmHWM"):
                return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (
        1 if sys.platform == "darwin" else 1024
    )


def peak_elsewhere(name: str, mode: str, mask: str) -> float:
    command = [sys.executable, __file__, "--peak", name, mode, mask]
    return float(subprocess.check_output(command, text=True))


# The page


def table(header: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    lines = [list(header), *rows]
    lines.insert(1, ["---"] * len(lines[0]))
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def number(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


WITHOUT = {
    "direct call": "fused",
    "products alone": "products",
    "`nn.MultiheadAttention`": "torch, no weights",
    "x-transformers": "x-transformers",
}
WITH = {
    "`nn.MultiheadAttention`": "torch, weights",
    "textbook class": "textbook",
    "products alone": "products",
}


def ratios(rows: list[Row], name: str, others: dict[str, str]) -> str:
    present = {
        title: start for title, start in others.items() if rows[0].ratio(name, start) is not None
    }
    return table(
        ["B, L, d_model, H", "mask", "ms", *(f"over {title}" for title in present)],
        (
            [
                ", ".join(map(str, row.shape)),
                row.mask,
                f"{row.times[name]:.1f}",
                *(number(row.ratio(name, start)) for start in present.values()),
            ]
            for row in rows
        ),
    )


def overview(rows: list[Row]) -> str:
    """The smallest and largest ratio of every table: what a reader wants to know first."""

    def spread(name: str, start: str, dtype: str, mode: str) -> str:
        found = [row.ratio(name, start) for row in rows if (row.dtype, row.mode) == (dtype, mode)]
        return f"{min(found):.2f} to {max(found):.2f}"

    kinds = list(itertools.product(DTYPES, MODES))
    return table(
        ["ours", *(f"{mode}, {dtype}" for dtype, mode in kinds)],
        (
            [title, *(spread(name, start, *kind) for kind in kinds)]
            for title, name, start in (
                ("without weights, over a direct call", "ours, no weights", "fused"),
                ("without weights, over torch's module", "ours, no weights", "torch, no weights"),
                ("with weights, over torch's module", "ours, weights", "torch, weights"),
                ("with weights, over the textbook class", "ours, weights", "textbook"),
            )
        ),
    )


def machine() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text("utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


INTRODUCTION = """# Speed of attention

What {{py:class}}`companion.MultiHeadAttention` costs beside other implementations, with and without
weights. `make bench` measures this page; no test compares it. It was measured on {machine},
{cores} cores, one thread, with Python {python} and torch {torch}.{load}

The implementations of a row take turns in one process, in an order shuffled for each round. The
times are CPU times of the process, and a ratio is one of medians, of 3 rounds or more: below 1,
ours is faster. "Inference" is a forward pass without gradients; "training" is forward and backward,
to the input and all parameters. Where `nn.MultiheadAttention` has two modes, training and
evaluation, the faster one counts.

- **Direct call**: three linear layers, a direct call of
  {{py:func}}`torch.nn.functional.scaled_dot_product_attention`, and a fourth linear layer.
- **Products alone**: the four linear layers and the two matrix products of attention, without
  scale, mask and softmax. The fused kernel can be faster, since it never writes the scores to
  memory.
- **Textbook class**: separate projections, `masked_fill` with -1e9, softmax, weighted sum.
"""


WHY = """## Where is ours slower, and why?

What follows is from profiles on one machine, an Intel Xeon with AMX and torch 2.13.

- **With weights, short sequences, no mask, inference.** In evaluation, torch's module adds the
  biases of the three projections, scales the queries and brings the heads to the front in one pass.
  From Python each of these is a pass of its own: at length 64, copies that bring heads to the front
  take a fifth of our time.
- **With weights and a mask, bfloat16, from length 2048 on.** We add the mask to the scores, which
  takes a third of the time there; torch's module adds it inside the product. Filling instead of
  adding was tried: faster in inference at 2048, slower at 256 and in training.
- **Without weights, bfloat16, over products alone.** Up to length 2048 the fused kernel is itself
  above the products in most rows: compare the column "over direct call". For training up to 384
  positions we therefore use products.
"""


def page(arguments: argparse.Namespace) -> str:
    load = os.getloadavg()[0]
    shared = (
        f" Other programs kept the machine busy meanwhile (load {load:.0f}), which costs each"
        " implementation caches and memory bandwidth: compare the ratios, not the times."
    )
    shapes = [shape for shape in SHAPES if not arguments.lengths or shape[1] in arguments.lengths]
    parts = [
        INTRODUCTION.format(
            machine=machine(),
            cores=os.cpu_count(),
            python=platform.python_version(),
            torch=torch.__version__,
            load=shared if load > 1.5 else "",
        )
    ]
    rows = []
    for dtype, mode in itertools.product(DTYPES, MODES):
        for shape, mask in itertools.product(shapes, MASKS):
            rows.append(attention_row(shape, mask, dtype, mode, arguments.seconds))
            print(rows[-1], {k: round(v, 2) for k, v in rows[-1].times.items()}, file=sys.stderr)
    parts.append(
        f"## In short\n\nThe smallest and the largest ratio of each table:\n\n{overview(rows)}\n"
    )
    for title, name, others in (
        ("Without weights", "ours, no weights", WITHOUT),
        ("With the weights of every head", "ours, weights", WITH),
    ):
        parts.append(f"## {title}\n")
        for dtype, mode in itertools.product(DTYPES, MODES):
            chosen = [row for row in rows if (row.dtype, row.mode) == (dtype, mode)]
            parts.append(f"### {title}: {mode}, {dtype}\n\n{ratios(chosen, name, others)}\n")
    parts.append(WHY)
    parts.append(
        "## Memory\n\nPeak memory of one step above the inputs, for 1, 8192, 256, 4 in float32, "
        "in copies of the scores (1.07 GB):\n"
    )
    names = ["ours, weights", "ours, no weights", "torch, weights, train", "textbook"]
    titles = ["with weights", "without", "`nn.MultiheadAttention` with weights", "textbook class"]
    parts.append(
        table(
            ["step", *titles],
            (
                [f"{mode}, mask: {mask}", *(number(peak_elsewhere(n, mode, mask)) for n in names)]
                for mode, mask in itertools.product(MODES, MASKS[:2])
            ),
        )
        + "\n"
    )
    parts.append(
        "## Additive attention in chunks\n\n{py:class}`companion.AdditiveAttention` with "
        "`need_weights=False`, which scores in chunks that fit the cache, over its form with "
        "weights, which holds one tensor of all pairs and hidden units:\n"
    )
    additive = [(8, 128, 128), (2, 512, 256)]
    lines = []
    for mode, shape in itertools.product(MODES, additive):
        time, ratio = additive_row(shape, mode, arguments.seconds)
        lines.append([", ".join(map(str, shape)), mode, f"{time:.1f}", number(ratio)])
    parts.append(table(["B, L, d_hidden", "mode", "ms", "over one tensor"], lines) + "\n")
    return "\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=5.0, help="about how long a row takes")
    parser.add_argument("--lengths", type=int, nargs="*", help="only these lengths")
    parser.add_argument("--output", type=Path, help="where the page goes; else it is printed")
    parser.add_argument("--peak", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.peak:
        print(peak(*arguments.peak))
        return
    text = page(arguments)
    if arguments.output:
        arguments.output.write_text(text, "utf-8")
    else:
        print(text)


if __name__ == "__main__":
    main()
