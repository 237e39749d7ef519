"""The result of an active test: measurements, steps, and one verdict over them. Pure."""

import enum
from collections.abc import Sequence
from dataclasses import field

from nodeagent.dataclass import dataclass

__all__ = ["Step", "TestMeasurement", "TestReport", "Verdict", "overall"]


class Verdict(enum.Enum):
    """``INCONCLUSIVE``: it ran (or should have), and gives no verdict about the node."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"
    INCONCLUSIVE = "inconclusive"


@dataclass(frozen=True, slots=True)
class TestMeasurement:
    """One number with its unit. ``minimum`` and ``maximum`` are the bounds that applied to it."""

    # pytest would collect it by its name.
    __test__ = False

    measure: str
    value: float
    unit: str = ""
    component: str = ""
    minimum: float | None = None
    maximum: float | None = None
    model: str = ""


@dataclass(frozen=True, slots=True)
class Step:
    """One program's result. ``required``: without it the whole test has no verdict."""

    name: str
    outcome: Verdict
    reason: str = ""
    message: str = ""
    seconds: float = 0.0
    measurements: Sequence[TestMeasurement] = field(default_factory=tuple)
    required: bool = False


@dataclass(frozen=True, slots=True)
class TestReport:
    """A whole test."""

    # pytest would collect it by its name.
    __test__ = False

    profile: str
    outcome: Verdict
    reason: str
    message: str
    steps: Sequence[Step]


def overall(profile: str, steps: Sequence[Step]) -> TestReport:
    """The verdict over all steps.

    One failed step fails the test, whatever else is missing. Then a step without a verdict, or one
    that is required and was skipped, leaves the test without one. A test of which no step ran has
    no verdict: it must not read as passed.
    """
    for step in steps:
        if step.outcome is Verdict.FAILED:
            return _report(profile, Verdict.FAILED, step, steps)
    for step in steps:
        if step.outcome is Verdict.INCONCLUSIVE or (
            step.outcome is Verdict.SKIPPED and step.required
        ):
            return _report(profile, Verdict.INCONCLUSIVE, step, steps)
    passed = [step.name for step in steps if step.outcome is Verdict.PASSED]
    if not passed:
        why = "; ".join(f"{step.name}: {step.message or step.reason}" for step in steps)
        return TestReport(
            profile, Verdict.INCONCLUSIVE, "nothing-ran", f"no step ran: {why}", steps
        )
    return TestReport(profile, Verdict.PASSED, "", f"passed: {', '.join(passed)}", steps)


def _report(profile: str, outcome: Verdict, step: Step, steps: Sequence[Step]) -> TestReport:
    return TestReport(profile, outcome, step.reason, f"{step.name}: {step.message}", steps)
