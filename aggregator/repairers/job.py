"""An active test by a Kubernetes Job on the quarantined node.

The Job's name follows from the operation, and an annotation has the operation: so an order that is
sent again finds its own Job. No log is read; a program reports its result by its exit code, and by
a termination message, which the kubelet bounds.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from attrs import define, field

from aggregator.cluster.node_names import TAINT
from aggregator.cluster.objects import ClusterObject, ObjectResource, ObjectStore
from aggregator.cluster.port import UNGUARDED, ClusterError, Conflict, Guard, NotFound, Refused
from aggregator.config.field_path import read_field
from aggregator.config.job import JobSection
from aggregator.quarantine.repair.protocol import AnswerState, RepairAnswer, RepairOrder
from aggregator.repairers.job_manifest import job_manifest, job_name
from aggregator.repairers.job_verdict import is_over, no_verdict, verdict, why_waiting
from aggregator.repairers.node_object import NODES
from aggregator.repairers.object_answers import answer_of, clean_up_of
from aggregator.repairers.order_object import is_of_order

JOBS = ObjectResource("batch/v1", "Job", "jobs", namespaced=True)
PODS = ObjectResource("v1", "Pod", "pods", namespaced=True)
#: The Job controller sets it on the pods: https://kubernetes.io/docs/reference/labels-annotations-taints/
_JOB_NAME = "batch.kubernetes.io/job-name"
#: A cancellation waits this often for the end of the pods, this long (seconds).
_TRIES, _POLL_EVERY = 15, 1.0
#: The runner polls once more with this limit (seconds) when the time of an attempt is over.
_LAST_POLL = 1.0


class NoGpusError(Exception):
    """The Node has no GPUs to request; the text names the resource."""


@define(eq=False, repr=False, slots=False)
class JobRepairer:
    """Implements `Repairer`. ``taint``: the key of the taint of nodes in quarantine."""

    sends_twice = True

    _objects: ObjectStore
    _section: JobSection
    _taint: str = field(default=TAINT, kw_only=True)
    _sleep: Callable[[float], Awaitable[None]] = field(default=asyncio.sleep, kw_only=True)

    async def order(self, order: RepairOrder, guard: Guard) -> RepairAnswer:
        """A refusal is no verdict about the node, so it is never FAILED."""
        profiles = self._section.profiles
        if order.profile not in profiles:
            known = ", ".join(sorted(profiles))
            return no_verdict(f"its Job has no profile {order.profile!r}; expected {known}")
        try:
            before = await self._objects.get(JOBS, self._section.namespace, job_name(order))
            if before is not None:
                return self._known(order, before)
            if await self._pods(order):  # of a Job of this order that was deleted
                return no_verdict("its Job was deleted, and its pod is still there")
            gpus = await self._gpus(order)
        except NoGpusError as error:
            return no_verdict(str(error))
        except ClusterError as error:
            return _refusal(answer_of(error, sent=False))
        content = job_manifest(self._section, order, gpus=gpus, taint=self._taint)
        try:
            await self._objects.create(JOBS, self._section.namespace, content, guard=guard)
        except Conflict as error:  # another process of ours was faster, or another party
            return RepairAnswer(AnswerState.UNSURE, str(error))
        except ClusterError as error:
            return _refusal(answer_of(error, sent=True))
        return RepairAnswer(AnswerState.TAKEN, f"{self._named(order)} is created")

    async def read_outcome(self, order: RepairOrder) -> RepairAnswer:
        try:
            found = await self._find(order)
            if found is None:
                return no_verdict(f"{self._named(order)} was deleted")
            if not is_of_order(found, order):
                return no_verdict(f"{self._named(order)} is another party's")
            if found.deleting:
                return no_verdict(f"{self._named(order)} is being deleted")
            pods = [one.content for one in await self._pods(order)]
        except ClusterError as error:
            return RepairAnswer(AnswerState.UNSURE, str(error))
        answer = verdict(found.content, pods, order.node)
        if answer is not None:
            return answer
        waiting = why_waiting(pods) if pods else f"{self._named(order)} has no pod"
        if order.lasts <= _LAST_POLL:
            return no_verdict(waiting or "it did not end in its time")
        return RepairAnswer(AnswerState.TAKEN, waiting)

    async def cancel(self, order: RepairOrder) -> bool:
        """Delete the Job; True once its pod has ended."""
        try:
            found = await self._find(order)
        except (NotFound, Refused):
            return False
        if found is None or not is_of_order(found, order):
            return False
        for _ in range(_TRIES):
            if (await self.clean_up(order)).state is AnswerState.DONE:
                return True
            await self._sleep(_POLL_EVERY)
        return False

    async def clean_up(self, order: RepairOrder) -> RepairAnswer:
        """Delete the Job if it is the order's, and wait for the end of its pods: a test that goes
        on must not meet the next repair, or work after a release.
        """
        try:
            found = await self._find(order)
            if found is not None and is_of_order(found, order) and not found.deleting:
                await self._objects.delete(
                    JOBS, found, as_read=False, guard=UNGUARDED, foreground=True
                )
                found = await self._find(order)
            if found is not None and is_of_order(found, order):
                text = f"{self._named(order)} is deleted, and its pod has not ended"
                return RepairAnswer(AnswerState.NOT_SENT, text)
            for pod in await self._pods(order):  # its Job may have been deleted without it
                if is_of_order(pod, order) and not is_over(pod.content):
                    text = f"pod {pod.namespace}/{pod.name} has not ended"
                    return RepairAnswer(AnswerState.NOT_SENT, text)
        except Conflict:
            return RepairAnswer(AnswerState.NOT_SENT, "another Job has its name by now")
        except ClusterError as error:
            return clean_up_of(error)
        return RepairAnswer(AnswerState.DONE)

    async def missing_rights(self) -> Sequence[str]:
        """The rights that the order needs and this identity lacks. Raises ClusterError."""
        where = self._section.namespace
        jobs = await self._objects.lacks(JOBS, where, ("get", "create", "delete"))
        return [*jobs, *await self._objects.lacks(PODS, where, ("list",))]

    async def _find(self, order: RepairOrder) -> ClusterObject | None:
        return await self._objects.get(JOBS, self._section.namespace, job_name(order))

    async def _pods(self, order: RepairOrder) -> Sequence[ClusterObject]:
        """All that a Job of this name has had and that are there, whoever made it."""
        return await self._objects.select(
            PODS, self._section.namespace, {_JOB_NAME: job_name(order)}
        )

    async def _gpus(self, order: RepairOrder) -> int:
        """How many are requested. Of the capacity, as a GPU that the kubelet leaves out as
        unhealthy must not go untested: then the pod finds no room, and there is no verdict.
        """
        if self._section.gpus != "all":
            return self._section.gpus
        resource = self._section.gpu_resource
        node = await self._objects.get(NODES, "", order.node)
        capacity: Any = (
            read_field(node.content, ("status", "capacity")) if node is not None else None
        )
        count = (capacity or {}).get(resource)
        if not str(count or "").isdecimal() or not int(str(count)):
            raise NoGpusError(f"Node {order.node} has no {resource} in its capacity")
        return int(str(count))

    def _known(self, order: RepairOrder, found: ClusterObject) -> RepairAnswer:
        """The name is taken: by this order, which was sent before, or by a stranger."""
        if not is_of_order(found, order):
            return no_verdict(f"{self._named(order)} is there already, and is another party's")
        if found.deleting:
            return no_verdict(f"{self._named(order)} is being deleted")
        return RepairAnswer(AnswerState.TAKEN, f"{self._named(order)} was created before")

    def _named(self, order: RepairOrder) -> str:
        return f"Job {self._section.namespace}/{job_name(order)}"


def _refusal(answer: RepairAnswer) -> RepairAnswer:
    return no_verdict(answer.text) if answer.state is AnswerState.FAILED else answer
