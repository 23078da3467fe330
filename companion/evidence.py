"""Claims, closed by numbers: the card that a chapter shows where it settles a claim.

A chapter calls :func:`claim` with values that it has just computed. The card is shown in the
notebook, nbval compares it, and the page "Claims and evidence" collects all cards.
"""

from __future__ import annotations

import html
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeAlias, get_args

Verdict: TypeAlias = Literal["holds", "holds when", "misleading"]
MIME_TYPE = "application/vnd.companion.claim+json"


@dataclass(frozen=True)
class Claim:
    """One claim of the book, what was measured, and the verdict; see :func:`claim`."""

    number: int
    claim: str
    measured: dict[str, str]
    verdict: Verdict
    because: str

    @property
    def verdict_text(self) -> str:
        """The verdict as a sentence."""
        if self.verdict == "holds":
            return f"Holds: {self.because}." if self.because else "Holds."
        joint = " because " if self.verdict == "misleading" else " "
        return f"{self.verdict.capitalize()}{joint}{self.because}."

    def __repr__(self) -> str:
        rows = [f"  {label}: {value}" for label, value in self.measured.items()]
        return "\n".join([f"Claim {self.number}: {self.claim}", *rows, self.verdict_text])

    def _repr_html_(self) -> str:
        rows = "".join(
            f'<tr><th scope="row">{html.escape(label)}</th><td>{html.escape(value)}</td></tr>'
            for label, value in self.measured.items()
        )
        return (
            f'<div class="claim-card"><p class="claim-title">Claim {self.number}: '
            f'{html.escape(self.claim)}</p><table class="claim-measured"><tbody>{rows}</tbody>'
            f'</table><p class="claim-verdict">{html.escape(self.verdict_text)}</p></div>'
        )

    def _repr_mimebundle_(self, **_: Any) -> dict[str, Any]:
        return {
            "text/plain": repr(self),
            "text/html": self._repr_html_(),
            # A list of pairs: a notebook file sorts the keys of a mapping.
            MIME_TYPE: asdict(self) | {"measured": [list(row) for row in self.measured.items()]},
        }


def claim(
    number: int, text: str, *, measured: Mapping[str, str], verdict: Verdict, because: str = ""
) -> Claim:
    """Close a claim: what was said, what was measured, and whether it holds.

    Args:
        number: of the claim in "Claims and evidence", 1 to 18.
        text: the claim as it is usually made, one sentence.
        measured: ``{what: value}``, the values already formatted to the digits that the experiment
            supports.
        verdict: ``"holds"``, ``"holds when"`` or ``"misleading"``.
        because: completes the sentence "Holds when ..." or "Misleading because ...", without a
            full stop; optional for a claim that holds.

    Raises:
        TypeError: a measured value that is not a string.
        ValueError: a number out of range, no measured value, an unknown verdict, or a verdict other
            than "holds" without a reason.

    >>> claim(1, "Water is wet.", measured={"drops": "3"}, verdict="holds when", because="liquid")
    Claim 1: Water is wet.
      drops: 3
    Holds when liquid.
    """
    if not 1 <= number <= 18:
        raise ValueError(f"number must be from 1 to 18, got {number}")
    if not measured:
        raise ValueError("a claim needs at least one measured value")
    if not all(isinstance(value, str) for value in measured.values()):
        raise TypeError("measured values must be strings, already rounded: f'{value:.2f}'")
    if verdict not in get_args(Verdict):
        raise ValueError(f"verdict must be one of {', '.join(get_args(Verdict))}, got {verdict!r}")
    if verdict != "holds" and not because:
        raise ValueError(f"the verdict {verdict!r} needs a reason: because=...")
    return Claim(number, text, dict(measured), verdict, because)
