"""What a check of an exercise says, and what all the checks share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Answer = Callable[..., Any]


@dataclass(frozen=True)
class Verdict:
    """What a check found: ``right`` is True, False, or None while the cell is unfilled."""

    right: bool | None
    message: str

    def __repr__(self) -> str:
        return f"{ {True: 'Right', False: 'Not yet', None: 'To do'}[self.right] }: {self.message}"


def unfilled(answer: object) -> bool:
    """Whether a cell was left as it was: it returned nothing, or an ellipsis."""
    return answer is None or answer is ...
