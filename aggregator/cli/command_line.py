"""Every command of `sickbay`: its group, its options, its examples."""

import argparse
import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from aggregator.cli import (
    active_test,
    bisect,
    bundle_command,
    demo,
    jobs,
    read_commands,
    repair,
    write_commands,
)
from aggregator.cli.arguments import Parser, Subcommands, positive, program, test_profile
from aggregator.cli.completion import SHELLS, script
from aggregator.cli.options import (
    acting_options,
    cluster_options,
    dry_run_option,
    list_options,
    local_option,
    reading_options,
    sentence_option,
    source_options,
    yes_option,
)
from aggregator.cli.wait import GOALS, duration
from aggregator.policy.repairs import REPAIRS
from aggregator.version import VERSION

_STATES = ("ok", "unknown", "silent", "warning", "held", "quarantined")
_FLEET, _NODES, _ACT, _OTHER = "The fleet", "Nodes", "Act", "Other"


def parser_for(executable: str, environ: Mapping[str, str]) -> Parser:
    """The parser of the whole command line. ``executable``: as it was called."""
    name = program(executable)
    parser = Parser(prog=name)
    parser.add_argument("--version", action="version", version=f"sickbay {VERSION}")
    parser.set_defaults(extra="cli")
    commands = Subcommands(parser)
    read = reading_options(environ)
    source = source_options(environ)
    _add_fleet(commands, read, source)
    _add_nodes(commands, read, source)
    _add_bisect(commands)
    _add_acting(commands, acting_options())
    _add_repair(commands, read)
    _add_test(commands, source)
    _add_alert(commands, read)
    completion = commands.add(
        _OTHER,
        "completion",
        "print the completion for a shell",
        lambda options: print(script(options.shell), end=""),
        examples=["completion bash > /etc/bash_completion.d/sickbay"],
    )
    completion.add_argument("shell", choices=SHELLS)
    version = commands.add(
        _OTHER,
        "version",
        "print this program's version",
        _print_version,
        examples=["version -o json"],
    )
    version.add_argument("-o", "--output", choices=("text", "json"), default="text")
    demo.add_to(commands, _OTHER)
    commands.describe(
        "Shows the health of the fleet's nodes, and carries out a person's orders.",
        f"""examples:
  {name} status
  {name} quarantines -o wide
  {name} explain gpu-0042
  {name} stop "work on the fabric"

Reading commands query the aggregator: at --url, else through the cluster of your kubeconfig. While
no aggregator answers, some read the cluster itself. Acting commands write to the cluster itself,
with your own rights.
{name} help COMMAND has the options of a command; {name} get nodes is {name} nodes.""",
    )
    return parser


def _print_version(options: argparse.Namespace) -> None:
    print(json.dumps({"version": VERSION}) if options.output == "json" else f"sickbay {VERSION}")


def _add_reason(parser: Parser) -> None:
    parser.add_argument("--reason", required=True, help="why, for the next person on call")


def _add_fleet(
    commands: Subcommands, read: argparse.ArgumentParser, source: argparse.ArgumentParser
) -> None:
    add = partial(commands.add, _FLEET, parents=[read])
    listed = list_options()
    add("status", "the fleet at a glance", read_commands.status)
    incidents = add(
        "incidents",
        "the open incidents",
        read_commands.incidents,
        parents=[read, listed],
        examples=[
            "incidents -l topology.kubernetes.io/zone=hall-2",
            "incidents --sort-by .since",
            "incidents --rule drift -o wide",
        ],
    )
    incidents.value("--rule", "NAME", "only those with evidence of this rule")
    incidents.value("--limit", "N", "rows at most (default: %(default)s)", positive, 100)
    add(
        "lemons",
        "nodes that return to quarantine again and again",
        read_commands.lemons,
        parents=[read, listed],
    )
    _add_jobs(commands, read)
    add("replicas", "the aggregator's replicas, and which don't answer", read_commands.replicas)
    history = add(
        "history",
        "past events, the latest last",
        read_commands.history,
        examples=["history --node gpu-0042", "history --since 8h --limit 500"],
    )
    history.value("--node", "NAME", "only about this node")
    history.value("--since", "TIME", "only later events: 1h, 7d, or 2026-01-31T03:14:00Z")
    history.value("--until", "TIME", "only events up to then; as --since")
    history.value("--limit", "N", "the latest N (default: %(default)s)", positive, 50)
    what = "events as they occur (Ctrl-C ends it)"
    watch = add("watch", what, read_commands.watch, parents=[source])
    watch.value("--node", "NAME", "only about this node")
    sentence_option(watch)


def _add_jobs(commands: Subcommands, read: argparse.ArgumentParser) -> None:
    add = partial(commands.add, _FLEET, parents=[read])
    hit = add(
        "jobs",
        "the jobs that faults hit, or each fault of one",
        jobs.jobs,
        examples=["jobs --since 7d", "jobs ml/jobset/llama-70b"],
    )
    hit.add_argument(
        "name",
        nargs="?",
        default="",
        metavar="NAMESPACE/FAMILY/NAME",
        help="one job, as the list names it",
    )
    report = add(
        "report",
        "the GPU hours that faults cost, by job, team, code, node or pool",
        jobs.report,
        examples=["report --since 28d --by team", "report --by code --csv > codes.csv"],
    )
    report.add_argument(
        "--by", choices=jobs.GROUPS, default="job", help="the rows (default: %(default)s)"
    )
    report.flag("--csv", "print the rows as CSV")
    for made in (hit, report):
        made.value("--since", "TIME", "from then on: 7d, or 2026-01-31T03:14:00Z (default: 28d)")
        made.value("--until", "TIME", "up to then; as --since")


def _add_nodes(
    commands: Subcommands, read: argparse.ArgumentParser, source: argparse.ArgumentParser
) -> None:
    add = partial(commands.add, _NODES, parents=[read])
    listed = list_options()
    nodes = add(
        "nodes",
        "every node, or those of one state",
        read_commands.nodes,
        parents=[read, listed],
        examples=[
            "nodes --state held",
            "nodes -l node.kubernetes.io/instance-type=p5.48xlarge -o wide",
            'nodes -o jsonpath=\'{range .items[*]}{.node}{"\\t"}{.why}{"\\n"}{end}\'',
        ],
    )
    nodes.add_argument("--state", choices=_STATES, default="", help="only nodes of this state")
    nodes.flag("--exempt", "only exempt nodes")
    nodes.flag("--untested", "only new nodes that still have their startup taint")
    add("node", "one node's details and its past", read_commands.node, of_node=True)
    add(
        "explain",
        "why a node is in its state, what follows, and what to do",
        read_commands.explain,
        examples=["explain gpu-0042"],
        of_node=True,
    )
    add(
        "quarantines",
        "the quarantines under way",
        read_commands.quarantines,
        parents=[read, listed],
        examples=["quarantines --sort-by .created_at -o wide", "quarantines -o name"],
    )
    bundle = add(
        "bundle",
        "one archive with all that is known of a node, for a ticket or an RMA",
        bundle_command.bundle,
        parents=[source],
        more="It has the node's state, evidence, history, kernel lines, versions and objects. "
        "Texts that resemble secrets are left out.",
        examples=["bundle gpu-0042", "bundle gpu-0042 --file rma-12345.tar.gz"],
        of_node=True,
    )
    bundle.value("--file", "FILE", "default: sickbay-NODE-TIME.tar.gz", Path)
    sentence_option(bundle)
    wait = add(
        "wait",
        "wait until a node is quarantined, drained or released",
        read_commands.wait,
        more="The exit code is 1 if the node does not get there in time, or can't get there.",
        examples=["wait gpu-0042 --for drained --timeout 30m"],
        of_node=True,
    )
    wait.add_argument(
        "--for", dest="goal", required=True, choices=GOALS, help="the state to wait for"
    )
    wait.value("--timeout", "TIME", "the longest wait (default: %(default)s)", duration, "10m")


def _add_bisect(commands: Subcommands) -> None:
    made = commands.add(
        _NODES,
        "bisect",
        "find the nodes that make a group's test fail, by halves",
        bisect.bisect,
        parents=[cluster_options()],
        more="It runs your test of several nodes (such as an all-reduce of NCCL) on parts of the "
        "group. Exit code of the test: 0 passed, 1 failed, any other: no verdict. Exit code of "
        "the search: 0 passed, 1 suspects or groups that fail together, 2 the command line is "
        "invalid, 3 no verdict. The nodes must have no other work.",
        examples=[
            "bisect --nodes nodes.txt --command 'run-nccl --hosts {nodes}'",
            "bisect -l pool=a3 --known-good gpu-7,gpu-9 --command 'run-nccl {nodes_file}'",
        ],
    )
    made.value(
        "--nodes",
        "FILE",
        "the group: one node per line, and its rack or switch as a second word",
        Path,
    )
    text = "instead of --nodes: the nodes with these labels, as with kubectl; needs a kubeconfig"
    made.value("-l --selector", "LABELS", text)
    made.value(
        "--domain-label",
        "LABEL",
        "with --selector, the label of a rack or switch; default: "
        + " or ".join(bisect.DOMAIN_LABELS),
    )
    made.add_argument(
        "--command",
        dest="test",
        default="",
        metavar="COMMAND",
        help="the test, run without a shell; {nodes} becomes the nodes with commas, {nodes_file} "
        "a file with one node per line",
    )
    made.value(
        "--known-good",
        "NODE,...",
        "good nodes, of the group or not; tests run on them too",
        bisect.name_list,
        [],
    )
    made.flag("--allow-work", "test nodes that have other work, too")
    made.value("--parallel", "N", "tests at the same time (default: 16)", positive)
    made.value(
        "--limit",
        "TIME",
        "the longest time of one test; after it there is no verdict (default: 10m)",
        duration,
    )
    made.flag("--quarantine", "after a confirmation, quarantine the suspects (cordon)")
    yes_option(made)
    local_option(made)
    sentence_option(made)
    made.set_defaults(dry_run=False)


def _add_acting(commands: Subcommands, act: argparse.ArgumentParser) -> None:
    add = partial(commands.add, _ACT, parents=[act])
    stop = add(
        "stop",
        "begin no quarantine and no step of a drain, anywhere",
        write_commands.stop,
        examples=['stop "work on the fabric"', "resume"],
    )
    why = stop.add_mutually_exclusive_group(required=True)
    why.add_argument("text", nargs="?", metavar="REASON", help="why, for the next person on call")
    why.add_argument("--reason", help="the same as an option")
    add("resume", "end the stop", write_commands.resume)
    quarantine = add(
        "quarantine",
        "quarantine a node by hand",
        write_commands.quarantine,
        more="A drain ends the work on the node, so it requires a confirmation.",
        examples=[
            'quarantine gpu-0042 --action cordon --reason "fan 3 is dead"',
            'quarantine gpu-0042 --action drain --reason "fan 3 is dead" --dry-run',
        ],
        of_node=True,
    )
    quarantine.add_argument(
        "--action",
        choices=("cordon", "drain"),
        required=True,
        help="cordon: no new work; drain: its work is moved, too",
    )
    _add_reason(quarantine)
    quarantine.value("--requester", "WHO", "default: your login name")
    yes_option(quarantine)
    release = add(
        "release",
        "end a node's quarantine",
        write_commands.release,
        more="While a repair's order is open it may still reach the node, so the release requires "
        "a confirmation then.",
        examples=["release gpu-0042"],
        of_node=True,
    )
    yes_option(release)
    exempt = add(
        "exempt",
        "keep sickbay from acting on a node for a time",
        write_commands.exempt,
        examples=['exempt gpu-0042 --for 8h --reason "firmware test"'],
        of_node=True,
    )
    exempt.add_argument(
        "--for",
        dest="how_long",
        required=True,
        metavar="TIME",
        help="such as 30m, 8h or 7d; at most 365d",
    )
    _add_reason(exempt)
    add("unexempt", "end a node's exemption", write_commands.unexempt, of_node=True)
    pin = add(
        "pin",
        "keep a node in quarantine, also once it is healthy",
        write_commands.pin,
        examples=['pin gpu-0042 --reason "RMA 12345"'],
        of_node=True,
    )
    _add_reason(pin)
    add("unpin", "end a node's pin", write_commands.unpin, of_node=True)
    add(
        "forget",
        "remove a name that no node has from a local cluster's file",
        write_commands.forget,
        more="It needs --local.",
        of_node=True,
    )


def _add_repair(commands: Subcommands, read: argparse.ArgumentParser) -> None:
    made = commands.add(
        _ACT,
        "repair",
        "show the repairs of a node in quarantine, request one, or cancel it",
        repair.repair,
        parents=[read],
        more="With NODE alone it prints the ladder, the attempts, and what holds the next one.",
        examples=["repair gpu-0042", "repair gpu-0042 reboot", "repair gpu-0042 --cancel"],
        of_node=True,
    )
    made.add_argument(
        "kind",
        nargs="?",
        choices=REPAIRS,
        metavar="KIND",
        help=f"the repair to request: {', '.join(REPAIRS)}",
    )
    made.flag(
        "--cancel",
        "cancel the repairs and tests of the node that are requested or under way; no other "
        "repair begins by itself in this quarantine",
    )
    local_option(made)
    dry_run_option(made)
    yes_option(made)


def _add_test(commands: Subcommands, source: argparse.ArgumentParser) -> None:
    made = commands.add(
        _ACT,
        "test",
        "test a node in quarantine, a new one or one without work, or show its past tests",
        active_test.test,
        parents=[source],
        more="Exit code: 0 the node passed, 1 it failed, 2 the command line is invalid or the node "
        "can't be tested in its present state, 3 no verdict.",
        examples=["test gpu-0042", "test gpu-0042 --profile long", "test gpu-0042 --history"],
        of_node=True,
    )
    made.value(
        "--profile",
        "NAME",
        "the test profile (default, by the aggregator's configuration: in quarantine "
        "repair.verify, of a new node repair.new_nodes.profile, in service "
        "repair.idle_nodes.profile)",
        test_profile,
    )
    made.flag("--history", "show past tests, next to those of its pool")
    made.add_argument(
        "--no-wait", dest="wait", action="store_false", help="do not wait for the verdict"
    )
    made.value("--timeout", "TIME", "the longest wait for the verdict (default: 2h)", duration)
    sentence_option(made)
    local_option(made)
    dry_run_option(made)
    yes_option(made)


def _add_alert(commands: Subcommands, read: argparse.ArgumentParser) -> None:
    alert = commands.add(_OTHER, "alert", "list the routes of alerts, or test one")
    about = Subcommands(alert)
    about.add(
        "Alerts",
        "list",
        "the routes, and the deliveries that were given up",
        read_commands.alert_list,
        parents=[read],
    )
    test = about.add(
        "Alerts",
        "test",
        "send a test alert on a route, with the aggregator's configuration and secrets",
        write_commands.alert_test,
    )
    test.add_argument("route", metavar="ROUTE", help="its name in the configuration")
    test.value(
        "--config",
        "FILE",
        "the aggregator's configuration (default: %(default)s)",
        Path,
        Path("/etc/sickbay/aggregator.yaml"),
    )
    sentence_option(test)
    # The test sends as the aggregator does, with the same libraries.
    test.set_defaults(extra="aggregator")
    about.describe(
        "List the routes of alerts, or test one.", f"{alert.prog} COMMAND --help has the options."
    )
