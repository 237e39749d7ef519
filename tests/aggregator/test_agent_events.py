"""The effect of an agent's connection, words and silence: the handler alone, no replica."""

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from aggregator.clock import Clocks
from aggregator.cluster.port import (
    Action,
    NodeMeta,
    Phase,
    Quarantine,
    QuarantineSpec,
    QuarantineStatus,
)
from aggregator.health.model import Cleared, Delta, Lost
from aggregator.quarantine.decide.intent import OURS
from aggregator.quarantine.reconcile.agent_events import AgentEventHandler, _may_be_back
from aggregator.quarantine.state.fleet import FleetState
from aggregator.quarantine.state.registry import NodeRegistry
from aggregator.quarantine.state.stage_times import StageTimes
from tests.support.node_states import set_fields
from tests.support.replica import POLICY, FakeLine, fault, hello, snapshot
from tests.support.virtual_time import VirtualTimeLoop, play, played_by

SIGN = Cleared("xid:79", "GPU-1", "operator")
SILENT_AFTER = 60.0


def quarantine(node_uid: str = "u1") -> Quarantine:
    spec = QuarantineSpec(Action.DRAIN, "gpu", "x", OURS)
    return Quarantine(
        "n1", "q", "1", spec, QuarantineStatus(phase=Phase.CORDONED, node_uid=node_uid)
    )


class Bench:
    """A handler; ``did`` is what it asked of everybody else."""

    def __init__(self, loop: VirtualTimeLoop) -> None:
        self.loop = loop
        self.did: list[str] = []
        self.reported: list[str] = []
        self.node_registry = NodeRegistry(FleetState(), "", clocks=Clocks(loop.time, loop.time))

        def note(name: str, answer: Callable[[], Any] = lambda: None) -> Any:
            def act(*_: Any) -> Any:
                self.did.append(name)
                return answer()

            return act

        def recorder(*names: str) -> Any:
            return SimpleNamespace(**{name: note(name) for name in names})

        self.queue = SimpleNamespace(
            view=True,
            add=note("add"),
            add_for_read=note("add_for_read"),
            evaluate=note("evaluate"),
        )
        reports: Any = SimpleNamespace(
            emit_event=lambda _, kind, text, *__: self.reported.append(f"{kind.value}: {text}"),
            stages=StageTimes(),
            clocks=Clocks(loop.time, loop.time),
        )
        queue: Any = self.queue
        nothing: Callable[..., None] = lambda *_: None  # noqa: E731
        measurements: Any = SimpleNamespace(
            on_connect=nothing, on_cleared=nothing, silent=nothing, forget_node=nothing
        )
        network = recorder("renew", "on_evidence", "silent")
        trackers: Any = SimpleNamespace(network=network, measurements=(measurements,))
        self.made: Any = AgentEventHandler(
            node_registry=self.node_registry,
            queue=queue,
            reports=reports,
            policy=POLICY,
            silent_after=SILENT_AFTER,
            trackers=trackers,
            recording=recorder(
                "record_hello",
                "record_message",
                "restart_node",
                "record_disconnect",
                "forget_node",
            ),
        )
        self.node_state: Any = self.node_registry.node_state("n1")
        self.line: Any = FakeLine()

    def connect(self, uid: str = "") -> list[str]:
        self.did.clear()
        self.made.on_connect(replace(hello("n1"), node_uid=uid), self.line)
        return self.did

    def send_evidence(self, evidence: Any) -> Any:
        self.did.clear()
        return self.made.on_evidence("n1", evidence, self.loop.time())


def on_bench(test: Callable[[Bench], Any]) -> None:
    async def main(loop: VirtualTimeLoop) -> None:
        await test(Bench(loop))

    play(main)


pytestmark = pytest.mark.decorated(by=played_by(on_bench))


async def test_who_greets_is_attached_and_has_said_nothing_yet(bench: Bench) -> None:
    bench.node_state.agent.silent_failing, bench.node_state.agent.misnamed = "x", True
    assert bench.connect("u9") == ["renew", "record_hello"]
    summary = bench.node_state.agent
    assert (summary.attached, summary.last_seen) == (True, bench.loop.time())
    assert (bench.node_state.agent.claimed, bench.node_state.agent.misnamed) == ("u9", False)
    assert bench.node_state.agent.silent_failing == ""
    assert not bench.node_state.agent.was_received
    summary.last_seen = 1.0
    assert bench.connect() == ["record_hello"]
    assert summary.last_seen == 1.0, "a new connection is no evidence"


async def test_a_snapshot_counts_and_a_greeting_takes_that_back(bench: Bench) -> None:
    bench.connect()
    assert bench.node_registry.size().reported == 0
    bench.send_evidence(snapshot())
    assert bench.node_registry.size().reported == 1
    bench.connect()
    assert bench.node_registry.size().reported == 0


@pytest.mark.parametrize(
    ("listed", "uid", "in_force", "reads"),
    [
        ("", "u1", None, False),
        ("u1", "u1", None, False),
        ("u1", "", None, False),
        ("u1", "u2", None, True),
        ("u2", "u2", quarantine("u1"), True),
        ("u1", "u1", quarantine("u1"), False),
    ],
)
async def test_the_node_is_read_where_its_agent_proves_another_uid(
    bench: Bench, listed: str, uid: str, in_force: Quarantine | None, *, reads: bool
) -> None:
    bench.node_state.cluster.meta = NodeMeta("n1", listed) if listed else None
    bench.node_state.quarantine_view.quarantine = in_force
    assert ("add_for_read" in bench.connect(uid)) == reads


@pytest.mark.parametrize(
    ("in_force", "gone", "uid", "back"),
    [
        (None, True, "u2", False),
        (quarantine("u1"), True, "", True),
        (quarantine("u1"), False, "", False),
        (quarantine("u1"), False, "u1", False),
        (quarantine("u1"), False, "u2", True),
        (quarantine(""), False, "u2", False),
    ],
)
def test_an_agent_tells_of_a_node_that_may_be_back(
    in_force: Quarantine | None, uid: str, *, gone: bool, back: bool
) -> None:
    node_state: Any = NodeRegistry(FleetState(), "").node_state("n1")
    set_fields(node_state, quarantine=in_force, node_gone=gone)
    assert _may_be_back(node_state, uid) == back


async def test_nothing_is_heard_of_a_stream_that_was_shut_out(bench: Bench) -> None:
    never = bench.send_evidence(snapshot())
    assert not never.done()
    assert bench.did == []
    bench.connect()
    bench.made._lines.clear()
    assert not bench.send_evidence(snapshot()).done()
    assert bench.did == []


async def test_a_sign_waits_for_the_evaluation_and_for_a_step_where_the_node_is_unknown(
    bench: Bench,
) -> None:
    bench.connect()
    assert bench.send_evidence(snapshot(fault())) is None, "no sign"
    assert bench.send_evidence(Delta()) is None
    node_state = bench.node_state
    node_state.cluster.meta = NodeMeta("n1", "u1")
    for said in (Delta(cleared=(SIGN,)), Delta(gone=(("xid", ""),))):
        waits = bench.send_evidence(said)
        assert node_state.work.waiters[-1:] == (waits,)
        assert "evaluate" in bench.did
        assert "add" not in bench.did
    assert not node_state.work.needs_read
    for name, owner, value in (
        ("view", bench.queue, False),
        ("meta", node_state.cluster, None),
    ):
        before = getattr(owner, name)
        setattr(owner, name, value)
        for sign in (Delta(cleared=(SIGN,)), snapshot(cleared=(SIGN,))):
            node_state.work.waiters, node_state.work.needs_read = (), False
            waits = bench.send_evidence(sign)
            assert node_state.work.waiters == (waits,), name
            assert "add" in bench.did
            assert not node_state.work.needs_read
        setattr(owner, name, before)


async def test_signs_are_kept_until_the_node_was_read(bench: Bench) -> None:
    bench.connect()
    bench.send_evidence(snapshot(cleared=(SIGN,)))
    assert bench.node_state.cluster.signs == (SIGN,)
    bench.node_state.cluster.signs, bench.node_state.cluster.meta = (), NodeMeta("n1", "u1")
    bench.send_evidence(snapshot(cleared=(SIGN,)))
    assert bench.node_state.cluster.signs == ()


async def test_a_fault_of_a_node_that_may_be_back_has_it_read(bench: Bench) -> None:
    bench.connect()
    set_fields(bench.node_state, quarantine=quarantine(), node_gone=True)
    bench.send_evidence(snapshot())
    assert not bench.node_state.work.needs_read
    bench.send_evidence(snapshot(fault()))
    assert bench.node_state.work.needs_read


async def test_lost_evidence_and_a_return_are_reported(bench: Bench) -> None:
    bench.connect()
    bench.node_state.agent.silent, bench.node_state.agent.refused = True, "x"
    bench.send_evidence(Delta(lost=(Lost("kmsg", 1, "overrun"),)))
    assert bench.reported == ["evidence.lost: evidence lost (kmsg): overrun"]
    bench.send_evidence(Delta(lost=(Lost("kmsg", 2, "more"), Lost("journal", 1, "full"))))
    assert bench.reported.pop() == "evidence.lost: evidence lost (journal): full"
    assert len(bench.reported) == 1, "one source is reported once a minute"
    assert bench.node_state.agent.silent, "a delta is no snapshot"
    bench.send_evidence(snapshot())
    assert (bench.node_state.agent.silent, bench.node_state.agent.refused) == (False, "")
    assert len(bench.reported) == 2
    bench.send_evidence(snapshot())
    assert len(bench.reported) == 2


async def test_of_two_agents_nothing_is_recorded_until_one_is_left(bench: Bench) -> None:
    bench.connect()
    assert "record_message" in (bench.send_evidence(snapshot()), bench.did)[1]
    bench.made.on_conflict("n1", "two claim it")
    bench.made.on_conflict("n1", "two claim it still")
    (reported,) = bench.reported
    assert reported.endswith("two claim it")
    assert "record_hello" not in bench.connect()
    bench.send_evidence(snapshot())
    assert not {"record_message", "restart_node"} & set(bench.did)
    bench.made.on_disconnect("n1", bench.line, "bye")
    assert "record_disconnect" not in bench.did
    bench.connect()
    bench.send_evidence(snapshot())
    bench.did.clear()
    bench.made.on_conflict("n1", "")
    assert bench.did == ["restart_node", "add"]
    assert bench.node_state.agent.conflict == ""
    bench.send_evidence(Delta())
    assert "record_message" in bench.did
    bench.made.on_conflict("n1", "again")
    bench.connect()
    bench.made.on_disconnect("n1", bench.line, "bye")
    bench.did.clear()
    bench.made.on_conflict("n1", "")
    assert bench.did == ["forget_node", "add"]
    assert bench.made._unrecorded == set()
    bench.made._unrecorded.add("unknown")
    bench.made.on_conflict("unknown", "")
    assert bench.made._unrecorded == set()
    assert bench.node_registry.known("unknown") is None


async def test_the_end_of_a_stream_counts_only_for_the_one_that_is_attached(bench: Bench) -> None:
    bench.connect()
    waits = bench.loop.create_future()
    bench.node_state.work.waiters = (waits,)
    bench.made.on_disconnect("n1", FakeLine(), "another's")
    assert bench.node_state.agent.attached
    bench.did.clear()
    bench.made.on_disconnect("n1", bench.line, "bye")
    assert bench.did == ["silent", "record_disconnect"]
    assert waits.cancelled()
    assert bench.node_state.work.waiters == ()
    summary = bench.node_state.agent
    assert not summary.attached
    assert summary.refused == "no snapshot of it was accepted: bye"
    summary.refused, summary.last_seen = "", 1.0
    bench.connect()
    bench.send_evidence(snapshot())
    summary.last_seen = 1.0
    bench.made.on_disconnect("n1", bench.line, "bye")
    assert (summary.refused, summary.last_seen) == ("", bench.loop.time())
    assert summary.health is not None


async def test_a_refused_stream_is_shown(bench: Bench) -> None:
    summary = bench.node_state.agent
    bench.made.on_refusal("n1", "too old")
    assert (summary.refused, summary.last_seen) == ("too old", bench.loop.time())
    summary.last_seen = 1.0
    bench.made.on_refusal("n1", "too old")
    assert summary.last_seen == 1.0
    bench.made.on_heartbeat("n1", 7.0)
    assert summary.last_seen == 7.0


async def test_silence_is_reported_once_with_its_reason(bench: Bench) -> None:
    node_state, silence = bench.node_state, bench.made.note_silence
    silence(node_state, 1e9)
    assert bench.reported == [], "no agent has reported its state"
    bench.connect()
    now = bench.loop.time()
    silence(node_state, now + SILENT_AFTER - 0.1)
    assert not node_state.agent.silent
    silence(node_state, now + SILENT_AFTER)
    assert node_state.agent.silent
    silence(node_state, now + SILENT_AFTER)
    assert len(bench.reported) == 1
    assert "attached, but has sent no snapshot" in bench.reported[0]
    node_state.agent.silent, node_state.agent.refused = False, "too old"
    silence(node_state, now + SILENT_AFTER)
    assert "not understood (too old)" in bench.reported[1]
    node_state.agent.silent, node_state.agent.refused, node_state.agent.attached = (
        False,
        "",
        False,
    )
    silence(node_state, now + SILENT_AFTER)
    assert "its agent is silent;" in bench.reported[2]
    node_state.agent.silent, node_state.agent.attached = False, True
    bench.send_evidence(snapshot())
    silence(node_state, 1e9)
    assert not node_state.agent.silent
