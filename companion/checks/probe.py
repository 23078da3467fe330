"""The instruments that the checks share: problems, what influences what, and tolerances."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple, TypeAlias

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from companion.checks.adapters import Kind, Layer, Output
from companion.masks import causal_mask

FullyMasked: TypeAlias = Literal["zero", "finite", "any"]
TOLERANCE = {torch.float64: 1e-9, torch.float32: 5e-5, torch.bfloat16: 1e-1, torch.float16: 2e-2}


class Skip(Exception):  # noqa: N818, it is not an error
    """Raised by a check that this interface gives no way to make; the message is the reason."""


class Finding(NamedTuple):
    """What a check saw: whether the property holds, and the number in words.

    ``hint`` replaces the check's own, where what was seen tells the mistake more precisely.
    """

    holds: bool
    seen: str
    hint: str | None = None


@dataclass(frozen=True)
class Setting:
    """What the caller said about the attention; see :func:`companion.checks.check_attention`."""

    kind: Kind = "cross"
    query_dim: int = 16
    key_dim: int = 16
    value_dim: int = 16
    num_heads: int = 1
    causal: bool = False
    scaled: bool = True
    ordered: bool = False
    fully_masked: FullyMasked = "finite"
    seed: int = 0
    dtype: torch.dtype = torch.float32
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))


@dataclass(frozen=True)
class Problem:
    """Inputs of one call; in self-attention key and value are the query."""

    query: Float[Tensor, "B L_q d_q"]
    key: Float[Tensor, "B L_k d_k"]
    value: Float[Tensor, "B L_k d_v"]
    mask: Bool[Tensor, "B L_q L_k"] | None = None

    def __getitem__(self, items: slice | Sequence[int]) -> Problem:
        """Some of the batch items."""
        mask = None if self.mask is None else self.mask[items]
        return Problem(self.query[items], self.key[items], self.value[items], mask)


class Probe:
    """A layer, what was said about it, and the means to examine it.

    Each check gets a probe of its own, so that what it draws does not depend on the others.
    """

    def __init__(self, layer: Layer, setting: Setting) -> None:
        self.layer = layer
        self.setting = setting
        self.generator = torch.Generator().manual_seed(setting.seed)

    # What the interface allows.

    @property
    def is_self(self) -> bool:
        """Whether query, key and value are one sequence."""
        return self.setting.kind == "self"

    @property
    def tolerance(self) -> float:
        """The largest difference that counts as rounding, in the dtype of the inputs."""
        return TOLERANCE[self.setting.dtype]

    @property
    def batch_size(self) -> int:
        """An ordinary batch; never as many items as heads, which would hide a wrong axis."""
        return 2 if self.setting.num_heads != 2 else 3

    @property
    def parameters(self) -> dict[str, nn.Parameter]:
        """Every parameter of the modules behind the layer, by name."""
        return {n: p for module in self.layer.modules for n, p in module.named_parameters()}

    def need_cross(self, why: str) -> None:
        """Skip in self-attention, where query, key and value cannot be changed separately."""
        if self.is_self:
            raise Skip(f"query, key and value are one sequence: {why}")

    def need_heads(self) -> None:
        """Skip where there is one head."""
        if self.setting.num_heads == 1:
            raise Skip("there is one head (num_heads=1)")

    def need_mask(self) -> None:
        """Skip where no mask can be given."""
        if self.layer.mask_polarity == "none":
            raise Skip("it takes no mask")

    @property
    def mask_has_queries(self) -> bool:
        """Whether the mask may differ between queries."""
        return self.layer.mask_polarity != "lengths" and "L_q" in self.layer.mask_shape

    @property
    def mask_has_items(self) -> bool:
        """Whether the mask may differ between batch items."""
        return self.layer.mask_polarity == "lengths" or "B" in self.layer.mask_shape

    # Problems.

    def draw(self, *shape: int) -> Tensor:
        """Normal numbers from the probe's own generator; the same ones in every dtype."""
        numbers = torch.randn(shape, generator=self.generator, dtype=torch.float64)
        return numbers.to(self.setting.device, self.setting.dtype)

    def problem(
        self,
        q_len: int = 3,
        k_len: int = 5,
        *,
        batch_size: int | None = None,
        scale: float = 1.0,
        mask: Bool[Tensor, "..."] | None = None,
    ) -> Problem:
        """Draw a problem; self-attention has ``k_len`` positions. The mask is for every item."""
        batch_size = self.batch_size if batch_size is None else batch_size
        s = self.setting
        query = scale * self.draw(batch_size, k_len if self.is_self else q_len, s.query_dim)
        if self.is_self:
            problem = Problem(query, query, query)
        else:
            key, value = (self.draw(batch_size, k_len, dim) for dim in (s.key_dim, s.value_dim))
            problem = Problem(query, key, value)
        return problem if mask is None else self.masked(problem, mask)

    def masked(self, problem: Problem, mask: Bool[Tensor, "..."]) -> Problem:
        """The problem under a mask that broadcasts to ``(B, L_q, L_k)``."""
        shape = (*problem.query.shape[:2], problem.key.shape[1])
        return replace(problem, mask=mask.to(self.setting.device).expand(shape))

    def sequence(self, x: Tensor) -> Problem:
        """The self-attention problem of one sequence."""
        return Problem(x, x, x)

    # Masks that the interface can express.

    def square_mask(self) -> Bool[Tensor, "4 4"]:
        """A mask that differs from its transpose and its inverse, with no row hidden in these."""
        if self.layer.mask_polarity == "lengths":
            return torch.tensor([1, 1, 0, 0]).bool().expand(4, 4)
        if not self.mask_has_queries:
            return torch.tensor([1, 0, 1, 0]).bool().expand(4, 4)
        step = (torch.arange(4) - torch.arange(4)[:, None]) % 4
        return step < 2  # query i sees keys i and i + 1

    def column_mask(self, q_len: int, k_len: int) -> Bool[Tensor, "q_len k_len"]:
        """A mask that hides the same keys from every query, and never the first."""
        positions = torch.arange(k_len)
        lengths = self.layer.mask_polarity == "lengths"
        visible = positions < k_len - 2 if lengths else positions % 2 == 0
        return visible.expand(q_len, k_len)

    def row_mask(self, q_len: int, k_len: int) -> Bool[Tensor, "q_len k_len"]:
        """A mask that differs between queries where the interface allows it; all see the first."""
        if not self.mask_has_queries:
            return self.column_mask(q_len, k_len)
        rows, columns = torch.arange(q_len)[:, None], torch.arange(k_len)
        return ((rows + columns) % 2 == 0) | (columns == 0)

    def visible(self, mask: Bool[Tensor, "L_q L_k"]) -> Bool[Tensor, "L_q L_k"]:
        """What may be seen through a mask, also by a layer that is causal by itself."""
        return mask & causal_mask(*mask.shape) if self.setting.causal else mask

    # Measurements.

    def run(self, problem: Problem, *, need_weights: bool = True) -> Output:
        """Call the layer."""
        return self.layer(
            problem.query, problem.key, problem.value, problem.mask, need_weights=need_weights
        )

    def output(self, problem: Problem) -> Float[Tensor, "B L_q d"]:
        """The layer's output."""
        return self.run(problem).output

    def weights(self, problem: Problem) -> Float[Tensor, "B H L_q L_k"]:
        """The layer's weights, with a head axis (of size 1 where heads are averaged)."""
        weights = self.run(problem).weights
        if weights is None:
            raise Skip("it does not return its weights")
        return weights if weights.ndim == 4 else weights.unsqueeze(1)

    def head_weights(self, problem: Problem) -> Float[Tensor, "B H L_q L_k"]:
        """The weights of each head; skips where they are averaged."""
        weights = self.weights(problem)
        if weights.shape[1] != self.setting.num_heads:
            raise Skip("it returns the average of its heads' weights")
        return weights

    def has_weights(self) -> bool:
        """Whether weights are returned."""
        return self.run(self.problem()).weights is not None

    def run_on_leaves(self, problem: Problem) -> tuple[Output, list[Tensor]]:
        """Call the layer on leaves that record gradients: the output, and the leaves."""
        if self.is_self:
            leaves = [problem.query.clone().requires_grad_()]
            return self.run(replace(self.sequence(leaves[0]), mask=problem.mask)), leaves
        inputs = (problem.query, problem.key, problem.value)
        query, key, value = (tensor.clone().requires_grad_() for tensor in inputs)
        return self.run(Problem(query, key, value, problem.mask)), [query, key, value]

    def influence(
        self, problem: Problem, of: Literal["query", "key", "value"] = "value"
    ) -> Float[Tensor, "L_q L"]:
        """How strongly each position of an input moves each output, by gradient, 1 at most.

        In self-attention the one sequence stands for all three.
        """
        (output, _), leaves = self.run_on_leaves(problem)
        leaf = leaves[0] if self.is_self else leaves[("query", "key", "value").index(of)]
        cotangent = self.draw(*output.shape).to(output.dtype)
        rows = []
        for i in range(output.shape[1]):
            (row,) = gradients((output * cotangent)[:, i], [leaf])
            rows.append(row.abs().amax(dim=(0, 2)))
        influence = torch.stack(rows)
        return influence / influence.nan_to_num(0.0).amax().clamp_min(1e-30)

    def influences(self, problem: Problem) -> Bool[Tensor, "L_q L_k"]:
        """Which values influence which outputs, by more than rounding."""
        return self.influence(problem) > min(self.tolerance, 1e-4)

    def value_response(
        self, q_len: int, k_len: int, *, directions: int = 1, scale: float = 1.0
    ) -> Float[Tensor, "directions L_k L_q d"]:
        r"""What each value alone adds to each output, for values along random directions.

        For one set of queries and keys the output is an affine function of the values, so this is
        :math:`\sum_h \alpha^h_{ij} M_h r` for direction :math:`r` and the map
        :math:`M_h` of head h from value to output.
        """
        one = self.problem(q_len, k_len, batch_size=1, scale=scale)
        items = directions * k_len + 1  # the last one has values 0
        value = torch.zeros(items, k_len, self.setting.value_dim).to(one.value)
        for d, direction in enumerate(self.draw(directions, self.setting.value_dim)):
            for j in range(k_len):
                value[d * k_len + j, j] = direction
        problem = Problem(one.query.expand(items, -1, -1), one.key.expand(items, -1, -1), value)
        output = self.output(problem)
        return (output[:-1] - output[-1]).reshape(directions, k_len, *output.shape[1:])

    # Verdicts.

    def at_most(self, gap: float, what: str, *, tolerance: float | None = None) -> Finding:
        """The property holds where a gap is no larger than rounding."""
        bound = self.tolerance if tolerance is None else tolerance
        holds = gap <= bound
        return Finding(holds, f"{what}: {f'below {bound:.0e}' if holds else number(gap)}")

    def at_least(self, size: float, what: str) -> Finding:
        """The property holds where a change is larger than rounding."""
        holds = size > self.tolerance
        return Finding(holds, f"{what}: {number(size) if holds else '0'}")

    @contextlib.contextmanager
    def cast(self, dtype: torch.dtype) -> Iterator[Probe]:
        """A probe in another dtype; parameters get their own numbers back afterwards."""
        tensors = [t for m in self.layer.modules for t in (*m.parameters(), *m.buffers())]
        saved = [(t, t.data) for t in tensors if t.is_floating_point()]
        try:
            for tensor, data in saved:
                tensor.data = data.to(dtype)
            yield Probe(self.layer, replace(self.setting, dtype=dtype))
        finally:
            for tensor, data in saved:
                tensor.data = data


def gradients(output: Tensor, leaves: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Gradients of the sum of an output; 0 where it does not depend on a leaf."""
    # A scalar: with a cotangent given, torch imports sympy, which takes longer than all checks.
    loss = output.sum()
    return torch.autograd.grad(
        loss, list(leaves), retain_graph=True, allow_unused=True, materialize_grads=True
    )


def distance(actual: Tensor, expected: Tensor) -> float:
    """The largest difference, relative to the largest expected number where that is above 1."""
    if actual.shape != expected.shape:
        return float("inf")
    if not actual.numel():
        return 0.0
    gap = float(
        (actual - expected).detach().abs().max() / expected.detach().abs().max().clamp_min(1)
    )
    return gap if gap == gap else float("nan")


def number(x: float) -> str:
    """Two digits: what stays the same on another machine.

    >>> number(0.12345), number(1234.0)
    ('0.12', '1.2e+03')
    """
    return f"{x:.2g}"
