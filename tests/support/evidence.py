"""Evidence as messages of the contract, in the form in which an agent would have sent it."""

from collections.abc import Iterable
from typing import Any

from aggregator.health.model import ClearedBy, Component, Delta, Fault, Hello, Lost, Snapshot
from sickbay.v1 import sickbay_pb2 as pb

CLEARED_BY = {
    ClearedBy.REBOOT: pb.CLEARED_BY_REBOOT,
    ClearedBy.GPU_RESET: pb.CLEARED_BY_GPU_RESET,
    ClearedBy.EXPIRY: pb.CLEARED_BY_EXPIRY,
    ClearedBy.OPERATOR: pb.CLEARED_BY_OPERATOR,
}


def hello(told: Hello) -> pb.AgentMessage:
    """``told`` as the agent sends it; the token decides the node's UID."""
    return pb.AgentMessage(
        hello=pb.Hello(
            node=told.node,
            boot_id=told.boot_id,
            spool_epoch=told.spool_epoch,
            agent_version=told.agent_version,
            contract_version=told.contract_version,
            instance=told.instance,
            checks=[
                pb.CheckInfo(name=c.name, interval_ms=_ms(c.interval), off_because=c.off_because)
                for c in told.checks
            ],
            traits=told.traits,
        )
    )


def _write_fields(evidence: Snapshot | Delta, at: float) -> dict[str, Any]:
    """The fields of both kinds of messages."""
    return {
        "components": [component(c, at) for c in evidence.components],
        "faults": [fault(f, at) for f in evidence.faults],
        "cleared": [
            pb.Cleared(code=c.code, component=c.component, how=c.how) for c in evidence.cleared
        ],
        "lost": _lost(evidence.lost),
        "gone": [pb.ComponentState(check=c, component=of) for c, of in evidence.gone],
    }


def snapshot(evidence: Snapshot, *, seq: int = 1, at: float = 0.0) -> pb.AgentMessage:
    """``evidence`` as sent at the monotonic second ``at``."""
    return pb.AgentMessage(
        snapshot=pb.Snapshot(
            seq=seq,
            quiesced_for_ms=_ms(evidence.quiesced_for),
            **_write_fields(evidence, at),
        )
    )


def delta(evidence: Delta, *, seq: int, at: float = 0.0) -> pb.AgentMessage:
    """``evidence`` as sent at the monotonic second ``at``."""
    return pb.AgentMessage(
        delta=pb.Delta(
            seq=seq,
            **_write_fields(evidence, at),
        )
    )


def heartbeat(digest: int, last_seq: int = 0) -> pb.AgentMessage:
    return pb.AgentMessage(heartbeat=pb.Heartbeat(digest=digest, last_seq=last_seq))


def component(state: Component, at: float) -> pb.ComponentState:
    return pb.ComponentState(
        check=state.check,
        component=state.component,
        status=pb.Status.ValueType(int(state.status)),
        reason=state.reason,
        message=state.message,
        age_ms=_ms(at - state.since),
        recent=[
            pb.Transition(status=pb.Status.ValueType(int(status)), age_ms=_ms(at - since))
            for since, status in state.recent
        ],
    )


def fault(latched: Fault, at: float) -> pb.Fault:
    return pb.Fault(
        code=latched.code,
        check=latched.check,
        component=latched.component,
        message=latched.message,
        boot_id=latched.boot_id,
        source=latched.source,
        source_seq=latched.source_seq,
        first_age_ms=_ms(at - latched.first_at),
        last_age_ms=_ms(at - latched.last_at),
        count=latched.count,
        cleared_by=CLEARED_BY[latched.cleared_by],
        historical=latched.historical,
        details=latched.details,
        occurrence_ages_ms=[_ms(at - then) for then in latched.occurrences],
    )


def _lost(losses: Iterable[Lost]) -> list[pb.EvidenceLost]:
    return [pb.EvidenceLost(source=x.source, records=x.records, message=x.message) for x in losses]


def _ms(seconds: float) -> int:
    return round(seconds * 1000)
