"""Companion package of *Attention, step by step*: the attention that the book explains.

The names below are the public ones. What the chapters measure with is in the modules
:mod:`companion.recurrence`, :mod:`companion.recall`, :mod:`companion.plotting`,
:mod:`companion.evidence` and :mod:`companion.g2p`.
"""

from companion.additive import AdditiveAttention, additive_score
from companion.attention import attend, masked_softmax
from companion.masks import causal_mask, padding_mask, to_torch_attn_mask

__version__ = "0.1.0"

__all__ = [
    "AdditiveAttention",
    "additive_score",
    "attend",
    "causal_mask",
    "masked_softmax",
    "padding_mask",
    "to_torch_attn_mask",
]
