"""Checks of the exercises: each says whether an answer is right, and if not, which mistake it is.

An exercise's cell ends with a call such as ``check_half_life(my_answer)``. Left unfilled, it says
what to do. The usual wrong answers are recognised and named. Each chapter has a module.
"""

from companion.exercises.additive import check_chunks, check_masked_weights, check_weighted_sum
from companion.exercises.dot_product import (
    check_even_keys,
    check_nearest_key,
    check_product_attention,
)
from companion.exercises.multi_head import (
    check_head_contributions,
    check_multi_head,
    check_split_heads,
)
from companion.exercises.recurrence import check_ceiling, check_effective_weights, check_half_life
from companion.exercises.scaled_dot_product import (
    check_scaled_attention,
    check_score_spread,
    check_softmax_backward,
)
from companion.exercises.self_attention import (
    check_decoder_layer,
    check_four_steps,
    check_leak_test,
)
from companion.exercises.verdict import Verdict

__all__ = [
    "Verdict",
    "check_ceiling",
    "check_chunks",
    "check_decoder_layer",
    "check_effective_weights",
    "check_even_keys",
    "check_four_steps",
    "check_half_life",
    "check_head_contributions",
    "check_leak_test",
    "check_masked_weights",
    "check_multi_head",
    "check_nearest_key",
    "check_product_attention",
    "check_scaled_attention",
    "check_score_spread",
    "check_softmax_backward",
    "check_split_heads",
    "check_weighted_sum",
]
