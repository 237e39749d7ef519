"""Orders and results as messages of the contract. The form of an order is checked here."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from nodeagent.active_tests.runner import is_peer
from nodeagent.evidence.bounds import cut
from nodeagent.repair.executor import OperationReport, RepairExecutor
from nodeagent.repair.operation import Operation, Order, RepairState, Verb
from nodeagent.repair.permission import PermissionReply
from sickbay.v1 import limits
from sickbay.v1 import sickbay_pb2 as pb

__all__ = ["OrderGateway", "order_of", "permission_request", "result"]

_VERBS: Mapping[int, str] = {
    pb.REPAIR_VERB_GPU_RESET: Verb.GPU_RESET,
    pb.REPAIR_VERB_REBOOT: Verb.REBOOT,
    pb.REPAIR_VERB_TEST: Verb.TEST,
}
_NUMBERS = {name: number for number, name in _VERBS.items()}
_STATES = {
    RepairState.ACCEPTED: pb.REPAIR_STATE_ACCEPTED,
    RepairState.REFUSED: pb.REPAIR_STATE_REFUSED,
    RepairState.RUNNING: pb.REPAIR_STATE_RUNNING,
    RepairState.SUCCEEDED: pb.REPAIR_STATE_SUCCEEDED,
    RepairState.FAILED: pb.REPAIR_STATE_FAILED,
    RepairState.UNKNOWN: pb.REPAIR_STATE_UNKNOWN,
    RepairState.INCONCLUSIVE: pb.REPAIR_STATE_INCONCLUSIVE,
}
_OUTCOMES = {
    "passed": pb.TEST_OUTCOME_PASSED,
    "failed": pb.TEST_OUTCOME_FAILED,
    "skipped": pb.TEST_OUTCOME_SKIPPED,
    "inconclusive": pb.TEST_OUTCOME_INCONCLUSIVE,
}
#: The UUID of a whole GPU; that of a MIG part ("MIG-...") can't be reset.
_GPU = re.compile(r"GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class OrderGateway:
    """Between the stream and the executor: messages in, messages out."""

    def __init__(self, executor: RepairExecutor) -> None:
        self._executor = executor

    def hello(self, message: Any) -> None:
        """Name in Hello the verbs and profiles of this node."""
        sent: pb.Hello = message.hello
        sent.repair_verbs.extend(_NUMBERS[verb] for verb in self._executor.allowed)  # type: ignore[misc]  # plain numbers
        sent.test_profiles.extend(self._executor.profiles[: limits.MAX_TEST_PROFILES])

    def new_stream(self) -> None:
        self._executor.new_stream()

    def order(self, order: Any) -> None:
        """Take a RepairOrder, or refuse it for its form."""
        try:
            taken = order_of(order)
        except ValueError as error:
            self._executor.refuse_form(
                cut(order.operation_id, limits.MAX_NAME),
                _VERBS.get(order.verb, Verb.TEST),
                cut(order.quarantine_uid, limits.MAX_NAME),
                str(error),
            )
        else:
            self._executor.order(taken)

    def cancel(self, operation_id: str) -> None:
        self._executor.cancel(operation_id)

    async def acknowledged(self, operation_id: str) -> None:
        await self._executor.acknowledged(operation_id)

    def permission(self, message: Any) -> None:
        """The answer to a request for permission."""
        reply = PermissionReply(message.granted, cut(message.reason, limits.MAX_TEXT))
        self._executor.permission.take_reply(message.operation_id, reply)

    def stream_ended(self) -> None:
        self._executor.permission.stream_ended()

    @property
    def has_due(self) -> bool:
        return self._executor.has_due or self._executor.permission.is_due

    async def due(self) -> Sequence[Any]:
        """Messages to send now; the request for permission first, since its time counts."""
        results = [result(report) for report in await self._executor.due()]
        return [*map(permission_request, self._executor.permission.due()), *results]

    def sent(self, message: Any) -> None:
        """The message has been written to the stream."""
        if message.repair_result.state == pb.REPAIR_STATE_RUNNING:
            self._executor.sent(message.repair_result.operation_id)


def order_of(message: pb.RepairOrder) -> Order:
    """Raises ValueError for an order whose form is wrong; the text is for its sender."""
    for name in ("operation_id", "quarantine_uid", "boot_id"):
        value = getattr(message, name)
        if not value or len(value.encode()) > limits.MAX_NAME or not value.isprintable():
            raise ValueError(f"{name}: expected 1 to {limits.MAX_NAME} bytes of printable text")
    verb = _VERBS.get(message.verb)
    if verb is None:
        raise ValueError(f"verb: {message.verb} is none that this agent knows")
    gpus = tuple(dict.fromkeys(message.gpu_uuids))
    if verb == Verb.GPU_RESET:
        if not 0 < len(gpus) <= limits.MAX_ORDER_GPUS:
            raise ValueError(f"gpu_uuids: expected 1 to {limits.MAX_ORDER_GPUS} of them")
        for uuid in gpus:
            if not _GPU.fullmatch(uuid):
                raise ValueError(f"gpu_uuids: {uuid[:80]!r} is no UUID of a GPU")
    elif gpus:
        raise ValueError(f"gpu_uuids: {verb} takes none")
    if verb == Verb.TEST:
        if not message.test_profile:
            raise ValueError("test_profile: is empty")
        if message.test_peer and not is_peer(message.test_peer):
            raise ValueError(f"test_peer: {message.test_peer[:80]!r} is no address")
    elif message.test_profile or message.test_peer:
        raise ValueError(f"test_profile, test_peer: {verb} takes none")
    return Order(
        operation_id=message.operation_id,
        verb=verb,
        quarantine_uid=message.quarantine_uid,
        boot_id=message.boot_id,
        deadline=message.deadline_ms / 1000,
        gpus=gpus,
        profile=cut(message.test_profile, limits.MAX_NAME),
        peer=message.test_peer,
        message=cut(message.message, limits.MAX_TEXT),
    )


def permission_request(operation: Operation) -> pb.AgentMessage:
    return pb.AgentMessage(
        permission_request=pb.PermissionRequest(
            operation_id=operation.operation_id,
            verb=_NUMBERS[operation.verb],  # type: ignore[arg-type]
            quarantine_uid=operation.quarantine_uid,
        )
    )


def result(report: OperationReport) -> pb.AgentMessage:
    """The report as a message within the contract's bounds."""
    operation, details = report.operation, report.details
    evidence = str(details.get("evidence", ""))
    if len(evidence) > limits.MAX_EVIDENCE_BYTES:
        evidence = ""
    steps = _tables(details.get("steps"))[: limits.MAX_TEST_STEPS]
    measured = [each for step in steps for each in _tables(step.get("measurements"))]
    return pb.AgentMessage(
        repair_result=pb.RepairResult(
            operation_id=operation.operation_id,
            verb=_NUMBERS[operation.verb],  # type: ignore[arg-type]
            state=_STATES[operation.state],
            reason=cut(operation.reason, limits.MAX_NAME),
            message=cut(operation.message, limits.MAX_TEXT),
            quarantine_uid=operation.quarantine_uid,
            ordered_boot_id=operation.boot_id,
            boot_id=report.boot_id,
            evidence=evidence,
            test_profile=operation.profile,
            steps=[_step(each) for each in steps],
            measurements=[_measured(each) for each in measured[: limits.MAX_TEST_MEASUREMENTS]],
            duration_ms=max(0, round(operation.seconds * 1000)),
        )
    )


def _step(step: dict[str, Any]) -> pb.TestStep:
    return pb.TestStep(
        name=cut(str(step.get("name", "")), limits.MAX_NAME),
        outcome=_OUTCOMES.get(str(step.get("outcome")), pb.TEST_OUTCOME_UNSPECIFIED),
        reason=cut(str(step.get("reason", "")), limits.MAX_NAME),
        message=cut(str(step.get("message", "")), limits.MAX_TEXT),
        duration_ms=max(0, round(float(step.get("seconds") or 0.0) * 1000)),
    )


def _measured(each: dict[str, Any]) -> pb.TestMeasurement:
    return pb.TestMeasurement(
        measure=cut(str(each.get("measure", "")), limits.MAX_NAME),
        component=cut(str(each.get("component", "")), limits.MAX_NAME),
        value=float(each.get("value") or 0.0),
        unit=cut(str(each.get("unit", "")), limits.MAX_NAME),
        minimum=float(each.get("minimum") or 0.0),
        maximum=float(each.get("maximum") or 0.0),
        model=cut(str(each.get("model", "")), limits.MAX_NAME),
    )


def _tables(value: Any) -> list[dict[str, Any]]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []
