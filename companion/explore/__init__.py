"""Figures to play with, in a notebook and in the published page, without a server.

Each function returns an :class:`Explorer`. The chapters say what to try in them.
"""

from companion.explore.explorer import Explorer, plain_table
from companion.explore.gradient_decay import explore_gradient_decay
from companion.explore.heads_off import explore_heads_off
from companion.explore.order import explore_order
from companion.explore.scale import explore_scale
from companion.explore.weights import explore_weights

__all__ = [
    "Explorer",
    "explore_gradient_decay",
    "explore_heads_off",
    "explore_order",
    "explore_scale",
    "explore_weights",
    "plain_table",
]
