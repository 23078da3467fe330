"""Checks for any attention: what holds for every right one, and the mistake where it does not.

>>> import torch
>>> def attention(query, key, value, mask=None):
...     scores = query @ key.mT
...     if mask is not None:
...         scores = scores.masked_fill(~mask, -torch.inf)
...     return scores.softmax(-1) @ value
>>> report = check_attention(attention)
>>> report.failed
('scale', 'fully_masked_rows')
>>> report["scale"].seen
'scores = 1 × q·k, expected 0.25: not divided at all'

In a test, :func:`assert_attention`; in a terminal, ``python -m companion.checks package.module:Name
--arg d_model=64``.
"""

from companion.checks.adapters import hugging_face, sequence_first, torch_attention
from companion.checks.battery import CHECKS, assert_attention, check_attention
from companion.checks.registry import Check
from companion.checks.report import AttentionCheckError, Report, Result

__all__ = [
    "CHECKS",
    "AttentionCheckError",
    "Check",
    "Report",
    "Result",
    "assert_attention",
    "check_attention",
    "hugging_face",
    "sequence_first",
    "torch_attention",
]
