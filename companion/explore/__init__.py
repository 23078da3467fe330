"""Figures to play with, in a notebook and in the published page, without a server.

Each function returns an :class:`Explorer`. The chapters say what to try in them.
"""

from companion.explore.explorer import Explorer, plain_table
from companion.explore.weights import explore_weights

__all__ = ["Explorer", "explore_weights", "plain_table"]
