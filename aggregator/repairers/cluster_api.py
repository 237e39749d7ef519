"""A replacement by Cluster API: the Node's Machine is marked for remediation.

The Machine is not deleted here: a MachineHealthCheck takes the mark as a failed check, so that its
own limits (unhealthyLessThanOrEqualTo), the owner's checks (etcd's quorum of a control plane) and a
remediation template of the site hold (kubernetes-sigs/cluster-api
internal/controllers/machinehealthcheck). The Node that is gone, or is another one, proves it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from attrs import define, field

from aggregator.cluster.objects import ClusterObject, ObjectKind, ObjectResource, ObjectStore
from aggregator.cluster.port import UNGUARDED, ClusterError, Conflict, Guard, NotFound, Refused
from aggregator.config.field_path import read_entries
from aggregator.quarantine.decide.own_pods import OPERATION
from aggregator.quarantine.repair.protocol import AnswerState, RepairAnswer, RepairOrder
from aggregator.repairers.node_object import NodeFacts, NodeIsAnotherError, read_node_facts
from aggregator.repairers.object_answers import answer_of, clean_up_of
from aggregator.repairers.sent_once import SentOnce

#: v1beta1 and v1beta2 agree in what is read here: the version is the one that the cluster prefers.
MACHINE = ObjectKind("cluster.x-k8s.io/", "Machine")
_MACHINE = "cluster.x-k8s.io/machine"
_NAMESPACE = "cluster.x-k8s.io/cluster-namespace"
REMEDIATE = "cluster.x-k8s.io/remediate-machine"
_SKIPS = ("cluster.x-k8s.io/skip-remediation", "cluster.x-k8s.io/paused")
#: A MachineHealthCheck sets one of these when it has passed the Machine on.
_PASSED_ON = frozenset(
    {"OwnerRemediated", "ExternallyRemediated", "ExternalRemediationRequestAvailable"}
)
_TRIES = 5
#: A MachineHealthCheck that has read the mark may write its condition this long after the mark was
#: removed (seconds).
_SETTLES = 5.0


class _NotTheirsError(Exception):
    """The Node has no Machine that can be marked; the text states why."""


@define(eq=False, repr=False, slots=False)
class ClusterApiRepairer(SentOnce):
    """Implements `Repairer`. ``machines``: objects of the cluster that has the Machines, which may
    be another one than ``objects``. A second order finds the mark.
    """

    sends_twice = True

    _objects: ObjectStore
    _machines: ObjectStore
    _sleep: Callable[[float], Awaitable[object]] = field(default=asyncio.sleep, kw_only=True)

    async def order(self, order: RepairOrder, guard: Guard) -> RepairAnswer:
        try:
            resource = await self._machines.resource(MACHINE)
            for _ in range(_TRIES):
                node = await read_node_facts(self._objects, order)
                machine = await self._machine(resource, node)
                answer = _without_mark(machine, order)
                answer = answer or await self._mark(resource, machine, order, guard)
                if answer is not None:
                    return answer
        except NodeIsAnotherError as error:
            return RepairAnswer(AnswerState.UNSURE, str(error))
        except _NotTheirsError as error:
            return RepairAnswer(AnswerState.FAILED, str(error))
        except ClusterError as error:
            return answer_of(error, sent=False)
        return RepairAnswer(
            AnswerState.NOT_SENT, "the Machine changes faster than it can be marked"
        )

    async def cancel(self, order: RepairOrder) -> bool:
        """Remove our mark; True where no MachineHealthCheck had passed the Machine on."""
        try:
            resource = await self._machines.resource(MACHINE)
            node = await read_node_facts(self._objects, order)
            machine = await self._machine(resource, node)
            if not _is_marked_by(machine, order) or _is_passed_on(machine):
                return False
            await self._unmark(resource, machine)
            await self._sleep(_SETTLES)
            later = await self._machines.get(resource, machine.namespace, machine.name)
        except (NodeIsAnotherError, _NotTheirsError, NotFound, Refused):
            return False
        return (
            later is not None
            and later.uid == machine.uid
            and REMEDIATE not in later.annotations
            and not _is_passed_on(later)
        )

    async def clean_up(self, order: RepairOrder) -> RepairAnswer:
        """Remove our mark where the Node is still there: it must not be replaced after a release.

        DONE: none of ours is left. NOT_SENT: call again. FAILED: it stays.
        """
        try:
            resource = await self._machines.resource(MACHINE)
            node = await read_node_facts(self._objects, order)
            machine = await self._machine(resource, node)
            if _is_marked_by(machine, order) and not machine.deleting:
                await self._unmark(resource, machine)
        except (NodeIsAnotherError, _NotTheirsError):
            return RepairAnswer(AnswerState.DONE)
        except ClusterError as error:
            return clean_up_of(error)
        return RepairAnswer(AnswerState.DONE)

    async def missing_rights(self) -> Sequence[str]:
        """The rights that the order needs and this identity lacks. Raises ClusterError."""
        resource = await self._machines.resource(MACHINE)
        return await self._machines.lacks(resource, "", ("get", "patch"))

    async def _machine(self, resource: ObjectResource, node: NodeFacts) -> ClusterObject:
        """The Machine that the Node names, and that names the Node. Raises _NotTheirsError."""
        name, namespace = (node.annotations.get(key, "") for key in (_MACHINE, _NAMESPACE))
        if not name or not namespace:
            raise _NotTheirsError(
                f"Node {node.name} lacks the annotations {_MACHINE} and {_NAMESPACE}: Cluster API"
                " did not make it"
            )
        found = await self._machines.get(resource, namespace, name)
        if found is None:
            raise _NotTheirsError(
                f"the Machine {namespace}/{name} that Node {node.name} names is not there (if the"
                " Machines are in another cluster, set management_kubeconfig)"
            )
        why = node.is_of_machine(found.content)
        if why:
            raise _NotTheirsError(f"Machine {namespace}/{name} is not of Node {node.name}: {why}")
        return found

    async def _mark(
        self, resource: ObjectResource, machine: ClusterObject, order: RepairOrder, guard: Guard
    ) -> RepairAnswer | None:
        """None: it has changed since it was read."""
        try:
            marks = {REMEDIATE: "", OPERATION: order.operation}
            await self._machines.annotate(resource, machine, marks, guard=guard)
        except Conflict:
            return None
        except ClusterError as error:
            return answer_of(error, sent=True)
        text = f"Machine {_named(machine)} is marked; its MachineHealthCheck has to remediate it"
        return RepairAnswer(AnswerState.TAKEN, text)

    async def _unmark(self, resource: ObjectResource, machine: ClusterObject) -> None:
        marks = {REMEDIATE: None, OPERATION: None}
        await self._machines.annotate(resource, machine, marks, guard=UNGUARDED)


def _without_mark(machine: ClusterObject, order: RepairOrder) -> RepairAnswer | None:
    """The answer where the Machine needs no mark, or must not have one; None: it is to be set."""
    if machine.deleting:
        return RepairAnswer(
            AnswerState.TAKEN, f"Machine {_named(machine)} is being deleted already"
        )
    if _is_marked_by(machine, order):
        return RepairAnswer(AnswerState.TAKEN, f"Machine {_named(machine)} is marked")
    if REMEDIATE in machine.annotations and OPERATION not in machine.annotations:
        text = f"Machine {_named(machine)} was marked by another party"
        return RepairAnswer(AnswerState.TAKEN, text)
    for key in _SKIPS:
        if key in machine.annotations:
            text = f"Machine {_named(machine)} has the annotation {key}, and is not remediated"
            return RepairAnswer(AnswerState.FAILED, text)
    if not _has_controller(machine.content):
        text = f"no controller owns Machine {_named(machine)}, so that none would make another one"
        return RepairAnswer(AnswerState.FAILED, text)
    return None


def _is_marked_by(machine: ClusterObject, order: RepairOrder) -> bool:
    ours = machine.annotations.get(OPERATION) == order.operation
    return ours and REMEDIATE in machine.annotations


def _is_passed_on(machine: ClusterObject) -> bool:
    conditions = read_entries(machine.content, ("status", "conditions"))
    return machine.deleting or any(one.get("type") in _PASSED_ON for one in conditions)


def _has_controller(machine: Mapping[str, Any]) -> bool:
    owners = read_entries(machine, ("metadata", "ownerReferences"))
    return any(one.get("controller") is True for one in owners)


def _named(machine: ClusterObject) -> str:
    return f"{machine.namespace}/{machine.name}"
