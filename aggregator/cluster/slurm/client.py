"""Slurm through its own programs: `scontrol`, `sinfo` and `squeue`, each bounded in time.

They prove the user by munge or a token, as every user's do. No shell runs them.
"""

import logging
import os
import pwd
import re
import secrets
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from aggregator.cluster.guarded_program import ProgramStopped, run_guarded
from aggregator.cluster.port import UNGUARDED, Guard, NotFound, Refused, Unreachable
from aggregator.cluster.slurm.state import (
    JOB_FORMAT,
    SlurmJob,
    SlurmNode,
    UnreadableOutput,
    first_error,
    read_jobs,
    read_nodes,
)
from aggregator.runtime.command_output import last_text
from aggregator.runtime.node_name import expect_one_node
from sickbay.json_text import read_json

log = logging.getLogger("sickbay.slurm")

#: Parts of slurm's own messages (src/common/slurm_errno.c).
NO_NODE = "Invalid node name specified"
NO_PROOF = ("Protocol authentication error", "Authentication failure", "Invalid user id")
NO_RIGHT = ("Access/permission denied", *NO_PROOF)
_NO_PROGRAM = "RebootProgram isn't defined"
#: The right to reboot is one above that to drain.
_NO_REBOOT = "ermission denied"
_START = re.compile(r"^BOOT_TIME *= *(\S+)", re.MULTILINE)
_USER = re.compile(r"^SlurmUser *= *([^\s(]+)", re.MULTILINE)
#: Characters of a reason, of up to 4 bytes each: Linux runs no program with a longer argument.
_LONGEST_WORDS = 32_000
#: Names of nodes in one argument, of up to 253 bytes each. More are chosen from all nodes.
_MOST_NAMED = 400
_NO_OPTION = ("unrecognized option", "invalid option")


class ControllerFacts(NamedTuple):
    """``started``: when slurmctld was started, in its own words. ``user``: SlurmUser, as whom it
    appends words to reasons; empty: not known.
    """

    started: str
    user: str = ""


class SlurmClient(Protocol):
    """Slurm, as sickbay uses it. Raises `Unreachable`, `Refused` and `NotFound`."""

    @property
    def user(self) -> str:
        """The user whom Slurm records as the author of our drains."""

    async def read_nodes(self, names: Collection[str] | None = None) -> list[SlurmNode]:
        """These nodes, or all of them. A name that Slurm does not know has no entry."""

    async def read_jobs(self, node: str) -> list[SlurmJob]:
        """The jobs that run or end on a node."""

    async def read_controller(self) -> ControllerFacts: ...

    async def drain(self, node: str, reason: str, *, guard: Guard) -> None: ...

    async def undrain(self, node: str, *, guard: Guard) -> None:
        """Take the drain back, and nothing else: a node that is DOWN stays so."""

    async def write_reason(self, node: str, words: str, *, guard: Guard) -> None: ...

    async def reboot(self, node: str, *, guard: Guard) -> None:
        """Have slurmd run RebootProgram when no job is left there; the drain stays."""

    async def cancel_reboot(self, node: str) -> None:
        """Slurm 22.05 takes the drain back too."""


@dataclass(slots=True)
class SlurmPrograms:
    """`SlurmClient` by programs that are found in ``folder``, or on the path where it is empty.

    ``limit``: seconds of each. ``conf``: SLURM_CONF, empty for Slurm's default.
    """

    folder: str = ""
    conf: str = ""
    limit: float = 30.0
    #: munge proves the user of this process.
    user: str = field(default_factory=lambda: pwd.getpwuid(os.geteuid()).pw_name)
    #: Whether `scontrol` knows --json, as from Slurm 23.02 on; unset until it was tried.
    _scontrol_has_json: bool | None = None

    async def read_nodes(self, names: Collection[str] | None = None) -> list[SlurmNode]:
        if names is not None and not names:
            return []
        checked = sorted(checked_names(names or ()))
        chosen = ",".join(checked) if len(checked) <= _MOST_NAMED else ""
        if self._scontrol_has_json is not False:
            command = ["scontrol", "--json", "show", "nodes", *([chosen] if chosen else [])]
            code, output = await self._run(command, guard=UNGUARDED)
            # What a program prints has the words of administrators: only its failure is Slurm's.
            self._scontrol_has_json = code == 0 or not any(text in output for text in _NO_OPTION)
        if not self._scontrol_has_json:
            command = ["sinfo", "--json", *(["--nodes", chosen] if chosen else [])]
            code, output = await self._run(command, guard=UNGUARDED)
        if code != 0 and NO_NODE in output and chosen:
            # sinfo refuses the whole list because of one name that it does not know.
            found = await self.read_nodes()
        else:
            found = nodes_of(_answer(command, code, output))
        # sinfo of 22.05 prints all nodes, whatever its options are.
        return found if names is None else [one for one in found if one.name in names]

    async def read_jobs(self, node: str) -> list[SlurmJob]:
        [name] = checked_names([node])
        mark = secrets.token_hex(8)
        options = ["--noheader", "--states=all", f"--format={mark}{JOB_FORMAT}"]
        command = ["squeue", *options, "--nodelist", name]
        code, output = await self._run(command, guard=UNGUARDED)
        if code != 0 and NO_NODE in output:
            return []
        _expect_success(command, code, output)
        return read_jobs(output, mark)

    async def read_controller(self) -> ControllerFacts:
        command = ["scontrol", "show", "config"]
        code, output = await self._run(command, guard=UNGUARDED)
        _expect_success(command, code, output)
        started, user = _START.search(output), _USER.search(output)
        return ControllerFacts(started[1] if started else "", user[1] if user else "")

    async def drain(self, node: str, reason: str, *, guard: Guard) -> None:
        await self._update(node, "state=drain", f"reason={reason}", guard=guard)

    async def undrain(self, node: str, *, guard: Guard) -> None:
        await self._update(node, "state=undrain", guard=guard)

    async def write_reason(self, node: str, words: str, *, guard: Guard) -> None:
        # scontrol takes one quote from each end of the words.
        await self._update(node, f'reason="{words[:_LONGEST_WORDS]}"', guard=guard)

    async def reboot(self, node: str, *, guard: Guard) -> None:
        [name] = checked_names([node])
        code, output = await self._write(name, ["scontrol", "reboot", name], "reboot", guard)
        if _NO_PROGRAM in output:
            raise Refused(f"scontrol reboot exited with {code}: set RebootProgram in slurm.conf")
        if code != 0 and _NO_REBOOT in output:
            raise Refused(
                f"scontrol reboot exited with {code}: {output.splitlines()[-1]}; user {self.user}"
                " needs AdminLevel Administrator, or to be SlurmUser"
            )
        _expect_success(["scontrol", "reboot"], code, output)

    async def cancel_reboot(self, node: str) -> None:
        [name] = checked_names([node])
        command = ["scontrol", "cancel_reboot", name]
        code, output = await self._write(name, command, "cancel_reboot", UNGUARDED)
        _expect_success(command, code, output)

    async def _update(self, node: str, *words: str, guard: Guard) -> None:
        [name] = checked_names([node])
        command = ["scontrol", "update", f"nodename={name}", *words]
        code, output = await self._write(name, command, words[0], guard)
        _expect_success(command, code, output)

    async def _write(
        self, name: str, command: Sequence[str], change: str, guard: Guard
    ) -> tuple[int, str]:
        """Run a command that changes the node, and log it."""
        code, output = await self._run(command, guard=guard)
        log.info(
            "slurm node updated" if code == 0 else "slurm node not updated",
            extra={"event": "slurm.update", "node": name, "change": change, "rc": code}
            | ({"error": output[-500:]} if code else {}),
        )
        return code, output

    async def _run(self, command: Sequence[str], *, guard: Guard) -> tuple[int, str]:
        """Its exit code, and what it printed: all where it ended with 0, else its end."""
        program = os.path.join(self.folder, command[0])  # noqa: PTH118 - "" leaves it to the path
        environ = (
            os.environ
            | {"LC_ALL": "C", "SLURM_TIME_FORMAT": "%s"}
            | ({"SLURM_CONF": self.conf} if self.conf else {})
        )
        with (
            os.fdopen(os.memfd_create("slurm"), "w+b") as output,
            os.fdopen(os.memfd_create("slurm-error"), "w+b") as errors,
        ):
            try:
                code = await run_guarded(
                    [program, *command[1:]],
                    environ=environ,
                    limit=self.limit,
                    guard=guard,
                    output=output,
                    errors=errors,
                )
            except OSError as error:
                text = f"{program} can't be run: {error.strerror}; set cluster.slurm.programs"
                raise Refused(text) from error
            except ProgramStopped as stopped:
                raise Unreachable(f"{command[0]} {stopped}") from None
            if code != 0:
                return code, last_text(errors) or last_text(output)
            output.seek(0)
            return 0, output.read().decode(errors="replace")


def checked_names(names: Collection[str]) -> list[str]:
    """Names that mean one node each. Raises `Refused`: another text may mean every node."""
    for name in names:
        try:
            expect_one_node(name)
        except ValueError as error:
            raise Refused(str(error)) from error
    return list(names)


def nodes_of(answer: dict[str, Any]) -> list[SlurmNode]:
    """The nodes of an answer in JSON. Raises `Unreachable`."""
    try:
        return read_nodes(answer)
    except UnreadableOutput as error:
        raise Unreachable(str(error)) from error


def _answer(command: Sequence[str], code: int, output: str) -> dict[str, Any]:
    _expect_success(command, code, output)
    try:
        answer = read_json(output)
    except ValueError as error:
        raise Unreachable(f"{' '.join(command[:2])} printed no JSON: {error}") from error
    if not isinstance(answer, dict):
        raise Unreachable(f"{' '.join(command[:2])} printed JSON without the field 'meta'")
    if problem := first_error(answer):
        raise Unreachable(f"{' '.join(command[:2])}: {problem}")
    return answer


def _expect_success(command: Sequence[str], code: int, output: str) -> None:
    if code == 0:
        return
    last = output.splitlines()[-1] if output else "no output"
    text = f"{' '.join(command[:2])} exited with {code}: {last}"
    if NO_NODE in output:
        raise NotFound(text)
    if any(part in output for part in NO_RIGHT):
        raise Refused(refusal(text))
    raise Unreachable(text)


def refusal(text: str, user: str = "") -> str:
    """The text of a refusal, with the right or the proof that is missing."""
    who = f"user {user}" if user else "the aggregator's user"
    if any(part in text for part in NO_PROOF):
        return f"{text}; slurmctld does not accept the proof of {who}: renew the token or munge.key"
    return f"{text}; {who} needs AdminLevel Operator, or to be SlurmUser"
