"""What is true of any right attention, whatever its scores; and the problems to try it on.

A new module is tested by adding one line to :data:`KINDS`. A property is a function of a kind and a
:class:`Problem`; its name says what holds.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from hypothesis import strategies as st
from torch import Tensor, nn

from companion import (
    AdditiveAttention,
    DotProductAttention,
    MultiHeadAttention,
    ScaledDotProductAttention,
)
from companion.recall import FixedWeights


@dataclass(frozen=True)
class Kind:
    """A kind of attention: how to build one that fits a problem, and what it need not do."""

    name: str
    build: Callable[["Problem"], nn.Module]
    equal_sizes: bool = False  # needs d_q == d_k
    ordered: bool = False  # may depend on where a key stands
    largest_factor: float = 1e4  # of its parameters, with which half precision does not overflow

    def make(self, problem: "Problem") -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            module = self.build(problem)
            for parameter in module.parameters():  # also those that start at 0
                if parameter.requires_grad:
                    nn.init.normal_(parameter)
        return module.to(problem.query.dtype)

    def problem(self, *args: object, **options: object) -> "Problem":
        """A small problem that this kind can solve; see :func:`make_problem`."""
        return make_problem(*args, **{"d_k": 5 if self.equal_sizes else 2, **options})


class MeanOfHeads(nn.Module):
    """Multi-head attention that returns the mean of its heads' weights: of the scores' shape."""

    def __init__(self, problem: "Problem") -> None:
        super().__init__()
        d_model, key_dim, value_dim = (t.shape[-1] for t in problem.tensors)
        self.attention = MultiHeadAttention(
            d_model, 1 + (d_model % 2 == 0), bias=False, key_dim=key_dim, value_dim=value_dim
        )

    def forward(self, query, key, value, *, mask=None, need_weights=True):
        output, weights = self.attention(query, key, value, mask=mask, need_weights=need_weights)
        return output, None if weights is None else weights.mean(-3)


KINDS = [
    Kind("additive", lambda p: AdditiveAttention(p.query.shape[-1], p.key.shape[-1], 3)),
    Kind("dot_product", lambda _: DotProductAttention(), equal_sizes=True),
    Kind("scaled_dot_product", lambda _: ScaledDotProductAttention(), equal_sizes=True),
    Kind("multi_head", MeanOfHeads, largest_factor=10.0),
    *(
        Kind(
            f"fixed-{looks}",
            lambda p, looks=looks: FixedWeights(
                looks, num_keys=p.key.shape[-2], query_dim=p.query.shape[-1]
            ),
            ordered=looks != "nowhere",
        )
        for looks in ("nowhere", "position", "query")
    ),
]


@dataclass(frozen=True)
class Problem:
    query: Tensor  # (..., L_q, d_q)
    key: Tensor  # (..., L_k, d_k)
    value: Tensor  # (..., L_k, d_v)
    mask: Tensor | None = None

    @property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.query, self.key, self.value

    @property
    def visible(self) -> Tensor:
        """The mask, written out: boolean (..., L_q, L_k)."""
        shape = (*self.query.shape[:-1], self.key.shape[-2])
        return torch.ones(shape, dtype=torch.bool) if self.mask is None else self.mask.expand(shape)

    def apply(self, module: nn.Module, **options: object) -> tuple[Tensor, Tensor]:
        return module(self.query, self.key, self.value, mask=self.mask, **options)


def make_problem(
    batch: tuple[int, ...] = (2,),
    l_q: int = 3,
    l_k: int = 4,
    d_q: int = 5,
    d_k: int = 2,
    d_v: int = 3,
    *,
    mask_shape: tuple[int, ...] | None = None,
    share_visible: float = 0.6,
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
) -> Problem:
    generator = torch.Generator().manual_seed(seed)
    shapes = ((*batch, l_q, d_q), (*batch, l_k, d_k), (*batch, l_k, d_v))
    tensors = [torch.randn(s, generator=generator, dtype=torch.float64).to(dtype) for s in shapes]
    mask = None
    if mask_shape is not None:
        mask = torch.rand(mask_shape, generator=generator) < share_visible
    return Problem(*tensors, mask)


@st.composite
def problems(draw: st.DrawFn, kind: Kind) -> Problem:
    """Problems of every shape: no, one or two batch axes, lengths from 1, masks of any shape."""
    batch = draw(st.sampled_from([(2,), (), (1,), (2, 3)]))
    l_q, l_k, d_q, d_k, d_v = (draw(st.integers(1, 4)) for _ in range(5))
    shapes = [None, (l_k,), (l_q, l_k), (1, l_k), (*batch, l_q, l_k), (*batch, 1, l_k)]
    return make_problem(
        batch, l_q, l_k, d_q, d_q if kind.equal_sizes else d_k, d_v,
        mask_shape=draw(st.sampled_from(shapes)),
        share_visible=draw(st.sampled_from([0.6, 0.3, 0.0, 1.0])),
        seed=draw(st.integers(0, 1000)),
    )  # fmt: skip


def equal(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-12)


# The properties.


def rows_sum_to_1_or_see_nothing_and_sum_to_0(kind: Kind, problem: Problem) -> None:
    _, weights = problem.apply(kind.make(problem))
    assert (weights >= 0).all()
    equal(weights.sum(-1), problem.visible.any(-1).to(weights.dtype).expand(weights.shape[:-1]))


def hidden_weights_are_exactly_0(kind: Kind, problem: Problem) -> None:
    _, weights = problem.apply(kind.make(problem))
    assert (weights[~problem.visible] == 0).all()


def a_query_that_sees_nothing_gets_0(kind: Kind, problem: Problem) -> None:
    nothing = replace(problem, mask=torch.zeros(problem.key.shape[-2], dtype=torch.bool))
    output, weights = nothing.apply(kind.make(problem))
    assert (output == 0).all()
    assert (weights == 0).all()


def a_hidden_key_and_value_change_neither_output_nor_gradient(kind: Kind, problem: Problem) -> None:
    module, j = kind.make(problem), problem.key.shape[-2] - 1
    blind = ~problem.visible[..., j]  # queries that must not notice item j

    def run(shift: float) -> list[Tensor]:
        leaves = [t.clone() for t in problem.tensors]
        for leaf in leaves[1:]:
            leaf[..., j, :] += shift
        for leaf in leaves:
            leaf.requires_grad_()
        output, weights = Problem(*leaves, problem.mask).apply(module)
        wanted = [*leaves, *(p for p in module.parameters() if p.requires_grad)]
        output, weights = output[blind], weights[blind]
        loss = output.square().sum() + weights.square().sum()
        gradients = torch.autograd.grad(loss, wanted, allow_unused=True, materialize_grads=True)
        assert (gradients[1][..., j, :] == 0).all() or not blind.all()
        assert (gradients[2][..., j, :] == 0).all()
        return [output, weights, *gradients]

    for before, after in zip(run(0.0), run(100.0), strict=True):
        equal(after, before)


def permuting_keys_with_their_values_changes_nothing(kind: Kind, problem: Problem) -> None:
    if kind.ordered:
        return
    module, order = kind.make(problem), torch.arange(problem.key.shape[-2]).flip(0)
    mask = None if problem.mask is None else problem.mask[..., order]
    key, value = problem.key[..., order, :], problem.value[..., order, :]
    output, weights = problem.apply(module)
    output_after, weights_after = Problem(problem.query, key, value, mask).apply(module)
    equal(output_after, output)
    equal(weights_after, weights[..., order])


def permuting_queries_permutes_outputs(kind: Kind, problem: Problem) -> None:
    module, order = kind.make(problem), torch.arange(problem.query.shape[-2]).flip(0)
    permuted = replace(
        problem, query=problem.query[..., order, :], mask=problem.visible[..., order, :]
    )
    (output, weights), (output_after, weights_after) = problem.apply(module), permuted.apply(module)
    equal(output_after, output[..., order, :])
    equal(weights_after, weights[..., order, :])


def batch_items_do_not_mix(kind: Kind, problem: Problem) -> None:
    module = kind.make(problem)
    output, weights = problem.apply(module)
    for item in itertools.product(*map(range, problem.query.shape[:-2])):
        alone = Problem(
            problem.query[item], problem.key[item], problem.value[item], problem.visible[item]
        )
        output_alone, weights_alone = alone.apply(module)
        equal(output_alone, output[item])
        equal(weights_alone, weights[item])


def the_output_is_the_same_without_weights(kind: Kind, problem: Problem) -> None:
    module = kind.make(problem)
    output, nothing = problem.apply(module, need_weights=False)
    assert nothing is None
    equal(output, problem.apply(module)[0])


def a_mask_of_integers_means_the_same(kind: Kind, problem: Problem) -> None:
    module = kind.make(problem)
    integers = replace(problem, mask=problem.visible.to(torch.int64) * 7)
    for actual, expected in zip(integers.apply(module), problem.apply(module), strict=True):
        equal(actual, expected)


def inputs_and_parameters_are_not_modified(kind: Kind, problem: Problem) -> None:
    module = kind.make(problem)
    tensors = [problem.query, problem.key, problem.value, problem.visible, *module.parameters()]
    before = [tensor.clone() for tensor in tensors]
    attributes = dict(vars(module))
    problem.apply(module)
    assert vars(module) == attributes
    for tensor, copy in zip(tensors, before, strict=True):
        assert torch.equal(tensor, copy)


PROPERTIES = [
    rows_sum_to_1_or_see_nothing_and_sum_to_0,
    hidden_weights_are_exactly_0,
    a_query_that_sees_nothing_gets_0,
    a_hidden_key_and_value_change_neither_output_nor_gradient,
    permuting_keys_with_their_values_changes_nothing,
    permuting_queries_permutes_outputs,
    batch_items_do_not_mix,
    the_output_is_the_same_without_weights,
    a_mask_of_integers_means_the_same,
    inputs_and_parameters_are_not_modified,
]
