"""Checks of the site's own: a program whose exit code is the verdict. docs/own-checks.md.

The node is the component. Two protocols, whose codes differ:

- ``nagios`` (the Monitoring Plugins guidelines): 0 ok; 1 degraded, ``warning``; 2 failed,
  ``critical``; 3 ``unknown``; the message is the first line, up to the performance data.
- ``npd`` (node-problem-detector's custom plugins): 0 ok; 1 failed, ``problem``; 2 and more
  ``unknown``; the message is the whole output.

A result without a verdict about the node is unknown: ``not-found`` (127), ``not-executable`` (126),
``killed`` (a signal), ``timeout``, ``too-much-output``, ``bad-exit`` (a code that the protocol does
not have), ``stuck`` (an earlier run hangs in the kernel), ``not-started`` (a fault of ours).
"""

import errno
from collections.abc import Mapping
from typing import Any

from nodeagent.checks.base import CheckSpec, Report
from nodeagent.child_process import signal_name
from nodeagent.configfile.units import counted
from nodeagent.dataclass import dataclass
from nodeagent.model import Observation, Status
from nodeagent.sources import Sources
from nodeagent.sources.command import CommandProcess, CommandStuck, Outcome

NAGIOS, NPD = "nagios", "npd"
PROTOCOLS = (NAGIOS, NPD)
#: Seconds above the program's own limit, to wait for its end and its children's.
GRACE = 5.0

_WORDS = 500
_NOT_EXECUTABLE, _NOT_FOUND = 126, 127
_CODES: Mapping[str, Mapping[int, tuple[Status, str]]] = {
    NAGIOS: {
        0: (Status.OK, ""),
        1: (Status.DEGRADED, "warning"),
        2: (Status.FAILED, "critical"),
        3: (Status.UNKNOWN, "unknown"),
    },
    NPD: {0: (Status.OK, ""), 1: (Status.FAILED, "problem")},
}
_OTHER_CODE = {NAGIOS: "bad-exit", NPD: "unknown"}


def evaluate(protocol: str, ran: Outcome | CommandStuck) -> tuple[Status, str, str]:
    """Pure. Status, reason and message."""
    if isinstance(ran, CommandStuck):
        return Status.UNKNOWN, "stuck", f"an earlier run cannot be ended: {ran.where}"
    status, reason, why = _verdict(protocol, ran)
    words = [_program_text(protocol, ran), why]
    if ran.left:
        words.append(f"{counted(ran.left, 'process', 'processes')} left behind, ended")
    if ran.stuck:
        words.append(f"cannot be ended: {ran.stuck}")
    return status, reason, "; ".join(word for word in words if word)


def _verdict(protocol: str, ran: Outcome) -> tuple[Status, str, str]:
    """Status, reason, and a text to add to the program's own words."""
    if ran.errno is not None:
        reason = "not-found" if ran.errno == errno.ENOENT else "not-executable"
        hint = {
            errno.ENOENT: " (or the interpreter in its first line)",
            errno.ENOEXEC: " (a script without a first line #!INTERPRETER)",
        }.get(ran.errno, "")
        why = f"cannot be started: {errno.errorcode.get(ran.errno, ran.errno)}{hint}"
        return Status.UNKNOWN, reason, why
    if ran.late is not None:
        where = f" ({ran.late})" if ran.late else ""
        return Status.UNKNOWN, "timeout", f"not done by its time limit{where}, ended"
    if ran.flood:
        return Status.UNKNOWN, "too-much-output", "wrote more than 4 MiB, ended"
    if ran.signal is not None:
        return Status.UNKNOWN, "killed", f"killed by {signal_name(ran.signal)}"
    if ran.exit is None:
        return Status.UNKNOWN, "not-started", ran.broken
    if ran.exit in (_NOT_EXECUTABLE, _NOT_FOUND):
        reason = "not-found" if ran.exit == _NOT_FOUND else "not-executable"
        return Status.UNKNOWN, reason, f"exit code {ran.exit}"
    known = _CODES[protocol].get(ran.exit)
    if known is not None:
        return *known, "" if _program_text(protocol, ran) else f"exit code {ran.exit}, not a word"
    return Status.UNKNOWN, _OTHER_CODE[protocol], f"exit code {ran.exit}"


def _program_text(protocol: str, ran: Outcome) -> str:
    """The program's words for people; those on standard error where there are no others."""
    text = ran.out.strip() or ran.err.strip()
    if protocol == NAGIOS:
        first = text.split("\n", 1)[0]
        text = first.split("|", 1)[0] if ran.out.strip() else first
    printable = "".join(char if char.isprintable() else " " for char in text)
    return " ".join(printable.split())[:_WORDS]


class OwnCheck:
    def __init__(self, name: str, protocol: str, program: CommandProcess) -> None:
        self._name = name
        self._protocol = protocol
        self._program = program

    async def run_check(self) -> Report:
        status, reason, message = evaluate(self._protocol, await self._program.run())
        return [Observation(self._name, "", status, reason, message)]

    def stop(self) -> None:
        self._program.stop()


@dataclass(frozen=True, slots=True)
class Build:
    """Makes the check; equal to another of the same settings. ``time_limit`` is in seconds."""

    name: str
    protocol: str
    command: tuple[str, ...]
    time_limit: float

    def __call__(self, sources: Sources, options: Mapping[str, Any]) -> OwnCheck:
        del options
        root = sources.machine.root
        program = CommandProcess(self.command, time_limit=self.time_limit, host_root=root)
        return OwnCheck(self.name, self.protocol, program)


def spec(build: Build, *, interval: float, sees: str = "") -> CheckSpec:
    """The check as ``sickbay-agent checks`` shows it."""
    path = build.command[0]
    return CheckSpec(
        name=build.name,
        sees=sees or f"the result of {path}",
        source=f"{' '.join(build.command)} ({build.protocol})",
        cost="the program's own, and 25 ms of CPU a run",
        blind_to="faults that the program does not test",
        interval=interval,
        deadline=build.time_limit + GRACE,
        build=build,
    )
