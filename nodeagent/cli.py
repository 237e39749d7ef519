"""``sickbay-agent``: run the agent, ask it, list its checks, decode a kernel log, play a fleet.

Each command imports what it needs and no more: ``check`` stands in the prolog of every job.
"""

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from nodeagent import units
from nodeagent.config import Config, ConfigError, default, load

DEFAULT_CONFIG = Path("/etc/sickbay/agent.toml")

#: What it promises (0 on anything but failed) holds for a mistyped command line too.
SLURM = "--slurm"

OK, BAD, USAGE = 0, 1, 2
#: sysexits.h EX_SOFTWARE: a defect of ours must not read as "the node is bad" (1).
INTERNAL = 70
INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run ``sickbay-agent`` and exit: 0, 1 (something is wrong with the node), 2 (bad input).

    It leaves by os._exit: a probe that hangs in the kernel must not keep the command waiting.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        code = _run(given, os.environ)
    except KeyboardInterrupt:
        code = INTERRUPTED
    except BrokenPipeError:
        code = OK  # whoever read us (head, less) has seen enough
    except Exception as error:  # noqa: BLE001  # outermost edge: see INTERNAL
        if SLURM not in given:
            import traceback

            traceback.print_exc()
        print(f"sickbay: internal error: {type(error).__name__}: {error}", file=sys.stderr)
        code = INTERNAL
    leave(OK if SLURM in given and code != BAD else code)


def leave(code: int) -> NoReturn:
    """Exit now, whatever hangs. What was printed is printed."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            continue  # nobody reads it; the exit code still says what there is to say
    os._exit(code)


def _run(given: list[str], environ: Mapping[str, str]) -> int:
    try:
        options = _parser().parse_args(given)
    except SystemExit as stop:  # argparse has said what is wrong, or printed the help
        return USAGE if stop.code else OK
    try:
        code: int = options.command(options, environ)
    except ConfigError as error:
        for problem in error.problems:
            print(problem, file=sys.stderr)
        return USAGE
    return code


def _load(options: argparse.Namespace, environ: Mapping[str, str], **how: bool) -> Config:
    """The file that was named, else the usual one, else (but for ``run``) no file at all."""
    if options.config is not None:
        return load(options.config, environ, **how)
    if DEFAULT_CONFIG.exists() or options.command is _command_run:
        return load(DEFAULT_CONFIG, environ, **how)
    return default(environ, **how)


def _command_run(options: argparse.Namespace, environ: Mapping[str, str]) -> int:
    config = _load(options, environ)
    from nodeagent import agent

    return agent.run(config)


def _command_check(options: argparse.Namespace, environ: Mapping[str, str]) -> int:
    from nodeagent import report
    from nodeagent.findings import Findings, rank
    from nodeagent.model import Status

    limit = Status[options.fail_on.upper()]

    def tell(findings: Findings) -> int:
        if options.slurm:
            print(report.slurm_line(findings))
        elif options.output == "json":
            print(report.as_json(findings.as_json()))
        else:
            print(report.findings_table(findings, colour=_colour(environ)))
        return BAD if rank(findings.worst) >= rank(limit) else OK

    return tell(_gathered(options, environ, lambda findings: leave(tell(findings))))


def _command_checks(options: argparse.Namespace, environ: Mapping[str, str]) -> int:
    config = _load(options, environ)
    from nodeagent import catalogue
    from nodeagent.findings import Findings
    from nodeagent.report import as_json

    def tell(findings: Findings) -> int:
        entries = catalogue.entries(config, findings)
        print(as_json(entries) if options.output == "json" else catalogue.listing(entries))
        return OK

    return tell(_gathered(options, environ, lambda findings: leave(tell(findings))))


def _gathered(
    options: argparse.Namespace, environ: Mapping[str, str], late: Callable[..., NoReturn]
) -> Any:
    """Findings. When the time is over, ``late`` gets what there is then, and ends the process."""
    from nodeagent.gather import gather

    def load_config(**how: bool) -> Config:
        return _load(options, environ, **how)

    return gather(load_config, timeout=options.timeout, late=late)


def _command_parse_kmsg(options: argparse.Namespace, environ: Mapping[str, str]) -> int:
    del environ
    from nodeagent import kmsg_file
    from nodeagent.report import as_json

    try:
        found = kmsg_file.decode_file(options.file)
    except OSError as error:
        print(f"{options.file}: can't be read: {error.strerror}", file=sys.stderr)
        return USAGE
    print(as_json(found) if options.output == "json" else kmsg_file.table(found))
    return OK


def _command_simulate(options: argparse.Namespace, environ: Mapping[str, str]) -> int:
    del environ
    from nodeagent.simulate import command

    return command.run(options)


def _colour(environ: Mapping[str, str]) -> bool:
    return sys.stdout.isatty() and not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="sickbay-agent",
        description="Health of this node: its evidence, to the aggregator or to you.",
        allow_abbrev=False,
        formatter_class=_formatter,
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version and exit")
    commands = parser.add_subparsers(prog="sickbay-agent", required=True, metavar="COMMAND")

    run = _command(commands, "run", _command_run, "run the agent until it is told to stop")
    _add_config(run)

    check = _command(commands, "check", _command_check, "how this node is; exit 1 if it failed")
    _add_config(check)
    _add_timeout(check)
    output = check.add_mutually_exclusive_group()
    _add_output(output)
    output.add_argument(
        SLURM,
        action="store_true",
        help="one line with the reason; exit 1 if failed, and 0 on anything else, errors included",
    )
    check.add_argument(
        "--fail-on",
        choices=("failed", "degraded", "unknown"),
        default="failed",
        help="the least that makes the exit code 1 (default: failed)",
    )

    checks = _command(commands, "checks", _command_checks, "the checks: on, off and why, cost")
    _add_config(checks)
    _add_timeout(checks)
    _add_output(checks)

    decode = _command(
        commands, "parse-kmsg", _command_parse_kmsg, "the GPU faults in a kernel log file"
    )
    decode.add_argument(
        "file", type=Path, metavar="FILE", help="output of dmesg or journalctl -k, or raw records"
    )
    _add_output(decode)

    _add_simulate(commands)
    return parser


def _add_simulate(commands: Any) -> None:
    simulate = _command(
        commands, "simulate", _command_simulate, "play nodes, for demos, tests and benchmarks"
    )
    add = simulate.add_argument
    who = simulate.add_mutually_exclusive_group(required=True)
    who.add_argument("--nodes", type=_number(1, 100_000), metavar="N", help="so many")
    who.add_argument("--names", type=Path, metavar="FILE", help="these, one name a line")
    add("--aggregator", required=True, metavar="HOST:PORT", help="where they connect")
    add("--scenario", type=Path, metavar="FILE", help="what happens to them, and when")
    add("--stdin", action="store_true", help="take events as lines of JSON; end when they end")
    add("--prefix", default="sim-", help="of the names of --nodes (default: sim-)")
    add("--gpus", type=_number(1, 16), default=8, metavar="N", help="of each node (default: 8)")
    add("--seed", type=_number(0, 2**32 - 1), metavar="N", help="draw the same each time")
    add(
        "--connections",
        type=_number(0, 10_000),
        default=0,
        metavar="N",
        help="share so many; 0: one for each node, as in life (default: 0)",
    )
    add("--ca-file", type=Path, metavar="FILE", help="TLS, by this CA")
    add("--server-name", default="", metavar="NAME", help="in the aggregator's certificate")
    add("--token-dir", type=Path, metavar="DIR", help="a token for each node in a file of its name")
    add("--insecure-plaintext", action="store_true", help="plaintext beyond loopback")
    add("--log-level", choices=("debug", "info", "warning", "error"), default="info")


def _formatter(prog: str) -> argparse.HelpFormatter:
    # argparse makes one for every argument, and one without a width imports shutil: 10 ms.
    return argparse.HelpFormatter(prog, width=100)


def _command(commands: Any, name: str, command: Any, purpose: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=purpose,
        description=purpose[0].upper() + purpose[1:] + ".",
        allow_abbrev=False,
        formatter_class=_formatter,
    )
    parser.set_defaults(command=command)
    return parser


def _add_config(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help=f"configuration (default: {DEFAULT_CONFIG})"
    )


def _add_timeout(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--timeout",
        type=_timeout,
        default=20.0,
        metavar="TIME",
        help="be done by then, whatever hangs (default: 20s)",
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


def _number(low: int, high: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not text.isascii() or not text.isdigit() or not low <= int(text) <= high:
            raise argparse.ArgumentTypeError(
                f'"{text}"; expected a whole number from {low} to {high}'
            )
        return int(text)

    return parse


class _Version(argparse.Action):
    """As argparse's own, which wants its text made at every start."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any, **__: Any) -> NoReturn:
        from nodeagent.version import VERSION

        print(f"sickbay-agent {VERSION}")
        parser.exit()


if __name__ == "__main__":
    main()
