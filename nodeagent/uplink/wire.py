"""The latch's words as messages of the contract, and the contract's commands as words. Pure."""

from collections.abc import Iterable, Mapping

from nodeagent.evidence.entries import ComponentEntry, FaultEntry
from nodeagent.evidence.latch import Outgoing
from nodeagent.model import CheckInfo, Clearing, Loss, Status
from sickbay.v1 import sickbay_pb2 as pb

#: Counted up when fields are added to the contract.
CONTRACT_VERSION = 1

_STATUS: Mapping[Status, pb.Status.ValueType] = {
    Status.OK: pb.STATUS_OK,
    Status.DEGRADED: pb.STATUS_DEGRADED,
    Status.FAILED: pb.STATUS_FAILED,
    Status.UNKNOWN: pb.STATUS_UNKNOWN,
}
_CLEARED_BY = {
    1: pb.CLEARED_BY_REBOOT,
    2: pb.CLEARED_BY_GPU_RESET,
    3: pb.CLEARED_BY_EXPIRY,
    4: pb.CLEARED_BY_OPERATOR,
}


def hello(
    *,
    node: str,
    boot_id: str,
    epoch: str,
    last_acked: int,
    version: str,
    checks: Iterable[CheckInfo],
    traits: Mapping[str, str],
    instance: str,
) -> pb.AgentMessage:
    """Who this is. ``instance`` tells two live agents of one node apart."""
    return pb.AgentMessage(
        hello=pb.Hello(
            node=node,
            boot_id=boot_id,
            spool_epoch=epoch,
            last_acked_seq=last_acked,
            agent_version=version,
            contract_version=CONTRACT_VERSION,
            checks=[
                pb.CheckInfo(
                    name=check.name,
                    interval_ms=round(check.interval * 1000),
                    off_because=check.off_because,
                )
                for check in checks
            ],
            traits=traits,
            instance=instance,
        )
    )


def snapshot(out: Outgoing, now: float, quiesced_for: float) -> pb.AgentMessage:
    """All that the agent knows; ``quiesced_for`` in seconds, 0 when NVML is in use."""
    return pb.AgentMessage(
        snapshot=pb.Snapshot(
            seq=out.seq,
            components=[_component(entry, now) for entry in out.components],
            faults=[_fault(entry, now) for entry in out.faults],
            lost=[_lost(loss) for loss in out.losses],
            quiesced_for_ms=_ms(quiesced_for),
            cleared=[_cleared(clearing) for clearing in out.clearings],
        )
    )


def delta(out: Outgoing, now: float) -> pb.AgentMessage:
    """What has changed since the message before."""
    return pb.AgentMessage(
        delta=pb.Delta(
            seq=out.seq,
            components=[_component(entry, now) for entry in out.components],
            faults=[_fault(entry, now) for entry in out.faults],
            cleared=[_cleared(clearing) for clearing in out.clearings],
            lost=[_lost(loss) for loss in out.losses],
            gone=[_component(entry, now) for entry in out.gone],
        )
    )


def heartbeat(digest: int, last_seq: int) -> pb.AgentMessage:
    return pb.AgentMessage(heartbeat=pb.Heartbeat(digest=digest, last_seq=last_seq))


def credentials(token: str) -> pb.AgentMessage:
    return pb.AgentMessage(credentials=pb.Credentials(token=token))


def result(command_id: str, *, ok: bool, message: str) -> pb.AgentMessage:
    return pb.AgentMessage(
        command_result=pb.CommandResult(command_id=command_id, ok=ok, message=message)
    )


def _ms(seconds: float) -> int:
    return max(0, round(seconds * 1000))


def _component(entry: ComponentEntry, now: float) -> pb.ComponentState:
    return pb.ComponentState(
        check=entry.check,
        component=entry.component,
        status=_STATUS[entry.status],
        reason=entry.reason,
        message=entry.message,
        age_ms=_ms(now - entry.since),
        recent=[
            pb.Transition(status=_STATUS[status], age_ms=_ms(now - at))
            for status, at in entry.recent
        ],
    )


def _fault(entry: FaultEntry, now: float) -> pb.Fault:
    return pb.Fault(
        code=entry.code,
        check=entry.check,
        component=entry.component,
        message=entry.message,
        boot_id=entry.boot_id,
        source=entry.source,
        source_seq=entry.source_seq,
        first_age_ms=_ms(now - entry.first),
        last_age_ms=_ms(now - entry.last),
        count=entry.count,
        cleared_by=_CLEARED_BY[int(entry.cleared_by)],
        historical=entry.historical,
        details=entry.details,
        occurrence_ages_ms=[_ms(now - at) for at in entry.occurrences],
    )


def _cleared(clearing: Clearing) -> pb.Cleared:
    return pb.Cleared(code=clearing.code, component=clearing.component, how=clearing.how)


def _lost(loss: Loss) -> pb.EvidenceLost:
    return pb.EvidenceLost(source=loss.source, records=loss.records, message=loss.message)
