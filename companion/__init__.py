"""Companion package of *Attention, step by step*: the attention that the book explains.

The names below are the public ones. What the chapters measure with is in the modules
:mod:`companion.recurrence`, :mod:`companion.recall`, :mod:`companion.plotting`,
:mod:`companion.evidence` and :mod:`companion.g2p`.
"""

from companion.additive import AdditiveAttention, additive_score
from companion.attention import attend, fused_attention, masked_softmax
from companion.dot_product import DotProductAttention, dot_product_score
from companion.masks import causal_mask, padding_mask, to_torch_attn_mask
from companion.multi_head import MultiHeadAttention, merge_heads, split_heads, without_heads
from companion.positional import SinusoidalPositionalEncoding, sinusoidal_encoding
from companion.scaled_dot_product import ScaledDotProductAttention, scaled_dot_product_score
from companion.self_attention import SelfAttention

__version__ = "0.1.0"

__all__ = [
    "AdditiveAttention",
    "DotProductAttention",
    "MultiHeadAttention",
    "ScaledDotProductAttention",
    "SelfAttention",
    "SinusoidalPositionalEncoding",
    "additive_score",
    "attend",
    "causal_mask",
    "dot_product_score",
    "fused_attention",
    "masked_softmax",
    "merge_heads",
    "padding_mask",
    "scaled_dot_product_score",
    "sinusoidal_encoding",
    "split_heads",
    "to_torch_attn_mask",
    "without_heads",
]
