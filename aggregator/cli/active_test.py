"""`sickbay test`: have a node tested, in quarantine, new, or in service; show its past tests.

Exit codes: 0 passed, 1 failed, 2 the command line makes no sense, 3 no verdict.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from functools import partial

from aggregator.cli.attempts import BUSY, attempt_answer
from aggregator.cli.confirm import confirm_effect
from aggregator.cli.errors import CommandFailed, Unreached, UsageError
from aggregator.cli.options import flags_of
from aggregator.cli.output import Answer, print_answer, unwritten_exits
from aggregator.cli.past import transitions
from aggregator.cli.read_commands import node_answer
from aggregator.cli.repair import effect, operation_of, require_accepted
from aggregator.cli.screen import Screen
from aggregator.cli.source import Source, open_source
from aggregator.cli.text_table import clean, printable, table
from aggregator.cli.write_commands import open_actions, report
from aggregator.cluster.node_names import TEST_CONDITION
from aggregator.cluster.operations import attempt_of
from aggregator.cluster.port import Operation, RepairAttempt
from aggregator.policy.repairs import TEST
from aggregator.rfc3339 import write_time
from sickbay.json_text import read_json

#: Measure, component, value, unit.
Row = tuple[str, str, float, str]
PASSED, FAILED, NO_VERDICT = 0, 1, 3
_CODES = {"Succeeded": PASSED, "Failed": FAILED}
_EVERY = 1.0
#: Seconds until a test's end is not waited for any more.
_WAITS = 7200.0
#: Seconds without any answer of the cluster after which the wait ends.
_SILENT = 200.0
#: Seconds within which the history has the end of a test.
_RECORDED_WITHIN = 5.0
_UNSEEN = "the aggregator has not reported on it yet; it does within three minutes"
_GONE = "the request is gone: a person has cancelled it"
#: Pages of transitions that are looked through for earlier tests.
_MOST_PAGES = 10
#: Other nodes whose pool is looked up.
_MOST_NODES = 200


def test(options: argparse.Namespace) -> None:
    """With --history it reads; else it writes a request on the node, and waits for the verdict."""
    if options.history:
        for name, given in _about_a_new_test(options).items():
            if given:
                raise UsageError(f"{name} is about a new test; --history shows those of before")
        with open_source(options) as source:
            answer = history_of(source, options.name)
        print_answer(options, answer, history_lines)
        return
    waits = options.wait and not options.dry_run
    with unwritten_exits(NO_VERDICT) if waits else nullcontext():
        _confirm(options)


def _about_a_new_test(options: argparse.Namespace) -> dict[str, bool]:
    """The options that --history would leave without effect, and whether each is given."""
    return {
        "--profile": options.profile is not None,
        "--yes": options.yes,
        "--no-wait": not options.wait,
        "--timeout": options.timeout is not None,
        "--dry-run": bool(options.dry_run),
    }


def _confirm(options: argparse.Namespace) -> None:
    if options.timeout is not None and (options.dry_run or not options.wait):
        given = "--dry-run" if options.dry_run else "--no-wait"
        raise UsageError(f"--timeout is about the wait for the verdict, and {given} does not wait")
    with open_source(options) as source:
        known = node_answer(source, options.name)
        require_accepted(options, known, TEST)
        _require_profile(options, known)
        in_quarantine = known["quarantine"] is not None
        if in_quarantine:
            question = effect(known, TEST)
        elif _is_new(known):
            question = _effect_on_new(options, known)
        else:
            question = _effect_in_service(options, known)
        uid = known["quarantine"].get("uid", "") if in_quarantine else ""
        ident, spec = operation_of(options, TEST, uid, options.profile or "")
        with open_actions(options) as actions:
            confirm_effect(options, "a test", question)
            requested = actions.request_operation(ident, spec)
            if options.dry_run or not options.wait:
                report(options, requested)
                return
            print(printable(requested), file=sys.stderr)
            commands = _commands(options, in_quarantine=in_quarantine)
            read = partial(actions.operation, ident)
            try:
                attempt = _wait(read, options.name, options.timeout or _WAITS, commands)
            except KeyboardInterrupt:
                _note(options.name, f"the wait has ended, and the request stays: {commands.show}")
                raise
        if attempt is not None:
            attempt["measurements"] = _measurements(source, options.name, attempt["operation"])
    result = {"node": options.name, "request": ident, "test": attempt}
    print_answer(options, result, result_lines)
    sys.stdout.flush()
    sys.exit(NO_VERDICT if attempt is None else _CODES.get(attempt["state"], NO_VERDICT))


def _is_new(known: Answer) -> bool:
    """Whether the node has the startup taint, and is in no quarantine."""
    found = known.get("new_node")
    return known["quarantine"] is None and found is not None and bool(found["tainted"])


def _effect_on_new(options: argparse.Namespace, known: Answer) -> str:
    found = known["new_node"]
    after = ""
    if found["test"] is not None and found["test"]["state"] in BUSY:
        after = "; a test of it is under way, and this one follows the end of that"
    opens = f"Its pass removes the taint {found['taint']}."
    if not found["removes_taint"]:
        opens = (
            f"Its pass sets the condition {TEST_CONDITION}, by which another controller removes "
            f"the taint {found['taint']}."
        )
    room = "once repair.new_nodes.concurrent has room"
    return f"{options.name}: a test is ordered {room}{after}. {opens}"


def _effect_in_service(options: argparse.Namespace, known: Answer) -> str:
    profile = options.profile or known["operations"]["profile"]
    return (
        f"{options.name} is in service: test {profile} is ordered as a Job of the lowest priority "
        "once repair.idle_nodes.concurrent and its failure domain have room. The test is refused "
        "if the node has work, and work that comes later ends it: no pod is evicted for it."
    )


def _require_profile(options: argparse.Namespace, known: Answer) -> None:
    """Raise UsageError where no profile is named, or the configuration is known to lack it."""
    operations = known.get("operations")
    if operations is None:  # the aggregator does not answer
        return
    profile, profiles = options.profile or operations["profile"], operations["profiles"]
    if profile and (profiles is None or profile in profiles):
        return
    problem = "repair.verify of the aggregator names no profile"
    if profile:
        problem = f"the Job of the aggregator's repairer of tests has no profile {profile}"
    expected = ", ".join(profiles or ["sickbay-agent test --list on the node"])
    raise UsageError(f"{options.name}: {problem}; expected --profile, one of: {expected}")


# -- the wait for its verdict ------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Commands:
    """The commands for a test whose end is not waited for any more: they show it and cancel it."""

    show: str
    end: str


def _commands(options: argparse.Namespace, *, in_quarantine: bool) -> _Commands:
    node, how = options.name, flags_of(options)
    reads = how if options.local is None or in_quarantine else ""
    return _Commands(
        show=f"sickbay {'repair' if in_quarantine else 'node'} {node}{reads}",
        end=f"sickbay repair {node} --cancel{how}",
    )


def _wait(
    read: Callable[[], Operation | None],
    node: str,
    timeout: float,
    commands: _Commands,
    clock: Callable[[], float] = time.monotonic,
) -> Answer | None:
    """The ended test, or None without an end, and stderr states why. ``read``: the operation that
    requests it, into which the aggregator writes why it waits, and how it ends.
    """
    end, shown = clock() + timeout, ""
    answered_at = clock()
    last: RepairAttempt | None = None
    while True:
        try:
            found = read()
        except CommandFailed as error:  # the connection may be lost for a time
            now = f"{error}; trying again"
            if clock() - answered_at >= _SILENT:
                _note(node, str(error))
                return None
        else:
            if found is None:
                _note(node, _GONE)
                return None
            answered_at, last = clock(), attempt_of(found)
            if not found.is_open:
                return attempt_answer(last)
            now = _progress(last)
        if now != shown:
            shown = now
            _note(node, now)
        if clock() >= end:
            _note(node, f"no end within {timeout:g} s; {_why_no_end(last, commands)}")
            return None
        time.sleep(_EVERY)


def _note(node: str, text: str) -> None:
    print(printable(f"{node}: {text}"), file=sys.stderr, flush=True)


def _progress(test: RepairAttempt) -> str:
    """How far it is, in words."""
    if test.state in BUSY:
        return f"test {test.state}, until {write_time(test.deadline_at)} at the latest"
    return f"the test has not begun: {test.message or _UNSEEN}"


def _why_no_end(last: RepairAttempt | None, commands: _Commands) -> str:
    """The state of the test after the wait. ``last``: None where no answer came at all."""
    if last is None:
        return (
            f"the cluster gave no answer, so that the test may have begun or not: {commands.show}"
        )
    if last.state in BUSY:
        return (
            f"the test has begun, and goes on: {commands.show}. To end it without a verdict: "
            f"{commands.end}"
        )
    return (
        f"{_progress(last)}. The request stays, and the test may begin later: {commands.show}. To "
        f"withdraw the request: {commands.end}"
    )


def _measurements(source: Source, node: str, operation: str) -> list[Row]:
    """The measurements of a test, as the history has them: it records the end a moment later."""
    end = time.monotonic() + _RECORDED_WITHIN
    with suppress(CommandFailed):
        while True:
            for one in _tests(source, node=node):
                if one["operation"] == operation:
                    return _measured(one["measurements"])
            if time.monotonic() >= end:
                break
            time.sleep(_EVERY)
    return []


def result_lines(answer: Answer, screen: Screen) -> Iterator[str]:
    one = answer["test"]
    if one is None:
        yield f"{clean(answer['node'])}: no verdict"
        return
    named = " ".join(filter(None, (one["repair"], one.get("profile", ""))))
    yield f"{clean(answer['node'])}: {clean(named)} {clean(one['state'])}: {clean(one['message'])}"
    if one["measurements"]:
        rows = [[str(cell) for cell in row] for row in one["measurements"]]
        yield table(["MEASURE", "OF", "VALUE", "UNIT"], rows, screen.width)


# -- earlier tests ----------------------------------------------------------------------


def history_of(source: Source, node: str) -> Answer:
    """The node's tests with their measurements, and next to each measure what its pool has had."""
    pool = source.get("nodes", node).get("pool", "")
    mine = list(_tests(source, node=node, pages=_MOST_PAGES))
    pools: dict[str, str] = {node: pool}
    values: dict[tuple[str, str], list[float]] = {}
    for one in _tests(source, pages=_MOST_PAGES):
        other = one["node"]
        if other == node:
            continue
        if other not in pools and len(pools) <= _MOST_NODES:
            pools[other] = _pool_of(source, other)
        if pools.get(other) != pool:
            continue
        for measure, _, value, unit in _measured(one["measurements"]):
            values.setdefault((measure, unit), []).append(value)
    return {
        "node": node,
        "pool": pool,
        "tests": [{**one, "measurements": _measured(one["measurements"])} for one in mine],
        "of_pool": [
            {"measure": measure, "unit": unit, "values": len(found), **_spread(found)}
            for (measure, unit), found in sorted(values.items())
        ],
    }


def _pool_of(source: Source, node: str) -> str:
    """Of a node that is gone meanwhile: none."""
    try:
        return str(source.get("nodes", node).get("pool", ""))
    except Unreached:
        raise
    except CommandFailed:
        return "\0"


def _spread(values: list[float]) -> dict[str, float]:
    """The median, and the median of the distances from it (MAD)."""
    median = statistics.median(values)
    return {"median": median, "mad": statistics.median(abs(one - median) for one in values)}


def history_lines(answer: Answer, screen: Screen) -> Iterator[str]:
    if not answer["tests"]:
        yield f"{clean(answer['node'])}: the history has no test of it"
        return
    spread = {(one["measure"], one["unit"]): one for one in answer["of_pool"]}
    rows = []
    for one in answer["tests"]:
        head = [one["at"], one["profile"], one["outcome"]]
        for measure, of, value, unit in one["measurements"] or [("", "", "", "")]:
            of_pool = spread.get((measure, unit))
            of_others = (
                f"{of_pool['median']:g} +- {of_pool['mad']:g}" if of_pool is not None else ""
            )
            shown = f"{value:g}" if measure else ""
            rows.append([*head, measure, of, shown, unit, of_others])
            head = ["", "", ""]
    titles = ["TIME", "PROFILE", "RESULT", "MEASURE", "OF", "VALUE", "UNIT", "POOL MEDIAN +- MAD"]
    yield table(titles, rows, screen.width)


def _tests(source: Source, *, node: str = "", pages: int = 1) -> Iterator[Answer]:
    """The ended tests that the history has, of one node or of all, the latest first."""
    seen: set[str] = set()
    for one in transitions(source, node=node, pages=pages):
        details = one["details"]
        operation = details.get("operation", "")
        ended = one["kind"] == "repair.ended" and details.get("repair") == TEST
        if ended and operation not in seen:
            seen.add(operation)
            yield {
                "at": one["at"],
                "node": one["node"],
                "operation": operation,
                "profile": details.get("profile", ""),
                "outcome": details.get("outcome", ""),
                "summary": one["summary"],
                "measurements": details.get("measurements", ""),
            }


def _measured(text: str) -> list[Row]:
    """Rows of measure, component, value and unit; text that is none gives none."""
    try:
        rows = read_json(text or "[]")
        return [(str(m), str(of), float(value), str(unit)) for m, of, value, unit in rows]
    except (ValueError, TypeError):
        return []
