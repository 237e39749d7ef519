"""The command line of ``sickbay-agent``: its commands, their options, the errors of a wrong one.

Built at every start, so it imports very little.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from nodeagent.configfile import units
from nodeagent.terminal.run_arguments import DEFAULT_CONFIG, READY_TIMEOUT, SLURM, BadUsage
from sickbay.arguments import SuggestingParser

POD_PROBER_SOCKET = Path("/run/sickbay-pod-network/prober.sock")


def parse(given: Sequence[str]) -> argparse.Namespace:
    """The options; ``command`` is the command's name. Raises BadUsage.

    Raises SystemExit(0) when it has printed the help or the version.
    """
    options = parser().parse_args(given)
    if options.command == "check":
        if options.slurm and options.fail_on is not None:
            raise BadUsage("argument --fail-on: not allowed with argument --slurm", "")
        options.fail_on = options.fail_on or "failed"
    if options.command == "cleared":
        _narrow(options)
    return options


def _narrow(options: argparse.Namespace) -> None:
    """Take a left-out option as all; so refuse an empty one, which a variable not set gives."""
    for name in ("gpu", "code"):
        if getattr(options, name) == "":
            raise BadUsage(f"argument --{name}: it is empty", "")
    if options.gpu is None and options.code is None:
        raise BadUsage("one of the arguments --gpu --code is required", "")
    options.gpu, options.code = options.gpu or "", options.code or ""


class _Parser(SuggestingParser):
    def error(self, message: str) -> NoReturn:
        raise BadUsage(self.with_suggestion(message), self.format_usage())


def parser() -> argparse.ArgumentParser:
    """The whole command line."""
    parser = _Parser(
        prog="sickbay-agent",
        description="Checks this node, and reports to the aggregator or on the terminal.",
        formatter_class=_formatter,
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version and exit")
    commands = parser.add_subparsers(prog="sickbay-agent", required=True, metavar="COMMAND")

    run = _command(commands, "run", "run the agent until SIGTERM or SIGINT")
    _add_config(run)

    check = _command(commands, "check", "check this node; exit code 1 if it failed")
    _add_config(check)
    _add_timeout(check)
    output = check.add_mutually_exclusive_group()
    _add_output(output)
    output.add_argument(
        SLURM,
        action="store_true",
        help="print one line with the reason; exit code 1 if failed, else 0, after errors too",
    )
    check.add_argument(
        "--fail-on",
        choices=("failed", "degraded", "unknown"),
        help="the mildest status with exit code 1 (default: failed)",
    )

    checks = _command(commands, "checks", "list the checks: on, or off and why, and their cost")
    _add_config(checks)
    _add_timeout(checks)
    _add_output(checks)

    config = _command(commands, "config", "check a configuration")
    about = config.add_subparsers(required=True, metavar="COMMAND")
    sound = _command(about, "check", "list every error of a configuration; exit code 2 if any")
    sound.add_argument("file", type=Path, metavar="FILE", help="the configuration")
    sound.set_defaults(command="config check")

    ready = _command(
        commands,
        "ready",
        "report whether a job may start here now; exit code 0 ready, 1 not ready, 3 no answer",
    )
    ready.add_argument(
        "--gpus",
        default="",
        metavar="GPU,...",
        help="only these GPUs: indices, UUIDs or PCI addresses (default: all)",
    )
    _add_config(ready)
    _add_timeout(ready, READY_TIMEOUT)
    _add_output(ready)

    explain = _command(commands, "explain", "print the reasons for the running agent's results")
    explain.add_argument(
        "check", nargs="?", default="", metavar="CHECK", help="only this check (default: all)"
    )
    _add_config(explain)
    _add_timeout(explain)
    _add_output(explain)

    decode = _command(commands, "parse-kmsg", "list the faults in a kernel log file")
    decode.add_argument(
        "file",
        type=Path,
        metavar="FILE",
        help='output of dmesg or journalctl -k, or raw records; "-" is standard input',
    )
    _add_output(decode)

    prober = _command(commands, "pod-prober", "answer the check pod-network from the pod network")
    prober.add_argument(
        "--socket",
        type=Path,
        default=POD_PROBER_SOCKET,
        metavar="FILE",
        help=f"its socket (default: {POD_PROBER_SOCKET})",
    )

    _add_test(commands)
    _add_cleared(commands)
    _add_quiesce(commands)
    _add_simulate(commands)
    return parser


def _add_cleared(commands: Any) -> None:
    cleared = _command(commands, "cleared", "report to the running agent that faults were repaired")
    what = cleared.add_argument
    what("--gpu", metavar="UUID", help="only faults of this GPU; a PCI address is accepted too")
    what("--code", metavar="CODE", help="only this fault, such as xid:48")
    _add_config(cleared)
    _add_timeout(cleared)


def _add_quiesce(commands: Any) -> None:
    quiesce = _command(
        commands, "quiesce", "have the running agent release the GPU driver for a time"
    )
    how = quiesce.add_mutually_exclusive_group(required=True)
    how.add_argument(
        "--for",
        dest="seconds",
        type=_quiesce,
        metavar="TIME",
        help='for this time, 24h at most, such as "30m"',
    )
    how.add_argument("--end", action="store_true", help="end that now")
    _add_config(quiesce)
    _add_timeout(quiesce)


def _add_test(commands: Any) -> None:
    test = _command(
        commands,
        "test",
        "put load on this node and measure; exit code 0 passed, 1 failed, 3 no verdict",
    )
    what = test.add_mutually_exclusive_group(required=True)
    what.add_argument("--profile", metavar="NAME", help="run this test profile")
    what.add_argument("--list", action="store_true", help="print the profiles and what they need")
    test.add_argument(
        "--peer", default="", metavar="ADDRESS", help="the other node, for profiles that need one"
    )
    test.add_argument(
        "--force",
        action="store_true",
        help="run although processes have a GPU open; the test disturbs them",
    )
    test.add_argument("--json", action="store_true", help="print the result as JSON")
    _add_config(test)


def _add_simulate(commands: Any) -> None:
    simulate = _command(commands, "simulate", "simulate nodes, for demos, tests and benchmarks")
    add = simulate.add_argument
    who = simulate.add_mutually_exclusive_group(required=True)
    who.add_argument("--nodes", type=_number(1, 100_000), metavar="N", help="the number of nodes")
    who.add_argument(
        "--names", type=Path, metavar="FILE", help="a file with the nodes' names, one per line"
    )
    add(
        "--aggregator",
        required=True,
        metavar="HOST:PORT",
        help="the aggregator's address for agents",
    )
    add("--scenario", type=Path, metavar="FILE", help="a file with faults and their times")
    add("--stdin", action="store_true", help="read faults from stdin as lines of JSON; end with it")
    add("--prefix", default="sim-", help="the beginning of the names with --nodes (default: sim-)")
    add(
        "--gpus",
        type=_number(1, 16),
        default=8,
        metavar="N",
        help="the GPUs of each node (default: 8)",
    )
    add("--seed", type=_number(0, 2**32 - 1), metavar="N", help="the seed of all random choices")
    add(
        "--connections",
        type=_number(0, 10_000),
        default=0,
        metavar="N",
        help="the number of connections; 0: one for each node, as real agents (default: 0)",
    )
    add("--ca-file", type=Path, metavar="FILE", help="use TLS, with this CA")
    add(
        "--server-name", default="", metavar="NAME", help="the name in the aggregator's certificate"
    )
    add(
        "--token-dir",
        type=Path,
        metavar="DIR",
        help="a folder with a token for each node, in a file of its name",
    )
    add(
        "--cert-dir",
        type=Path,
        metavar="DIR",
        help="a folder with a client certificate for each node: NODE.crt and NODE.key",
    )
    add(
        "--insecure-plaintext",
        action="store_true",
        help="allow plaintext to other addresses than loopback",
    )
    add(
        "--log-level",
        choices=("debug", "info", "warning", "error"),
        default="info",
        help="default: info",
    )


def _formatter(prog: str) -> argparse.HelpFormatter:
    # argparse makes one for every argument, and one without a width imports shutil: 10 ms.
    return argparse.HelpFormatter(prog, width=100)


def _command(commands: Any, name: str, purpose: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=purpose,
        description=purpose[0].upper() + purpose[1:] + ".",
        formatter_class=_formatter,
    )
    parser.set_defaults(command=name)
    return parser


def _add_config(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help=f"the agent's configuration (default: {DEFAULT_CONFIG})",
    )


def _add_timeout(parser: argparse.ArgumentParser, seconds: float = 20.0) -> None:
    parser.add_argument(
        "--timeout",
        type=_timeout,
        default=seconds,
        metavar="TIME",
        help=f"end after this time at the latest (default: {seconds:g}s)",
    )


def _add_output(parser: Any) -> None:
    parser.add_argument(
        "-o", "--output", choices=("table", "json"), default="table", help="default: table"
    )


def _timeout(text: str) -> float:
    try:
        seconds = units.duration(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f'{error}; expected a duration such as "20s"') from None
    if seconds < 1:
        raise argparse.ArgumentTypeError(f'"{text}" is less than 1s')
    return seconds


def _quiesce(text: str) -> float:
    from nodeagent.commands import LONGEST_QUIESCE  # its imports are for this command alone

    seconds = _timeout(text)
    if seconds > LONGEST_QUIESCE:
        raise argparse.ArgumentTypeError(f'"{text}"; expected 24h at most')
    return seconds


def _number(low: int, high: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not text.isascii() or not text.isdigit() or not low <= int(text) <= high:
            raise argparse.ArgumentTypeError(
                f'"{text}"; expected a whole number from {low} to {high}'
            )
        return int(text)

    return parse


class _Version(argparse.Action):
    """As argparse's own, which needs its text at every start."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any, **__: Any) -> NoReturn:
        from nodeagent.version import VERSION

        sys.stdout.write(f"sickbay-agent {VERSION}\n")
        parser.exit()
