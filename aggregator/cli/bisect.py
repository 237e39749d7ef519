"""`sickbay bisect`: find the nodes that make a site's test of a group fail.

Exit codes: 0 the group passed; 1 suspects, or groups that fail together; 2 a command line that
makes no sense; 3 no verdict.
"""

import argparse
import asyncio
import json
import os
import shlex
import shutil
import signal
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TextIO

from aggregator.bisection.model import (
    Findings,
    GroupOutcome,
    GroupTest,
    Interaction,
    SearchLimits,
    SearchVerdict,
    Suspect,
    names,
)
from aggregator.bisection.search import Bisection
from aggregator.cli.actions import manual_quarantine
from aggregator.cli.arguments import one_node_name
from aggregator.cli.confirm import confirm, require_terminal
from aggregator.cli.errors import CommandFailed, UsageError
from aggregator.cli.group_command import GroupCommand
from aggregator.cli.options import flags_of
from aggregator.cli.output import unwritten_exits
from aggregator.cli.source import has_kubeconfig, open_session, require_kubeconfig
from aggregator.cli.text_table import clean, printable
from aggregator.cli.write_commands import open_actions, this_user
from aggregator.cluster.port import Action, Conflict
from aggregator.runtime.text import counted, some_of
from sickbay.regular_file import is_there, read_file_or_pipe

FOUND, NO_VERDICT = 1, 3
_CODES = {SearchVerdict.PASSED: 0, SearchVerdict.FOUND: FOUND, SearchVerdict.NO_VERDICT: NO_VERDICT}
#: Labels with the domain of a node, as limits.domain_labels; the first that the group has.
DOMAIN_LABELS = ("network.topology.nvidia.com/leaf", "topology.kubernetes.io/rack")
_LIMIT, _PARALLEL = 600.0, 16


@dataclass(frozen=True, slots=True)
class Search:
    """The subject of a search. ``limit``: seconds of one test."""

    nodes: list[str]
    command: list[str]
    limit: float
    parallel: int
    known_good: list[str]
    domains: dict[str, str]


def name_list(text: str) -> list[str]:
    """Names of nodes with commas."""
    return [one_node_name(one.strip()) for one in text.split(",")]


def bisect(options: argparse.Namespace) -> None:
    """Search, print the result, and exit with its code."""
    with unwritten_exits(NO_VERDICT):
        _bisect(options)


def _bisect(options: argparse.Namespace) -> None:
    _refuse_useless(options)
    if options.quarantine and not options.yes:
        require_terminal("--quarantine", dry_run=False)
    try:
        findings = _searched(options, _search_of(options))
    except CommandFailed as error:
        print(f"sickbay: {printable(str(error))}", file=sys.stderr)
        raise SystemExit(NO_VERDICT) from error
    how = flags_of(options)
    if options.output.name == "json":
        print(json.dumps(_as_json(findings, how), indent=2))
    else:
        for line in result_lines(findings, how):
            print(line)
    sys.stdout.flush()
    if options.quarantine and findings.suspects:
        try:
            _quarantine(options, findings)
        except (CommandFailed, UsageError) as error:
            print(f"sickbay: --quarantine: {printable(str(error))}", file=sys.stderr)
    raise SystemExit(_CODES[findings.verdict])


# -- the group and the command ---------------------------------------------------------


def _refuse_useless(options: argparse.Namespace) -> None:
    if options.yes and not options.quarantine:
        raise UsageError("--yes has no use without --quarantine; expected both, or none")
    if options.domain_label and not options.selector:
        raise UsageError(
            "--domain-label has no use without --selector; expected -l LABELS, or the domains in "
            "the file of --nodes"
        )


def _search_of(options: argparse.Namespace) -> Search:
    """The search, once all that it needs is known to be there."""
    search = _new_search(options)
    _refuse_work(options, search)
    _require_actions(options, search.nodes)
    return search


def _new_search(options: argparse.Namespace) -> Search:
    argv = _command(options.test)
    if (options.nodes is None) == (not options.selector):
        raise UsageError("expected one of: --nodes FILE, --selector LABELS")
    if options.nodes is not None:
        nodes, domains = read_nodes(options.nodes)
    else:
        nodes, domains = _selected(options)
    if len(nodes) < 2:
        raise UsageError(
            f"{counted(len(nodes), 'node')}; expected two or more: "
            "a test of one node does not use the fabric"
        )
    return Search(
        nodes,
        argv,
        options.limit or _LIMIT,
        options.parallel or _PARALLEL,
        options.known_good or [],
        domains,
    )


def _command(text: str) -> list[str]:
    try:
        argv = shlex.split(text)
    except ValueError as error:
        raise UsageError(f"--command: {error}") from error
    if not argv:
        raise UsageError("--command: expected the site's test, such as 'run-test {nodes}'")
    if not any("{nodes}" in word or "{nodes_file}" in word for word in argv):
        raise UsageError("--command: expected {nodes} or {nodes_file} in it, for the group's nodes")
    if shutil.which(argv[0]) is None:
        raise UsageError(f"--command: there is no program {argv[0]}")
    return argv


def _require_actions(options: argparse.Namespace, nodes: list[str]) -> None:
    """Try the quarantine of a node without writing it: a search of hours must not end in a
    quarantine that was never possible. Raises UsageError.
    """
    if not options.quarantine:
        return
    if (
        isinstance(options.local, Path)
        and is_there(options.local)
        and not os.access(options.local, os.W_OK)
    ):
        raise UsageError(f"--quarantine: {options.local} can't be written: no permission")
    spec = manual_quarantine(Action.CORDON, "fabric bisection", this_user())
    dry = argparse.Namespace(**{**vars(options), "dry_run": True})
    try:
        with open_actions(dry) as actions:
            actions.quarantine(nodes[0], spec)
    except CommandFailed as error:
        if not isinstance(error.__cause__, Conflict):  # a quarantine that is there already
            raise UsageError(f"--quarantine is not possible: {error}") from error


def read_nodes(path: Path) -> tuple[list[str], dict[str, str]]:
    """The nodes of a file, and the domain of each that has one: a node a line, then its domain."""
    try:
        lines = read_file_or_pipe(path).splitlines()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is no text"
        text = f"{path} can't be read: {why}; expected a node on each line"
        raise UsageError(f"--nodes: {text}") from error
    nodes: list[str] = []
    domains: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        name, *rest = line.partition("#")[0].split() or [""]
        if not name:
            continue
        try:
            one_node_name(name)
        except argparse.ArgumentTypeError as error:
            raise UsageError(f"--nodes: {path}:{number}: {error}") from error
        if len(rest) > 1:
            raise UsageError(f"--nodes: {path}:{number}: expected NODE, or NODE and its DOMAIN")
        if name in nodes:
            raise UsageError(f"--nodes: {path}:{number}: {name} is there twice")
        nodes.append(name)
        if rest:
            domains[name] = rest[0]
    return nodes, domains


def _selected(options: argparse.Namespace) -> tuple[list[str], dict[str, str]]:
    require_kubeconfig(options, "--selector")
    from aggregator.cli.cluster_reader import ClusterReader

    with open_session(options) as session:
        labels = ClusterReader(session, options.namespace).labels_with(options.selector)
    return sorted(labels), _domains(labels, options.domain_label)


def _refuse_work(options: argparse.Namespace, search: Search) -> None:
    """A test slows or ends a job on the same node, a known good node too: raises UsageError, with
    the pods that are there.

    The nodes of a file may be no Kubernetes' ones: without a kubeconfig none is read.
    """
    if options.allow_work or not (options.selector or has_kubeconfig(options, os.environ)):
        return
    from aggregator.cli.cluster_reader import ClusterReader

    with open_session(options) as session:
        found = ClusterReader(session, options.namespace).work_on(
            list(dict.fromkeys((*search.nodes, *search.known_good)))
        )
    if not found:
        return
    named = [f"{node} ({some_of(found[node], 1)})" for node in sorted(found)]
    raise UsageError(
        f"{counted(len(found), 'node')} {'has' if len(found) == 1 else 'have'} work: "
        f"{some_of(named, 3)}; expected nodes without work, such as drained ones, or "
        "--allow-work"
    )


def _domains(labels: Mapping[str, Mapping[str, str]], wanted: str) -> dict[str, str]:
    keys = (wanted,) if wanted else DOMAIN_LABELS
    key = next((one for one in keys if any(one in found for found in labels.values())), None)
    if key is None:
        if wanted:
            raise UsageError(f"--domain-label: no node of the group has the label {wanted}")
        return {}
    return {node: found[key] for node, found in labels.items() if found.get(key)}


# -- the search ------------------------------------------------------------------------


def _note(out: TextIO, text: str, indent: str = "") -> None:
    """A line about the rounds."""
    print(indent + clean(text), file=out, flush=True)


def _searched(options: argparse.Namespace, search: Search) -> Findings:
    out = sys.stderr if options.output.name == "json" else sys.stdout
    try:
        return asyncio.run(_search(search, out))
    except asyncio.CancelledError:
        print("sickbay: interrupted: no node is named", file=sys.stderr)
        raise KeyboardInterrupt from None


async def _search(about: Search, out: TextIO) -> Findings:
    _cancel_on_signals()
    limits = SearchLimits(parallel=about.parallel)
    bisection = Bisection(
        about.nodes, domains=about.domains, known_good=about.known_good, limits=limits
    )
    command = GroupCommand(about.command, limit=about.limit)

    async def run(test: GroupTest) -> None:
        done = await command.run(test.nodes)
        bisection.record(test, done.outcome)
        note = f"; {done.message}" if done.message else ""
        last = done.output.rpartition("\n")[2]
        if done.outcome is not GroupOutcome.PASSED and last:
            note += f": {last[:200]}"
        line = f"{_test_line(test, done.outcome)} ({done.seconds:.0f} s{note})"
        _note(out, line, indent="  ")

    while tests := bisection.next_round():
        together = " at the same time" if len(tests) > 1 else ""
        _note(out, f"round {bisection.number}: {counted(len(tests), 'test')}{together}")
        try:
            async with asyncio.TaskGroup() as group:
                for test in tests:
                    group.create_task(run(test))
        except ExceptionGroup as errors:  # for example of stdout, whose reader has gone
            raise errors.exceptions[0] from errors
    return bisection.findings()


def _cancel_on_signals() -> None:
    """A terminal that is closed, too: the commands have sessions of their own and would run on."""
    task = asyncio.current_task()
    assert task is not None
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, task.cancel)


_WORDS = {
    GroupOutcome.PASSED: "passed",
    GroupOutcome.FAILED: "FAILED",
    GroupOutcome.INCONCLUSIVE: "no verdict",
}


def _test_line(test: GroupTest, outcome: GroupOutcome) -> str:
    attempt = f", attempt {test.attempt}" if test.attempt > 1 else ""
    nodes = names(test.nodes)
    return f"test {test.number}: {_WORDS[outcome]}: {nodes}; {test.why}{attempt}"


# -- the result ------------------------------------------------------------------------


def result_lines(findings: Findings, how: str) -> Iterator[str]:
    """The result for people. ``how``: options for the commands in it."""
    yield ""
    yield from map(clean, _headline(findings))
    for suspect in findings.suspects:
        yield clean(f"SUSPECT {suspect.node}: it failed next to {_partners(suspect)}")
        yield from (f"  {clean(_test_line(one.test, one.outcome))}" for one in suspect.tests)
        yield f"  {printable(quarantine_command(suspect, how))}"
    for one in findings.interactions:
        yield clean(_interaction(one))
        yield from (f"  {clean(_test_line(test.test, test.outcome))}" for test in one.tests)
    for open_ in findings.unsettled:
        yield clean(f"NOT KNOWN {names(open_.nodes)}: {open_.why}")
    if findings.suspects or findings.interactions:
        yield _rest(findings)
    tests, rounds = counted(findings.tests, "test"), counted(findings.rounds, "round")
    yield clean(f"{tests} in {rounds}")


def _headline(findings: Findings) -> Iterator[str]:
    if findings.verdict is SearchVerdict.PASSED:
        yield "The whole group passed: nothing was found."
    elif findings.verdict is SearchVerdict.NO_VERDICT:
        yield "No verdict: no node is named."
    else:
        suspects = counted(len(findings.suspects), "suspect")
        yield f"{suspects}, {counted(len(findings.interactions), 'pair')} of groups."


def _partners(suspect: Suspect) -> str:
    good = {node for one in suspect.tests for node in one.test.nodes} - {suspect.node}
    passed = ", which pass together" if len(good) > 1 else ""
    return f"{names(sorted(good))}{passed}"


def _interaction(one: Interaction) -> str:
    first, second = names(one.first), names(one.second)
    text = f"TOGETHER {first} and {second}: each passes, and they fail together"
    if not one.faulty:
        return f"{text}; no node is named, a link between them may be bad"
    shared = f" ({one.domain})" if one.domain else ""
    return (
        f"{text}; {names(one.faulty)}{shared} fail next to others too: what they share may be bad"
    )


def _rest(findings: Findings) -> str:
    passed = counted(
        len(findings.cleared),
        "node was in a group that passed",
        "nodes were in groups that passed",
    )
    if findings.rest_passed is None:
        return f"No test of all the rest has a verdict; {passed}."
    if findings.rest_passed:
        return f"All the rest pass together; {passed}."
    return f"The rest still fail together; {passed}."


def _reason(suspect: Suspect) -> str:
    return f"fabric bisection: its test failed next to {_partners(suspect)}"


def quarantine_command(suspect: Suspect, how: str) -> str:
    """The command that takes the node out, for a person."""
    reason = shlex.quote(_reason(suspect))
    return f"sickbay quarantine {suspect.node} --action cordon --reason {reason}{how}"


def _as_json(findings: Findings, how: str) -> dict[str, Any]:
    def tests(one: Suspect | Interaction) -> list[dict[str, Any]]:
        return [
            {"test": each.test.number, "nodes": each.test.nodes, "outcome": each.outcome}
            for each in one.tests
        ]

    shown = asdict(findings)
    shown["not_known"] = shown.pop("unsettled")
    shown["suspects"] = [
        {"node": one.node, "tests": tests(one), "quarantine": quarantine_command(one, how)}
        for one in findings.suspects
    ]
    shown["interactions"] = [{**asdict(one), "tests": tests(one)} for one in findings.interactions]
    return shown


def _quarantine(options: argparse.Namespace, findings: Findings) -> None:
    """As a person would with the printed commands; one node's failure leaves the others."""
    who = this_user()
    nodes = [one.node for one in findings.suspects]
    if not options.yes:
        confirm(f"Quarantine {counted(len(nodes), 'node')} (cordon): {', '.join(nodes)}")
    with open_actions(options) as actions:
        for suspect in findings.suspects:
            spec = manual_quarantine(Action.CORDON, _reason(suspect), who)
            try:
                text = actions.quarantine(suspect.node, spec)
            except CommandFailed as error:
                text = f"sickbay: --quarantine: {suspect.node}: {error}"
            print(printable(text), file=sys.stderr)
