"""Run the checks on attentions of published packages, and print what they find as a Markdown table.

Not a test: the packages are no requirements of this project. CONTRIBUTING.md says how to install
them beside it; then ``python -m tests.checks.third_party``. A package that is missing is left out.
"""

import sys
import types
from collections.abc import Callable, Iterator
from importlib.machinery import ModuleSpec
from importlib.metadata import version
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from companion.checks import Report, check_attention, hugging_face, torch_attention

D_MODEL, NUM_HEADS, DROPOUT = 64, 4, 0.1
SIZES: dict[str, Any] = {"query_dim": D_MODEL, "num_heads": NUM_HEADS}
SELF: dict[str, Any] = {**SIZES, "kind": "self"}
Case = tuple[str, Callable[..., Any], dict[str, Any]]


def of_torch() -> Iterator[Case]:
    """The attentions of torch itself."""
    module = nn.MultiheadAttention(D_MODEL, NUM_HEADS, DROPOUT, batch_first=True)
    yield "`MultiheadAttention`, with weights", module, {}
    quiet = torch_attention(module, need_weights=False)
    yield "`MultiheadAttention`, without weights", quiet, {**SIZES, "fully_masked": "zero"}
    fused = F.scaled_dot_product_attention
    yield "`scaled_dot_product_attention`, mask", fused, {"fully_masked": "zero"}

    def causal(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return fused(query, key, value, is_causal=True)

    yield "`scaled_dot_product_attention`, `is_causal=True`", causal, {"causal": True}


def of_transformers() -> Iterator[Case]:
    """BERT's and GPT-2's self-attention, in both ways in which the package computes them."""
    from transformers import BertConfig, GPT2Config
    from transformers.models.bert.modeling_bert import BertSelfAttention
    from transformers.models.gpt2.modeling_gpt2 import GPT2Attention

    for way in ("eager", "sdpa"):
        bert = BertConfig(hidden_size=D_MODEL, num_attention_heads=NUM_HEADS)
        bert._attn_implementation = way
        yield f"`BertSelfAttention`, {way}", hugging_face(BertSelfAttention(bert)), SELF
        gpt2 = GPT2Config(n_embd=D_MODEL, n_head=NUM_HEADS)
        gpt2._attn_implementation = way
        layer = hugging_face(GPT2Attention(gpt2, layer_idx=0))
        yield f"`GPT2Attention`, {way}, mask given", layer, SELF
        yield (
            f"`GPT2Attention`, {way}, no mask given",
            without_mask(layer),
            {**SELF, "causal": True},
        )


def without_mask(layer: Callable[..., Any]) -> Callable[..., Any]:
    """Call a layer as one would that is causal by itself."""
    return lambda x: layer(x)


def of_x_transformers() -> Iterator[Case]:
    """The package's one attention, plain and causal, in both ways in which it computes them."""
    from x_transformers.x_transformers import Attention

    def with_weights(module: nn.Module) -> Callable[..., Any]:
        def attention(x: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
            mask = None if mask is None else mask[:, None]
            output, more = module(x, attn_mask=mask, return_intermediates=True)
            return output, more.post_softmax_attn

        return attention

    for flash in (False, True):
        for causal in (False, True):
            options = {"heads": NUM_HEADS, "dim_head": D_MODEL // NUM_HEADS, "dropout": DROPOUT}
            module = Attention(D_MODEL, causal=causal, flash=flash, **options)
            name = "`Attention`" + ", causal" * causal + ", flash" * flash
            yield name, with_weights(module), {**SELF, "causal": causal}


def of_labml() -> Iterator[Case]:
    """The annotated implementation, which is sequence first and has the batch last in its mask."""
    from labml_nn.transformers.mha import MultiHeadAttention

    module = MultiHeadAttention(NUM_HEADS, D_MODEL, DROPOUT)

    def attention(
        query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        query, key, value = (x.transpose(0, 1) for x in (query, key, value))
        mask = None if mask is None else mask.permute(1, 2, 0)
        output = module(query=query, key=key, value=value, mask=mask)
        return output.transpose(0, 1), module.attn.permute(2, 3, 0, 1)

    yield "`MultiHeadAttention`", attention, SIZES


def of_d2l() -> Iterator[Case]:
    """The three attentions of the book, which take valid lengths."""
    # The package imports torchvision, which its attentions do not use.
    name = "torchvision"
    if name not in sys.modules:
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].__spec__ = ModuleSpec(name, None)
        sys.modules[name].transforms = None  # type: ignore[attr-defined]
    from d2l import torch as d2l

    def masked(module: nn.Module) -> Callable[..., Any]:
        attention: Any = getattr(module, "attention", module)

        def call(
            query: Tensor, key: Tensor, value: Tensor, valid_lens: Tensor | None = None
        ) -> tuple[Tensor, Tensor]:
            output = module(query, key, value, valid_lens)
            weights = attention.attention_weights
            return output, weights.reshape(len(query), -1, *weights.shape[1:])

        inputs = [torch.zeros(1, 1, D_MODEL)] * 3
        call(*inputs)  # makes the lazy parameters
        return call

    options: dict[str, Any] = {"query_dim": D_MODEL, "mask_polarity": "lengths"}
    for name, module in (
        ("DotProductAttention", d2l.DotProductAttention(DROPOUT)),
        ("AdditiveAttention", d2l.AdditiveAttention(16, DROPOUT)),
        ("MultiHeadAttention", d2l.MultiHeadAttention(D_MODEL, NUM_HEADS, DROPOUT)),
    ):
        heads = NUM_HEADS if name == "MultiHeadAttention" else 1
        yield f"`{name}`", masked(module), {**options, "num_heads": heads}


PACKAGES = {
    "torch": of_torch,
    "transformers": of_transformers,
    "x-transformers": of_x_transformers,
    "labml-nn": of_labml,
    "d2l": of_d2l,
}


def row(package: str, attention: str, report: Report) -> str:
    """One row of the table."""
    failed = "; ".join(f"`{name}`: {seen}" for name, seen in report.findings.items())
    blind = report["fully_masked_rows"].seen
    counts = f"{len(report.passed)} | {len(report.skipped)}"
    return f"| {package} | {attention} | {counts} | {failed or 'none'} | {blind} |"


def main() -> None:
    """Print one row for each attention."""
    torch.manual_seed(0)
    print("| package | attention | passed | skipped | failed | a query that may see nothing |")
    print("|---|---|---|---|---|---|")
    for package, cases in PACKAGES.items():
        try:
            found = list(cases())
        except ImportError as error:
            print(f"{package} is left out: {error}", file=sys.stderr)
            continue
        for name, attention, options in found:
            release = version(package).partition("+")[0]
            print(row(f"{package} {release}", name, check_attention(attention, **options)))


if __name__ == "__main__":
    main()
