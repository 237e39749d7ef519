"""Hears the agents: attached, what they say, gone. What ingest calls the intake."""

import asyncio
import logging
from collections.abc import Awaitable
from typing import Protocol

from aggregator.health.model import Delta, Hello, Snapshot
from aggregator.health.node import NodeHealth
from aggregator.policy.rules import Policy
from aggregator.quarantine.acts import Acts, Clocks
from aggregator.quarantine.attending import Attending
from aggregator.quarantine.case import Case
from aggregator.quarantine.census import Census
from aggregator.quarantine.judging import Judging
from aggregator.quarantine.ledger import Kind, Witness
from aggregator.quarantine.triangulating import Triangulating
from aggregator.shards.council import Shards

log = logging.getLogger("sickbay.quarantine")


class Line(Protocol):
    """The way back to an agent: what is asked of ingest's here."""

    def redirect(self, address: str, reason: str) -> None: ...

    def resync(self, reason: str) -> None: ...

    def close(self, reason: str) -> None: ...


class Hearing:
    """Ingest's `Intake`. ``silent_after`` is in seconds."""

    def __init__(
        self,
        *,
        census: Census,
        judging: Judging,
        attending: Attending,
        acts: Acts,
        policy: Policy,
        clocks: Clocks,
        silent_after: float,
        triangulating: Triangulating,
        witness: Witness,
        shards: Shards,
    ) -> None:
        self._census = census
        self._judging = judging
        self._attending = attending
        self._acts = acts
        self._policy = policy
        self._clocks = clocks
        self._silent_after = silent_after
        self._triangulating = triangulating
        self._witness = witness
        self._shards = shards
        self._lines: dict[str, Line] = {}
        self._hellos: dict[str, Hello] = {}
        #: Nodes that two agents claim, or did: what was said of them since was not taken down.
        self._untaken: set[str] = set()

    def home(self, node: str) -> str:
        """Where the node's agent belongs, "host:port"; empty: here, or it can't be told now."""
        return self._shards.home(node)

    def attached(self, hello: Hello, line: Line) -> None:
        """An authenticated stream said Hello; its snapshot follows."""
        case = self._census.case(hello.node)
        patient = case.patient
        if patient.health is None:
            patient.health = NodeHealth(hello)
            self._triangulating.renew(case)
        else:
            patient.health.greet(hello)
        self._census.count(case)
        silent = not patient.attached and patient.last_heard is not None
        patient.attached = True
        case.claimed, case.misnamed = hello.node_uid, False
        if patient.meta is not None and hello.node_uid not in ("", patient.meta.uid):
            case.suspect = True  # the list may be old: a read decides
            self._attending.kick(case)
        self._lines[hello.node], self._hellos[hello.node] = line, hello
        case.silent_failing = ""
        if patient.conflict:
            self._untaken.add(hello.node)
        if hello.node not in self._untaken:
            self._witness.greeted(hello)
        if silent and case.silent:
            case.silent = False
            self._acts.note(case, Kind.AGENT_BACK, "its agent is back")

    def heard(self, node: str, evidence: Snapshot | Delta, at: float) -> Awaitable[None] | None:
        """Fold and judge, now. A positive sign is acknowledged when it is durable."""
        case = self._census.case(node)
        health = case.patient.health
        if health is None or node not in self._lines:
            return _never()  # shut out, and its stream has not ended yet
        case.patient.last_heard = at
        if isinstance(evidence, Snapshot):
            health.snapshot(evidence)
            self._census.count(case)
            signs = bool(evidence.cleared)
        else:
            health.delta(evidence)
            signs = bool(evidence.cleared or evidence.gone)
        unread = case.unread or case.ours is False  # (it has just become ours, say)
        node_read = self._attending.view and case.patient.meta is not None and not unread
        if signs and unread:
            case.suspect = True  # a word that they end may be of another replica's time: a read
        case.take_signs(evidence.cleared, node_read=node_read)
        for lost in evidence.lost:
            self._acts.note(
                case, Kind.EVIDENCE_LOST, f"evidence lost ({lost.source}): {lost.message}"
            )
        self._triangulating.heard(node, evidence)
        self._judging.judge(case)
        self._take_down(case, evidence, at)
        needless = node_read and not self._attending.busy(case)
        if not signs or (needless and self._shards.may_act(node)):
            return None  # (who may not act may not know what they end: its next owner hears them)
        durable: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        case.waiters = (*case.waiters, durable)
        self._attending.kick(case)
        return durable

    def _take_down(self, case: Case, evidence: Snapshot | Delta, at: float) -> None:
        """For history, but for what two agents say in turn: rows with every swap, of nobody's word.

        It is judged all the same; once they are one again the record goes on from a new base.
        """
        if case.patient.conflict:
            self._untaken.add(case.node)
        elif case.node in self._untaken:
            self._take_down_anew(case, at)
        else:
            self._witness.told(case.node, evidence, at)

    def _take_down_anew(self, case: Case, at: float) -> None:
        hello, health = self._hellos.get(case.node), case.patient.health
        if hello is None or health is None or not health.has_snapshot:
            return  # its next snapshot begins it: what a base does not name was well
        self._untaken.discard(case.node)
        told = Snapshot(tuple(health.components.all()), tuple(health.faults.values()))
        self._witness.anew(hello, told, at)

    def digest(self, node: str) -> int | None:
        case = self._census.known(node)
        health = case.patient.health if case is not None else None
        return health.digest() if health is not None else None

    def beat(self, node: str, at: float) -> None:
        self._census.case(node).patient.last_heard = at

    def answered(self, node: str, command_id: str, *, ok: bool, message: str) -> None:
        log.info(
            "answer to a command",
            extra={"node": node, "command": command_id, "ok": ok, "text": message},
        )

    def detached(self, node: str, line: Line, reason: str) -> None:
        if self._lines.get(node) is not line:
            return
        del self._lines[node], self._hellos[node]
        case = self._census.case(node)
        case.patient.attached = False
        case.patient.last_heard = self._clocks.now()
        self._unanswered(case)
        self._triangulating.silent(node)
        if node not in self._untaken:
            self._witness.left(node)
        if not self._shards.owns(node):
            self.hand_over(case)
        # Two that push each other out do so once in a few seconds: ingest tells of them.
        level = logging.DEBUG if case.patient.conflict else logging.INFO
        log.log(level, "agent detached", extra={"node": node, "reason": reason})

    def send_home(self, case: Case, reason: str) -> None:
        """The node is another shard's: its agent is told which, and not heard any more."""
        line, home = self._lines.get(case.node), self.home(case.node)
        if line is not None and home:
            line.redirect(home, reason)

    def start_over(self, case: Case) -> None:
        """Unhear all that was said of a node of ours, which another may have had meanwhile.

        An agent that is still there is to say all of it again: `ask_again`.
        """
        line, hello = self._lines.get(case.node), self._hellos.get(case.node)
        self.hand_over(case)
        if line is not None and hello is not None:
            case.patient.health, case.patient.attached = NodeHealth(hello), True
            self._census.count(case)
            case.patient.last_heard = self._clocks.now()

    def ask_again(self, case: Case) -> None:
        """Have an agent whose words were unheard say all of it again."""
        line = self._lines.get(case.node)
        if line is not None and not case.heard:
            line.resync("this replica may have been taken for dead meanwhile")

    def hand_over(self, case: Case) -> None:
        """Unhear what the agent of a node said that is another shard's now."""
        self._unanswered(case)
        case.hand_over(self._policy, self._clocks.now())
        self._census.count(case)
        self._triangulating.silent(case.node)
        self._triangulating.unfind(case.node)
        self._judging.judge(case)

    def shut_out(self, case: Case) -> None:
        """The node is another Node than its agent's: end the stream, and unhear what it said."""
        whose = f" with UID {case.claimed}" if case.claimed else ""
        text = f"its agent spoke for another Node of this name{whose}, which is gone"
        case.disown(self._policy, self._clocks.now())
        self._census.count(case)
        self._unanswered(case)
        self._triangulating.silent(case.node)
        self._acts.note(case, Kind.AGENT_CONFLICT, f"{text}: not heard")
        line = self._lines.pop(case.node, None)
        self._hellos.pop(case.node, None)
        if line is not None:
            line.close(text)

    @staticmethod
    def _unanswered(case: Case) -> None:
        """What waits to be acknowledged never is: the agent says it again."""
        for waiter in case.waiters:
            waiter.cancel()
        case.waiters = ()

    def conflict(self, node: str, detail: str) -> None:
        """Two agents claim the node (``detail``: which), still do, or do no more (empty).

        Told once: the two push each other out every few seconds, each time from another port.
        """
        case = self._census.case(node)
        if detail and not case.patient.conflict:
            self._acts.note(case, Kind.AGENT_CONFLICT, detail)
        case.patient.conflict = detail
        if not detail and node in self._untaken:
            self._take_down_anew(case, self._clocks.now())
        self._attending.kick(case)

    def note_silence(self, case: Case, now: float) -> None:
        """Tell, once, that an agent has been gone for too long."""
        patient = case.patient
        if patient.attached or patient.last_heard is None or case.silent:
            return
        if now - patient.last_heard >= self._silent_after:
            case.silent = True
            self._acts.note(case, Kind.AGENT_SILENT, "its agent is silent; what was failing stands")


def _never() -> Awaitable[None]:
    """The end of what is not acknowledged; the stream's own end cancels it."""
    return asyncio.get_running_loop().create_future()
