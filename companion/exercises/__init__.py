"""Checks of the exercises: each says whether an answer is right, and if not, which mistake it is.

An exercise's cell ends with a call such as ``check_half_life(my_answer)``. Left unfilled, it says
what to do. The usual wrong answers are recognised and named. Each chapter has a module.
"""

from companion.exercises.additive import check_chunks, check_masked_weights, check_weighted_sum
from companion.exercises.recurrence import check_ceiling, check_effective_weights, check_half_life
from companion.exercises.verdict import Verdict

__all__ = [
    "Verdict",
    "check_ceiling",
    "check_chunks",
    "check_effective_weights",
    "check_half_life",
    "check_masked_weights",
    "check_weighted_sum",
]
