"""One step's verdict: how its program ended, its output, its thresholds. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from nodeagent.active_tests import outputs
from nodeagent.active_tests.model import Step, TestMeasurement, Verdict
from nodeagent.active_tests.profile import StepSpec, Threshold
from nodeagent.sources.command import CommandStuck
from nodeagent.sources.command import Outcome as Ended

__all__ = ["evaluate"]

_NOT_FOUND = {2: "is not there", 13: "may not be executed"}
_MEANINGS: Mapping[str, Verdict] = {
    "passed": Verdict.PASSED,
    "failed": Verdict.FAILED,
    "inconclusive": Verdict.INCONCLUSIVE,
    "skipped": Verdict.SKIPPED,
}
_REASONS = {"passed": "", "skipped": "missing-tool"}


def evaluate(
    spec: StepSpec, ended: Ended | CommandStuck, *, models: Sequence[str], seconds: float
) -> Step:
    """The step's result. ``models`` are the names of the node's GPUs."""

    def step(
        outcome: Verdict, reason: str, message: str, found: Sequence[TestMeasurement] = ()
    ) -> Step:
        return Step(spec.name, outcome, reason, message[:1000], seconds, found, spec.required)

    if isinstance(ended, CommandStuck):
        return step(Verdict.INCONCLUSIVE, "stuck", f"an earlier run hangs: {ended.where}")
    if ended.broken:
        return step(Verdict.INCONCLUSIVE, "not-started", ended.broken)
    if ended.errno is not None:
        why = _NOT_FOUND.get(ended.errno, f"cannot be started (error {ended.errno})")
        return step(Verdict.SKIPPED, "missing-tool", f"{spec.command[0]} {why}")
    if ended.late is not None:
        # A diagnostic that hangs is the node's fault as often as its own: a person decides, unless
        # its process waits in the kernel and SIGKILL does not end it.
        stuck = f"; {ended.stuck} cannot be ended" if ended.stuck else ""
        outcome = Verdict.FAILED if ended.stuck else Verdict.INCONCLUSIVE
        where = ended.late or "unknown"
        return step(outcome, "timeout", f"no end within {spec.limit:g} s (waits: {where}){stuck}")
    if ended.flood:
        return step(Verdict.INCONCLUSIVE, "flood", "its output has no end; it was ended")
    if ended.signal is not None:
        return step(Verdict.INCONCLUSIVE, "killed", f"it ended by signal {ended.signal}")
    code = ended.exit if ended.exit is not None else -1
    reading = outputs.read(spec.output, code, ended.out)
    thresholds = [each for each in spec.thresholds if each.applies(models)]
    found = [_bounded(each, thresholds, models) for each in reading.measurements]
    outcome, reason, message = _ended(spec, code, reading, ended.err)
    if outcome is not Verdict.PASSED:
        return step(outcome, reason, message, found)
    for threshold in thresholds:
        trouble = _trouble(threshold, found)
        if trouble is not None:
            return step(Verdict.FAILED, *trouble, found)
    return step(outcome, reason, message or "ended with 0", found)


def _ended(
    spec: StepSpec, code: int, reading: outputs.Reading, err: str
) -> tuple[Verdict, str, str]:
    """By the profile's word on the exit code, then the output's, then 0 or not."""
    meaning = spec.exits.get(code)
    if meaning is not None and (reading.outcome is None or meaning != "passed"):
        reason = _REASONS.get(meaning, "exit-code")
        return _MEANINGS[meaning], reason, _words(code, reading.message, err)
    if reading.outcome is not None:
        return reading.outcome, reading.reason, reading.message
    if code:
        return Verdict.FAILED, "exit-code", _words(code, reading.message, err)
    return Verdict.PASSED, "", reading.message


def _words(code: int, message: str, err: str) -> str:
    text = " ".join(err.split())[:300] or message
    return f"ended with {code}: {text}" if text else f"ended with {code}"


def _bounded(
    found: TestMeasurement, thresholds: Sequence[Threshold], models: Sequence[str]
) -> TestMeasurement:
    """With the bounds that apply to it, and the GPU's model where all are of one."""
    model = models[0] if models and len(set(models)) == 1 else ""
    mine = [each for each in thresholds if each.measure == found.measure]
    lows = [each.minimum for each in mine if each.minimum is not None]
    highs = [each.maximum for each in mine if each.maximum is not None]
    return replace(
        found,
        model=model,
        minimum=max(lows, default=None),
        maximum=min(highs, default=None),
    )


def _trouble(threshold: Threshold, found: Sequence[TestMeasurement]) -> tuple[str, str] | None:
    """Why the threshold is not met. Without a measurement it is not met (CRE ADR-021)."""
    mine = [each for each in found if each.measure == threshold.measure]
    if not mine:
        message = (
            f"no {threshold.measure} was measured, and it has a threshold ({threshold.source})"
        )
        return "no-measurement", message
    for each in mine:
        of = f" of {each.component}" if each.component else ""
        if threshold.minimum is not None and each.value < threshold.minimum:
            bound = f"less than {threshold.minimum:g}"
        elif threshold.maximum is not None and each.value > threshold.maximum:
            bound = f"more than {threshold.maximum:g}"
        else:
            continue
        what = f"{threshold.measure}{of} is {each.value:g} {each.unit}, {bound}"
        return "threshold", f"{what} ({threshold.source})"
    return None
