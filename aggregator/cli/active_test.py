"""`sickbay test`: have a node tested, in quarantine, new, or in service; show its past tests.

Exit codes: 0 passed, 1 failed, 2 the command line makes no sense, 3 no verdict.
"""

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass

from aggregator.cli.confirm import confirm, require_terminal
from aggregator.cli.errors import CommandFailed, Unreached, UsageError
from aggregator.cli.options import flags_of
from aggregator.cli.output import Answer, print_answer
from aggregator.cli.read_commands import node_answer
from aggregator.cli.repair import effect, operation_of, repair_of
from aggregator.cli.screen import Screen
from aggregator.cli.source import Source, open_source
from aggregator.cli.text_table import clean, printable, table
from aggregator.cli.wait import state
from aggregator.cli.write_commands import open_actions, report
from aggregator.cluster.node_names import TEST_CONDITION
from aggregator.policy.repairs import TEST

#: Measure, component, value, unit.
Row = tuple[str, str, float, str]
PASSED, FAILED, NO_VERDICT = 0, 1, 3
_CODES = {"Succeeded": PASSED, "Failed": FAILED}
_BUSY = ("Ordering", "Ordered")
_EVERY = 1.0
#: Seconds until a test's end is not waited for any more.
_WAITS = 7200.0
#: The startup taint is not shown for this long (seconds): longer than a replica that takes the node
#: over needs for its list of nodes.
_TAINT_GONE = 200.0
#: The same for the node itself, and for a request.
_GONE = 200.0
_UNSEEN = (
    "the test has not begun: the aggregator has not seen the request yet; it does within three "
    "minutes"
)
#: Transitions of one page, and pages of other nodes that are looked through for tests.
_PAGE, _MOST_PAGES = 1000, 10
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
    try:
        _confirm(options)
    except OSError as error:
        if options.dry_run or not options.wait:
            raise
        # As of other commands, exit code 0 of a reader that has gone would mean that the node
        # passed, and 1 of an answer that can't be written that it failed.
        if not isinstance(error, BrokenPipeError):
            print(f"sickbay: the answer can't be written: {error}", file=sys.stderr)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(NO_VERDICT)


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
    confirms = not (options.yes or options.dry_run)
    if confirms:
        require_terminal("a test")
    with open_source(options) as source:
        known = node_answer(source, options.name)
        in_quarantine = known["quarantine"] is not None
        if in_quarantine:
            question = effect(options, known, TEST)
            _require_drained(options, known)
        elif _is_new(known):
            question = _effect_on_new(options, known)
        else:
            _require_service(options, known)
            question = _effect_in_service(options, known)
        _require_profile(options, known)
        uid = known["quarantine"].get("uid", "") if in_quarantine else ""
        ident, spec = operation_of(options, TEST, uid, options.profile or "")
        with open_actions(options) as actions:
            if confirms:
                confirm(question)
            else:
                print(printable(question), file=sys.stderr)
            requested = actions.request_operation(ident, spec)
        if options.dry_run or not options.wait:
            report(options, requested)
            return
        print(printable(requested), file=sys.stderr)
        wait = _wait if in_quarantine else _wait_without_quarantine
        commands = _commands(options, in_quarantine=in_quarantine)
        try:
            attempt = wait(source, options.name, ident, options.timeout or _WAITS, commands)
        except KeyboardInterrupt:
            text = f"{options.name}: the wait has ended, and the request stays: {commands.show}"
            print(printable(text), file=sys.stderr)
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
    if found["test"] is not None and found["test"]["state"] in _BUSY:
        after = "; a test of it is under way, and this one follows the end of that"
    opens = f"Its pass removes the taint {found['taint']}."
    if not found["removes_taint"]:
        opens = (
            f"Its pass sets the condition {TEST_CONDITION}, by which another controller removes "
            f"the taint {found['taint']}."
        )
    room = "once repair.new_nodes.concurrent has room"
    return f"{options.name}: a test is ordered {room}{after}. {opens}"


def _require_service(options: argparse.Namespace, known: Answer) -> None:
    """Raise UsageError for a node that is neither in quarantine nor known as a new one, where such
    a node is not tested.
    """
    tests = known.get("tests")
    why = _why_not_in_service(known, tests, on_kubernetes=options.local is None)
    if why:
        node, how = options.name, flags_of(options)
        reads = how if options.local is None else ""
        new = (
            " and is not known to have the startup taint of new nodes (repair.new_nodes; the "
            "aggregator sees it within three minutes)"
        )
        text = (
            f"{node} is not in quarantine{',' + new if options.local is None else ''}: sickbay "
            f"node {node}{reads}. Of a node in service no test begins: {why}."
        )
        if known.get("mode") != "observe":
            text += (
                f" To test a node with work, first: sickbay quarantine {node} --action drain "
                f"--reason 'for its test'{how}"
            )
        raise UsageError(text)


def _why_not_in_service(known: Answer, tests: Answer | None, *, on_kubernetes: bool) -> str:
    """Why no test of a node in service begins; empty: one may."""
    if tests is None:
        return "the aggregator does not answer"
    if tests["mode"] != "repair":
        return f"repair.mode of the aggregator is {tests['mode']}"
    if not tests["repairer"]:
        return "repair.repairers of the aggregator has no test"
    if not tests["in_service"] and not on_kubernetes:
        return "a job could start next to it, as nothing keeps jobs off a node in service"
    if not tests["in_service"]:
        return "it needs a test that work preempts, by a repairer with job and gpus: all"
    if known["mode"] == "observe":
        return "its mode is observe"
    return ""


def _effect_in_service(options: argparse.Namespace, known: Answer) -> str:
    profile = options.profile or known["tests"]["profile"]
    return (
        f"{options.name} is in service: test {profile} is ordered as a Job of the lowest priority "
        "once repair.idle_nodes.concurrent and its failure domain have room. The test is refused "
        "if the node has work, and work that comes later ends it: no pod is evicted for it."
    )


def _require_profile(options: argparse.Namespace, known: Answer) -> None:
    """Raise UsageError for a profile that the configuration is known not to have."""
    tests = known.get("tests")
    profiles = tests["profiles"] if tests is not None else None
    if tests is None or profiles is None:  # agents have profiles of their own
        return
    found = repair_of(known["quarantine"])
    default = found.get("verify", "") if found is not None else tests["profile"]
    profile = options.profile or ("" if _is_new(known) else default)
    if profile and profile not in profiles:
        raise UsageError(
            f"{options.name}: the Job of the aggregator's repairer of tests has no profile "
            f"{profile}; expected --profile, one of: {', '.join(profiles)}"
        )


def _require_drained(options: argparse.Namespace, known: Answer) -> None:
    """Raise UsageError where the node is not emptied, or no profile is known."""
    node, quarantine, how = options.name, known["quarantine"], flags_of(options)
    cordoned = quarantine["action"] == "cordon" and quarantine["phase"] == "Cordoned"
    if quarantine["phase"] != "Drained" and not cordoned:
        raise UsageError(
            f"{node} is not drained ({state(quarantine)}), and a node with work is not tested; "
            f"first: sickbay wait {node} --for drained{how if options.local is None else ''}"
        )
    found = repair_of(quarantine)
    if not options.profile and found is not None and not found.get("verify"):
        raise UsageError(
            f"{node}: repair.verify of the aggregator names no profile; expected --profile, one "
            f"of: {_profiles(known)}"
        )


def _profiles(known: Answer) -> str:
    tests = known.get("tests")
    listed = tests["profiles"] if tests is not None else None
    return ", ".join(listed) if listed else "sickbay-agent test --list on the node"


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


@dataclass(frozen=True, slots=True)
class _State:
    """How far a test is. ``now``: the same in words. ``begun``: an attempt answers the request."""

    now: str = ""
    begun: bool = False
    is_over: bool = False
    answer: Answer | None = None


def _poll(
    read_state: Callable[[], _State],
    node: str,
    timeout: float,
    commands: _Commands,
    clock: Callable[[], float],
) -> Answer | None:
    """The answer of the ended test; None without one, and stderr states why."""
    end, shown = clock() + timeout, ""
    refused_at: float | None = None
    last: _State | None = None
    while True:
        now = ""
        try:
            last = read_state()
            now, refused_at = last.now, None
            if last.is_over:
                return last.answer
        except Unreached:  # the connection may be lost for a time
            pass
        except CommandFailed as error:  # a replica that has just begun does not know the node yet
            refused_at = clock() if refused_at is None else refused_at
            if clock() - refused_at >= _GONE:
                print(printable(f"{node}: {error}"), file=sys.stderr)
                return None
            now = f"{error}; trying again"
        if now and now != shown:
            shown = now
            print(printable(f"{node}: {now}"), file=sys.stderr, flush=True)
        if clock() >= end:
            text = f"{node}: no end within {timeout:g} s; {_why_no_end(last, commands)}"
            print(printable(text), file=sys.stderr)
            return None
        time.sleep(_EVERY)


def _why_no_end(last: _State | None, commands: _Commands) -> str:
    """The state of the test after the wait. ``last``: None where no answer came at all."""
    if last is None:
        return (
            f"the aggregator gave no answer, so that the test may have begun or not: "
            f"{commands.show}"
        )
    if last.begun:
        return (
            f"the test has begun, and goes on: {commands.show}. To end it without a verdict: "
            f"{commands.end}"
        )
    return (
        f"{last.now}. The request stays, and the test may begin later: {commands.show}. To "
        f"withdraw the request: {commands.end}"
    )


def _wait(
    source: Source,
    node: str,
    ident: str,
    timeout: float,
    commands: _Commands,
    clock: Callable[[], float] = time.monotonic,
) -> Answer | None:
    """The ended attempt that answers the request; None without one, and stderr states why."""
    is_known = False
    last: Answer | None = None

    def read_state() -> _State:
        nonlocal is_known, last
        quarantine = source.quarantine(node)
        found = repair_of(quarantine)
        attempts = found["attempts"] if found is not None else []
        mine = next((one for one in attempts if one["request"] == ident), None)
        last = mine or last
        if mine is not None and mine["state"] not in _BUSY:
            return _State(is_over=True, answer=dict(mine))
        if quarantine is None:
            return _State(is_over=True, answer=_from_history(source, node, last))
        requested = found["requested"] if found is not None else ""
        if is_known and mine is None and requested and f"({ident})" not in requested:
            text = f"{node}: another request has taken its place: {requested}"
            print(printable(text), file=sys.stderr)
            return _State(is_over=True)
        is_known = is_known or f"({ident})" in requested
        return _State(_progress(found, mine, is_known=is_known), begun=last is not None)

    return _poll(read_state, node, timeout, commands, clock)


def _wait_without_quarantine(
    source: Source,
    node: str,
    ident: str,
    timeout: float,
    commands: _Commands,
    clock: Callable[[], float] = time.monotonic,
) -> Answer | None:
    """The same for a new node, and for one in service."""
    tainted_at: float | None = None
    known_at: float | None = None
    is_known = False

    def read_state() -> _State:
        nonlocal tainted_at, known_at, is_known
        answer = source.get("nodes", node)
        found = answer.get("new_node") or {}
        test = found.get("test")
        mine = test if test is not None and test["request"] == ident else None
        if mine is not None and mine["state"] not in _BUSY:
            return _State(is_over=True, answer=dict(mine))
        requested = found.get("requested", "")
        now, tainted = clock(), found.get("tainted", False)
        if ident in (requested, mine["request"] if mine is not None else ""):
            is_known, known_at = True, now
        tainted_at = now if tainted else tainted_at
        lost = ""
        if mine is None:
            gone = tainted_at is not None and not tainted and now - tainted_at >= _TAINT_GONE
            lost = _why_lost(answer, taint_gone=gone)
            if is_known and requested not in ("", ident):
                lost = f"another request has taken its place: {requested}"
            if not lost and known_at is not None and now - known_at >= _GONE:
                lost = (
                    "the request is gone: it was taken back, or another one has taken its place, "
                    f"and the history has its end: sickbay test {node} --history"
                )
        if lost:
            print(printable(f"{node}: {lost}"), file=sys.stderr)
            return _State(is_over=True)
        waits = found.get("waits", "") or _why_none_begins(answer)
        if mine is None and not is_known and not waits:
            return _State(_UNSEEN)
        return _State(_state_of(mine, waits), begun=mine is not None)

    return _poll(read_state, node, timeout, commands, clock)


def _why_lost(answer: Answer, *, taint_gone: bool) -> str:
    """Why a request in no quarantine is followed by no test any more; empty: one may follow."""
    if answer["quarantine"] is not None:
        return (
            "it came into quarantine before the test began, and the request ends with that: once "
            "it is drained, request it again"
        )
    tests = answer.get("tests")
    in_service = tests is not None and tests["in_service"]
    if taint_gone and not in_service:
        return (
            "its startup taint is gone, so that it is no new node any more, and no test of it "
            "begins"
        )
    return ""


def _why_none_begins(answer: Answer) -> str:
    """Why the aggregator begins no test now, by its configuration."""
    tests = answer["tests"]
    observed = tests is not None and tests["mode"] != "repair"
    return f"repair.mode of the aggregator is {tests['mode']}" if observed else ""


def _state_of(mine: Answer | None, waits: str) -> str:
    if mine is not None:
        return f"test {mine['state']}, until {mine['deadline_at']} at the latest"
    return f"the test has not begun{f': {waits}' if waits else ''}"


def _progress(found: Answer | None, mine: Answer | None, *, is_known: bool) -> str:
    if mine is None and not is_known:
        return _UNSEEN
    return _state_of(mine, found["waits"] if found is not None else "")


def _from_history(source: Source, node: str, last: Answer | None) -> Answer | None:
    """The quarantine has ended, for example of a node that has passed: the history has the
    result.
    """
    ended = _past_test(source, node, last["operation"]) if last is not None else None
    if last is not None and ended is not None:
        return {**last, "state": ended["outcome"], "message": ended["summary"]}
    print(printable(f"{node}: its quarantine ended before the test did"), file=sys.stderr)
    return None


def _measurements(source: Source, node: str, operation: str) -> list[Row]:
    """The measurements of a test, as the history has them."""
    ended = _past_test(source, node, operation)
    return _measured(ended["measurements"]) if ended is not None else []


def _past_test(source: Source, node: str, operation: str) -> Answer | None:
    """A test in the history; None where that has none, or can't be read."""
    with suppress(CommandFailed):
        return next(
            (one for one in _tests(source, node=node) if one["operation"] == operation), None
        )
    return None


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
    mine = list(_tests(source, node=node))
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
    until = ""
    seen: set[str] = set()
    for _ in range(pages):
        items = source.get("transitions", node=node, until=until, limit=_PAGE)["items"]
        for one in items:
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
        if len(items) < _PAGE or items[-1]["at"] == until:
            return
        until = items[-1]["at"]


def _measured(text: str) -> list[Row]:
    """Rows of measure, component, value and unit; text that is none gives none."""
    try:
        rows = json.loads(text or "[]")
        return [(str(m), str(of), float(value), str(unit)) for m, of, value, unit in rows]
    except (ValueError, TypeError, RecursionError):
        return []
