"""What a check is, and the order in which checks run."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from companion.checks.probe import Finding, Probe, Skip
from companion.checks.report import Result, Status


@dataclass(frozen=True)
class Check:
    """A property of any right attention, and how to measure it.

    Attributes:
        name: of the check, and of the function that makes it.
        property: what holds, one sentence: the first line of that function's docstring.
        hint: the usual mistake behind a failure, and its fix.
        requires: checks without which this one says nothing: if one of them fails, this one is
            skipped, so that a report names the mistake and not its consequences.
        measure: the function; returns a finding, or raises :class:`~companion.checks.probe.Skip`.
    """

    name: str
    property: str
    hint: str
    requires: tuple[str, ...]
    measure: Callable[[Probe], Finding]

    def run(self, probe: Probe) -> Result:
        """Measure; an exception of the attention's own is a failure, and shown as one."""
        try:
            finding = self.measure(probe)
        except Skip as reason:
            return self.skip(str(reason))
        except Exception as error:
            finding = Finding(False, f"raised {error_text(error)}")
        hint = self.hint if finding.hint is None else finding.hint
        status: Status = "passed" if finding.holds else "failed"
        return Result(self.name, status, self.property, finding.seen, hint)

    def skip(self, reason: str) -> Result:
        """The result of a check that is not made."""
        return Result(self.name, "skipped", self.property, reason, self.hint)


def check(
    hint: str, *, requires: tuple[str, ...] = ("batch_items_do_not_mix",)
) -> Callable[[Callable[[Probe], Finding]], Check]:
    """Make a check of a function; its name and the first line of its docstring are the check's."""

    def decorate(measure: Callable[[Probe], Finding]) -> Check:
        summary = (inspect.getdoc(measure) or "").partition("\n")[0]
        return Check(measure.__name__, summary, hint, requires, measure)

    return decorate


def run_checks(checks: Iterable[Check], make_probe: Callable[[], Probe]) -> tuple[Result, ...]:
    """Run checks in order, skipping those that rest on one that failed."""
    results: list[Result] = []
    broken: dict[str, str] = {}  # check that says nothing -> the failed check at its root
    for one in checks:
        root = next((broken[name] for name in one.requires if name in broken), None)
        if root is None:
            result = one.run(make_probe())
        else:
            result = one.skip(f"says nothing until {root} passes")
        if result.status == "failed":
            broken[one.name] = one.name
        elif root is not None:
            broken[one.name] = root
        results.append(result)
    return tuple(results)


def error_text(error: BaseException) -> str:
    """An exception on one short line."""
    text = " ".join(str(error).split()) or "without a message"
    return f"{type(error).__name__}: {text if len(text) <= 120 else text[:117] + '...'}"
