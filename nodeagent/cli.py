"""``sickbay-agent``: run the agent, query it, list its checks, decode a kernel log, play a fleet.

Each command imports only the modules that it needs: ``check`` runs in the prolog of every job.
"""

import errno
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, TextIO

from nodeagent import python_tls
from nodeagent.config.settings import Config, ConfigError, default, load
from nodeagent.configfile.units import counted
from nodeagent.terminal.run_arguments import (
    DEFAULT_CONFIG,
    SLURM,
    BadUsage,
    parse_ready,
    parse_run,
)
from sickbay.process import open_streams

if TYPE_CHECKING:
    import argparse

OK, BAD, USAGE = 0, 1, 2
#: Of ``test`` and ``ready``: no verdict about the node.
NO_VERDICT = 3
#: sysexits.h EX_SOFTWARE: a defect of ours must not read as "the node is bad" (1).
INTERNAL = 70
INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run ``sickbay-agent`` and exit: 0, 1 (something is wrong with the node), 2 (bad input).

    It exits by os._exit, because a probe that hangs in the kernel must not delay the command.
    """
    open_streams()
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        code = _run(given, os.environ)
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001  # outermost edge
        code = _not_checked(error) if SLURM in given else _explain(error)
    leave(code)


def leave(code: int) -> NoReturn:
    """Exit now, even if a thread hangs. Output that was printed has been flushed."""
    for stream in (sys.stdout, sys.stderr):
        _write(stream, "")
    os._exit(code)


def _run(given: list[str], environ: Mapping[str, str]) -> int:
    try:
        options: Any = parse_run(given) or parse_ready(given) or _parse(given)
    except SystemExit:  # argparse has printed the help
        return OK
    return _COMMANDS[options.command](options, environ)


def _parse(given: Sequence[str]) -> Any:
    from nodeagent.terminal.arguments import parse

    return parse(given)


def _explain(error: BaseException) -> int:
    """Print the error on standard error; the exit code for it."""
    match error:
        case KeyboardInterrupt():
            return INTERRUPTED
        case BrokenPipeError():
            return OK  # the reader of our output (head, less) has closed it
        case OSError(errno=errno.ENOSPC):
            _write(sys.stderr, f"sickbay-agent: the answer can't be written: {error}\n")
            return INTERNAL
        case BadUsage():
            _write(sys.stderr, f"{error.usage}sickbay-agent: error: {error}\n")
            return USAGE
        case ConfigError():
            _write(sys.stderr, "".join(f"{problem}\n" for problem in error.problems))
            return USAGE
        case ModuleNotFoundError() if text := _explain_missing(error):
            _write(sys.stderr, f"{text}\n")
            return USAGE
        case _:
            import traceback

            trace = "".join(traceback.format_exception(error))
            _write(sys.stderr, f"{trace}sickbay: internal error: {type(error).__name__}: {error}\n")
            return INTERNAL


def _explain_missing(error: ModuleNotFoundError) -> str | None:
    from sickbay.extras import explain_missing

    return explain_missing(error, program="sickbay-agent", extra="agent")


def _not_checked(error: BaseException) -> int:
    """In a prolog: one line, and no exit code that would drain the node for our own error."""
    match error:
        case KeyboardInterrupt():
            why = "interrupted"
        case BadUsage():
            why = str(error)
        case ConfigError():
            more = len(error.problems) - 1
            why = str(error.problems[0]) + (f" (and {more} more)" if more else "")
        case ModuleNotFoundError() if text := _explain_missing(error):
            why = text
        case _:
            why = f"internal error: {type(error).__name__}: {error}"
    _write(sys.stdout, f"sickbay: not checked: {' '.join(why.split())}\n")
    return OK


def _write(stream: TextIO | None, text: str) -> None:
    """Write and flush. If no process reads it, the exit code still gives the result."""
    if stream is None:  # the stream was closed before we were started
        return
    try:
        stream.write(text)
        stream.flush()
    except (OSError, UnicodeError):
        return


def _load(options: "argparse.Namespace", environ: Mapping[str, str], **how: bool) -> Config:
    """The file that was named, else the usual one, else no file at all (``run`` needs one)."""
    if options.config is not None:
        return load(options.config, environ, **how)
    if DEFAULT_CONFIG.exists() or options.command == "run":
        return load(DEFAULT_CONFIG, environ, **how)
    return default(environ, **how)


def _command_run(options: "argparse.Namespace", environ: Mapping[str, str]) -> int:
    python_tls.leave_out()  # before any module imports asyncio
    # A reload that comes during the start must not end it; the file is read again soon anyway.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    config = _load(options, environ)
    from nodeagent import agent

    return agent.run(config, (options.config or DEFAULT_CONFIG, lambda: _load(options, environ)))


def _command_check(options: "argparse.Namespace", environ: Mapping[str, str]) -> int:
    from nodeagent.local.findings import Findings, rank
    from nodeagent.model import Status
    from nodeagent.terminal import report

    limit = Status[options.fail_on.upper()]

    def print_findings(findings: Findings) -> int:
        if options.slurm:
            findings = findings.of_this_node()
            _write(sys.stdout, report.slurm_line(findings) + "\n")
        elif options.output == "json":
            print(report.as_json(findings.as_json()))
        else:
            print(report.findings_table(findings, colour=_colour(environ)))
        return BAD if rank(findings.worst) >= rank(limit) else OK

    return print_findings(
        _gathered(options, environ, lambda findings: leave(print_findings(findings)))
    )


def _command_ready(options: "argparse.Namespace", environ: Mapping[str, str]) -> int:
    config = _load(options, environ, with_checks=False)
    from nodeagent.terminal import ready

    code, text, trouble = ready.request(config.socket, options)
    if text:
        _write(sys.stdout, text + "\n")
    if trouble:
        _write(sys.stderr, f"sickbay-agent: {trouble}\n")
    return {ready.READY: OK, ready.NOT_READY: BAD, ready.BAD_REQUEST: USAGE}.get(code, NO_VERDICT)


def _command_checks(options: "argparse.Namespace", environ: Mapping[str, str]) -> int:
    config = _load(options, environ)
    from nodeagent.local.findings import Findings
    from nodeagent.terminal import list_checks
    from nodeagent.terminal.report import as_json

    def print_checks(findings: Findings) -> int:
        entries = list_checks.entries(config, findings)
        print(as_json(entries) if options.output == "json" else list_checks.listing(entries))
        return OK

    return print_checks(_gathered(options, environ, lambda findings: leave(print_checks(findings))))


def _command_config_check(options: "argparse.Namespace", environ: Mapping[str, str]) -> int:
    config = load(options.file, environ)
    from nodeagent.config import credential_files

    if wrong := credential_files.problems(options.file, config):
        raise ConfigError(wrong)
    on = sum(check.on for check in config.checks.values())
    own = f", {len(config.own)} of them your own" if config.own else ""
    print(f"{options.file}: sound (node {config.node}, {counted(on, 'check')} on{own})")
    return OK


def _command_explain(options: "argparse.Namespace", environ: Mapping[str, str]) -> int:
    config = _load(options, environ, with_checks=False)
    from nodeagent.local import explain
    from nodeagent.local.client import AgentTrouble, NoAgent, get_json
    from nodeagent.terminal.report import as_json

    try:
        answer = get_json(config.socket, "/v1/explain", options.timeout)
    except NoAgent as error:
        step = "start it, or run each check once: sickbay-agent check"
        _write(sys.stderr, f"sickbay-agent: no agent is running ({error}); {step}\n")
        return BAD
    except AgentTrouble as error:
        _write(sys.stderr, f"sickbay-agent: {error}\n")
        return BAD
    known = [check["name"] for check in answer["checks"]]
    if options.check and options.check not in known:
        _write(
            sys.stderr,
            f"sickbay-agent: the agent has no check {options.check!r}; it has {', '.join(known)}\n",
        )
        return USAGE
    if options.output == "json":
        checks = [c for c in answer["checks"] if options.check in ("", c["name"])]
        print(as_json({**answer, "checks": checks}))
    else:
        print(explain.table(answer, options.check))
    return OK


def _gathered(
    options: "argparse.Namespace", environ: Mapping[str, str], late: Callable[..., NoReturn]
) -> Any:
    """Findings. When the time is over, ``late`` gets the findings so far, and ends the process."""
    from nodeagent.terminal.collect import gather

    def load_config(**how: bool) -> Config:
        return _load(options, environ, **how)

    return gather(load_config, timeout=options.timeout, late=late)


def _command_parse_kmsg(options: "argparse.Namespace", environ: Mapping[str, str]) -> int:
    del environ
    from nodeagent.terminal import kmsg_file
    from nodeagent.terminal.report import as_json

    try:
        decoded = kmsg_file.decode_file(options.file)
    except OSError as error:
        name = "standard input" if options.file == kmsg_file.STANDARD_INPUT else options.file
        why = str(error.strerror)
        why += "" if "; expected " in why else "; expected a kernel log"
        print(f"{name}: can't be read: {why}", file=sys.stderr)
        return USAGE
    if options.output == "json":
        print(as_json(decoded.faults))
        for note in decoded.notes():
            _write(sys.stderr, f"note: {note}\n")
    else:
        print(kmsg_file.table(decoded))
    return OK


def _command_pod_prober(options: "argparse.Namespace", environ: Mapping[str, str]) -> int:
    del environ
    from nodeagent import pod_prober

    return pod_prober.run(options.socket)


def _command_test(options: "argparse.Namespace", environ: Mapping[str, str]) -> int:
    config = _load(options, environ, with_checks=False)
    from nodeagent.terminal import active_test
    from nodeagent.terminal.report import as_json

    if options.list:
        profiles = active_test.profiles(config)
        print(as_json(profiles) if options.json else active_test.listing(profiles))
        return OK
    try:
        result = active_test.run(config, options, lambda line: _write(sys.stderr, line + "\n"))
    except active_test.NotRun as error:
        _write(sys.stderr, f"sickbay-agent: {error}\n")
        return USAGE if error.wrong_use else NO_VERDICT
    print(as_json(active_test.as_json(result)) if options.json else active_test.table(result))
    return active_test.exit_code(result)


def _command_order(options: "argparse.Namespace", environ: Mapping[str, str]) -> int:
    """``cleared`` and ``quiesce``."""
    config = _load(options, environ, with_checks=False)
    from nodeagent.terminal import order

    send = {"cleared": order.cleared, "quiesce": order.quiesce}[options.command]
    try:
        print(send(config, options))
    except order.NotDone as error:
        _write(sys.stderr, f"sickbay-agent: {error}\n")
        return BAD
    return OK


def _command_simulate(options: "argparse.Namespace", environ: Mapping[str, str]) -> int:
    del environ
    # Set before the import of gRPC, which reads it then: gRPC's C core would repeat on stderr, for
    # each node, what the simulation logs as JSON.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    from nodeagent.simulate import command

    return command.run(options)


def _colour(environ: Mapping[str, str]) -> bool:
    return sys.stdout.isatty() and not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"


_COMMANDS: Mapping[str, Callable[["argparse.Namespace", Mapping[str, str]], int]] = {
    "run": _command_run,
    "check": _command_check,
    "ready": _command_ready,
    "checks": _command_checks,
    "config check": _command_config_check,
    "explain": _command_explain,
    "parse-kmsg": _command_parse_kmsg,
    "pod-prober": _command_pod_prober,
    "test": _command_test,
    "cleared": _command_order,
    "quiesce": _command_order,
    "simulate": _command_simulate,
}


if __name__ == "__main__":
    main()
