"""The latch's entries as messages of the contract, and the contract's commands as texts. Pure."""

from collections.abc import Callable, Iterable, Mapping

from nodeagent.commands import GpuUseReport
from nodeagent.evidence.bounds import bounded_details, cut, identifier
from nodeagent.evidence.entries import FaultEntry
from nodeagent.evidence.latch import Outgoing
from nodeagent.model import CheckInfo, Clearing, Gone, Loss
from sickbay.v1 import limits
from sickbay.v1 import sickbay_pb2 as pb

#: Counted up when fields are added to the contract.
CONTRACT_VERSION = 1

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
    boottime: float,
) -> pb.AgentMessage:
    """The agent's identity. ``instance`` distinguishes two live agents of one node, and
    ``boottime`` (seconds, now) two streams of one boot.

    If there are too many checks, only those that run are named.
    """
    named = sorted(checks, key=lambda check: bool(check.off_because))[: limits.MAX_CHECKS]
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
                    name=identifier(check.name),
                    interval_ms=_ms(check.interval),
                    off_because=cut(check.off_because, limits.MAX_TEXT),
                )
                for check in named
            ],
            traits=bounded_details(traits),
            instance=instance,
            boottime_ms=int(boottime * 1000),
        )
    )


def snapshot(out: Outgoing, now: float, quiesced_for: float) -> pb.AgentMessage:
    """All that the agent knows; ``quiesced_for`` in seconds, 0 when NVML is in use."""

    def build(most_text: int) -> pb.AgentMessage:
        message = pb.AgentMessage(snapshot=pb.Snapshot(quiesced_for_ms=_ms(quiesced_for)))
        _put_entries(message.snapshot, out, now, most_text)
        return message

    return _fitting(build, out)


def delta(out: Outgoing, now: float) -> pb.AgentMessage:
    """The entries that have changed since the message before."""

    def build(most_text: int) -> pb.AgentMessage:
        message = pb.AgentMessage()
        _put_entries(message.delta, out, now, most_text)
        return message

    return _fitting(build, out)


def _put_entries(into: pb.Snapshot | pb.Delta, out: Outgoing, now: float, most_text: int) -> None:
    """Each entry is added in place: a message of its own would cost several times as much."""
    history = _History(out)
    into.seq = out.seq
    for entry in out.components:
        state = into.components.add(
            check=entry.check,
            component=entry.component,
            status=entry.status,
            reason=entry.reason,
            message=cut(entry.message, most_text),
            age_ms=_ms(now - entry.since),
        )
        for status, at in entry.recent[-history.most :]:
            state.recent.add(status=status, age_ms=_ms(now - at))
    into.faults.extend(_fault(entry, now, history, most_text) for entry in out.faults)
    into.cleared.extend(map(_cleared, out.clearings))
    into.lost.extend(_lost(loss, most_text) for loss in out.losses)
    into.gone.extend(map(_gone, out.gone))


def _fitting(build: Callable[[int], pb.AgentMessage], out: Outgoing) -> pb.AgentMessage:
    """The message with texts as long as one message takes; names and history always fit."""
    message = build(limits.MAX_TEXT)
    if message.ByteSize() <= limits.MAX_MESSAGE_BYTES:
        return message
    texts = len(out.components) + len(out.faults) + len(out.losses)
    left = limits.MAX_MESSAGE_BYTES - build(0).ByteSize()
    # Besides each text are its length, and longer lengths of the entry that has it.
    return build(max(0, left // texts - 8))


class _History:
    """How much of the past one message carries of each entry, so that all of it is bounded."""

    def __init__(self, out: Outgoing) -> None:
        entries = len(out.components) + len(out.faults)
        total = sum(len(entry.recent) for entry in out.components)
        total += sum(len(fault.occurrences) for fault in out.faults)
        fits = total <= limits.MAX_HISTORY
        self.most = limits.MAX_HISTORY if fits else max(1, limits.MAX_HISTORY // entries)


def heartbeat(digest: int, last_seq: int, boottime: float = 0.0) -> pb.AgentMessage:
    """``boottime`` (seconds) is 0 where no order can come: it is for the deadlines of orders."""
    return pb.AgentMessage(
        heartbeat=pb.Heartbeat(digest=digest, last_seq=last_seq, boottime_ms=int(boottime * 1000))
    )


def order_not_allowed(order: pb.RepairOrder, boot_id: str) -> pb.AgentMessage:
    """The answer of an agent whose configuration allows no order."""
    return pb.AgentMessage(
        repair_result=pb.RepairResult(
            operation_id=cut(order.operation_id, limits.MAX_NAME),
            verb=order.verb,
            state=pb.REPAIR_STATE_REFUSED,
            reason="not-allowed",
            message="repair.allow of this node is empty",
            quarantine_uid=cut(order.quarantine_uid, limits.MAX_NAME),
            ordered_boot_id=boot_id,
            boot_id=boot_id,
        )
    )


def credentials(token: str) -> pb.AgentMessage:
    return pb.AgentMessage(credentials=pb.Credentials(token=token))


def result(command_id: str, *, ok: bool, message: str) -> pb.AgentMessage:
    return pb.AgentMessage(
        command_result=pb.CommandResult(command_id=command_id, ok=ok, message=message)
    )


def gpu_use(request_id: str, use: GpuUseReport) -> pb.AgentMessage:
    return pb.AgentMessage(
        gpu_use=pb.GpuUse(
            request_id=cut(request_id, limits.MAX_NAME),
            users=[cut(user, limits.MAX_TEXT) for user in use.users[: limits.MAX_GPU_USERS]],
            unknown=cut(use.unknown, limits.MAX_TEXT),
            pods=[
                pb.PodGpu(
                    namespace=cut(one.namespace, limits.MAX_NAME),
                    pod=cut(one.pod, limits.MAX_POD_NAME),
                    pod_uid=cut(one.pod_uid, limits.MAX_NAME),
                    container=cut(one.container, limits.MAX_NAME),
                    gpu=cut(one.gpu, limits.MAX_POD_NAME),
                    claim=cut(one.claim, limits.MAX_POD_NAME),
                    allocated=one.allocated,
                    processes=one.processes,
                )
                for one in use.pods.pods[: limits.MAX_POD_GPUS]
            ],
            pods_unknown=cut(use.pods.unknown, limits.MAX_TEXT),
            processes_unknown=cut(use.pods.processes_unknown, limits.MAX_TEXT),
        )
    )


def _ms(seconds: float) -> int:
    if 0.0 < seconds < limits.MAX_AGE_MS / 1000:
        return round(seconds * 1000)
    return limits.MAX_AGE_MS if seconds > 0.0 else 0


def _fault(entry: FaultEntry, now: float, history: _History, most_text: int) -> pb.Fault:
    return pb.Fault(
        code=entry.code,
        check=entry.check,
        component=entry.component,
        message=cut(entry.message, most_text),
        boot_id=entry.boot_id,
        source=entry.source,
        source_seq=entry.source_seq,
        first_age_ms=_ms(now - entry.first),
        last_age_ms=_ms(now - entry.last),
        count=min(entry.count, limits.MAX_COUNT),
        cleared_by=_CLEARED_BY[int(entry.cleared_by)],
        historical=entry.historical,
        details=entry.details,
        occurrence_ages_ms=[_ms(now - at) for at in entry.occurrences[-history.most :]],
    )


def _cleared(clearing: Clearing) -> pb.Cleared:
    return pb.Cleared(code=clearing.code, component=clearing.component, how=clearing.how)


def _lost(loss: Loss, most_text: int) -> pb.EvidenceLost:
    return pb.EvidenceLost(
        source=loss.source, records=loss.records, message=cut(loss.message, most_text)
    )


def _gone(one: Gone) -> pb.ComponentState:
    return pb.ComponentState(check=one.check, component=one.component)
