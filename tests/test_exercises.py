"""Each check accepts a right answer, names typical mistakes, and says what to do when unfilled.

The answers of a chapter's exercises are in ``tests/exercises/``: ``RIGHT`` maps each check to an
answer that must pass, ``WRONG`` lists (check, answer, words that the message must contain).
"""

import pytest

from companion import exercises
from tests.exercises import (
    additive,
    dot_product,
    multi_head,
    recurrence,
    scaled_dot_product,
    self_attention,
)

CHAPTERS = [recurrence, additive, dot_product, scaled_dot_product, self_attention, multi_head]
RIGHT = {check: answer for chapter in CHAPTERS for check, answer in chapter.RIGHT.items()}
WRONG = [case for chapter in CHAPTERS for case in chapter.WRONG]


def test_every_check_has_a_right_answer_and_two_wrong_ones():
    checks = {getattr(exercises, name) for name in exercises.__all__} - {exercises.Verdict}
    assert set(RIGHT) == checks
    for check in checks:
        assert sum(case[0] is check for case in WRONG) >= 2, check.__name__


@pytest.mark.parametrize("check", RIGHT, ids=lambda check: check.__name__)
def test_right_answers_pass(check):
    verdict = check(RIGHT[check])
    assert verdict.right, verdict


@pytest.mark.parametrize(("check", "answer", "mistake"), WRONG)
def test_typical_mistakes_are_named(check, answer, mistake):
    verdict = check(answer)
    assert verdict.right is False
    assert mistake in verdict.message


@pytest.mark.parametrize("check", RIGHT, ids=lambda check: check.__name__)
@pytest.mark.parametrize("unfilled", [None, ...])
def test_unfilled_cells_say_what_to_do(check, unfilled):
    verdict = check(lambda *_: unfilled)
    assert verdict.right is None
    assert repr(verdict).startswith("To do: return ")
