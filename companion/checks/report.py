"""What the checks found: one :class:`Result` a check, and the :class:`Report` that shows them.

What is shown does not depend on the machine: a number that passes is shown as its bound, one that
fails is rounded to two digits.
"""

from __future__ import annotations

import html
import textwrap
from dataclasses import dataclass
from typing import Literal, TypeAlias

Status: TypeAlias = Literal["failed", "passed", "skipped"]
STATUSES: tuple[Status, ...] = ("failed", "passed", "skipped")


class AttentionCheckError(AssertionError):
    """An attention failed a check; the message says which, what was seen and the usual mistake."""


@dataclass(frozen=True)
class Result:
    """What one check found.

    Attributes:
        name: of the check.
        status: ``"passed"``, ``"failed"`` or ``"skipped"``.
        property: what holds for any right attention, one sentence.
        seen: the number that was measured, or the reason why nothing could be.
        hint: the usual mistake behind a failure, and its fix.
    """

    name: str
    status: Status
    property: str
    seen: str
    hint: str = ""


@dataclass(frozen=True, repr=False)
class Report:
    """The results of all checks on one attention.

    Shown as a table in a notebook and as text in a terminal; see :meth:`to_markdown` for the third
    form. Failures come first, each with its hint.

    Attributes:
        subject: the name of what was checked.
        interface: how it was called, one line.
        results: one a check, in the order in which they ran.

    >>> report = Report("mine", "self-attention", (Result("scale", "passed", "...", "0.25"),))
    >>> report.passed, report.failed
    (('scale',), ())
    """

    subject: str
    interface: str
    results: tuple[Result, ...]

    @property
    def failed(self) -> tuple[str, ...]:
        """Names of the checks that failed."""
        return self._names("failed")

    @property
    def passed(self) -> tuple[str, ...]:
        """Names of the checks that passed."""
        return self._names("passed")

    @property
    def skipped(self) -> tuple[str, ...]:
        """Names of the checks that could not be made; ``report[name].seen`` says why."""
        return self._names("skipped")

    @property
    def findings(self) -> dict[str, str]:
        """What each check that failed saw, by name; empty where none failed."""
        return {name: self[name].seen for name in self.failed}

    def __getitem__(self, name: str) -> Result:
        """The result of one check.

        Raises:
            KeyError: there is no such check.
        """
        for result in self.results:
            if result.name == name:
                return result
        names = ", ".join(result.name for result in self.results)
        raise KeyError(f"no check is named {name!r}; the checks are {names}")

    def raise_if_failed(self) -> None:
        """Do nothing if every check that could be made passed.

        Raises:
            AttentionCheckError: a check failed; the message carries property, number and hint.
        """
        if self.failed:
            raise AttentionCheckError(self._failures_text())

    def to_markdown(self) -> str:
        """The report as a Markdown table, for an issue or a pull request."""
        lines = [
            f"**{_markdown(self.subject)}**: {self._counts()} ({_markdown(self.interface)})",
            "",
            "| check | result | seen | usual mistake |",
            "|---|---|---|---|",
        ]
        for result in self._sorted():
            hint = result.hint if result.status == "failed" else ""
            cells = (f"`{result.name}`", result.status, _markdown(result.seen), _markdown(hint))
            lines.append("| " + " | ".join(cells) + " |")
        return "\n".join(lines)

    def __repr__(self) -> str:
        width = max((len(result.name) for result in self.results), default=0)
        lines = [f"{self.subject}: {self._counts()}", f"({self.interface})", ""]
        for result in self._sorted():
            lines.append(f"{result.status:<7}  {result.name:<{width}}  {result.seen}")
            if result.status == "failed":
                lines += _wrapped(result.property, 9) + _wrapped(f"Hint: {result.hint}", 9)
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return (
            f'<div class="check-report"><p class="check-report-title">'
            f"<strong>{html.escape(self.subject)}</strong>: {self._counts()}</p>"
            f'<p class="check-report-interface">{html.escape(self.interface)}</p>'
            '<table class="check-report-table"><thead><tr><th scope="col">check</th>'
            '<th scope="col">result</th><th scope="col">seen</th></tr></thead><tbody>'
            f"{''.join(_html_row(result) for result in self._sorted())}</tbody></table></div>"
        )

    def _names(self, status: Status) -> tuple[str, ...]:
        return tuple(result.name for result in self.results if result.status == status)

    def _sorted(self) -> list[Result]:
        return sorted(self.results, key=lambda result: STATUSES.index(result.status))

    def _counts(self) -> str:
        return f"{len(self.passed)} passed, {len(self.failed)} failed, {len(self.skipped)} skipped"

    def _failures_text(self) -> str:
        lines = [f"{self.subject} fails {len(self.failed)} of {len(self.results)} checks"]
        lines.append(f"({self.interface})")
        for result in self.results:
            if result.status == "failed":
                lines += ["", f"{result.name}: {result.property}", f"    seen: {result.seen}"]
                lines += _wrapped(f"hint: {result.hint}", 4)
        return "\n".join(lines)


def _wrapped(text: str, indent: int) -> list[str]:
    margin = " " * indent
    return textwrap.wrap(text, 98, initial_indent=margin, subsequent_indent=margin + "  ")


def _markdown(text: str) -> str:
    for mark in "\\`*_|<":
        text = text.replace(mark, "\\" + mark)
    return " ".join(text.split())


def _html_row(result: Result) -> str:
    seen = html.escape(result.seen)
    if result.status == "failed":
        seen += (
            f'<p class="check-report-property">{html.escape(result.property)}</p>'
            f'<p class="check-report-hint">Hint: {html.escape(result.hint)}</p>'
        )
    return (
        f'<tr class="check-report-{result.status}"><th scope="row">'
        f'<code title="{html.escape(result.property)}">{html.escape(result.name)}</code></th>'
        f"<td>{result.status}</td><td>{seen}</td></tr>"
    )
