"""A repair by another controller: an object of a site's template is created, and watched.

Its name follows from the operation (or the node), and an annotation has the operation: so a second
create is a conflict that is known as ours. The Quarantine owns it, so that the cluster's garbage
collector deletes what a crash leaves behind.
"""

from collections.abc import Sequence

from aggregator.cluster.objects import (
    ClusterObject,
    ObjectKind,
    ObjectResource,
    ObjectStore,
)
from aggregator.cluster.port import UNGUARDED, ClusterError, Conflict, Guard, NotFound, Refused
from aggregator.config.external import ExternalSection
from aggregator.quarantine.decide.own_pods import OPERATION
from aggregator.quarantine.repair.protocol import AnswerState, RepairAnswer, RepairOrder
from aggregator.repairers.object_answers import answer_of, clean_up_of
from aggregator.repairers.order_object import is_of_order, owner_of
from aggregator.repairers.template import (
    UnusableNameError,
    has_begun,
    manifest,
    object_name,
    shows,
)


class ExternalRepairer:
    """Implements `Repairer`."""

    sends_twice = True

    def __init__(self, objects: ObjectStore, section: ExternalSection) -> None:
        self._objects = objects
        self._section = section
        self._template = section.template
        self._kind = ObjectKind(str(self._template["apiVersion"]), str(self._template["kind"]))
        metadata = self._template.get("metadata") or {}
        self._namespace = str(metadata.get("namespace") or "")

    async def order(self, order: RepairOrder, guard: Guard) -> RepairAnswer:
        try:
            name = object_name(self._template, order)
            resource = await self._objects.resource(self._kind)
        except UnusableNameError as error:
            return RepairAnswer(AnswerState.FAILED, str(error))
        except ClusterError as error:
            return answer_of(error, sent=False)
        if resource.namespaced != bool(self._namespace):
            return RepairAnswer(AnswerState.FAILED, self._misplaced(resource))
        content = manifest(self._template, order, name=name, owner=owner_of(order))
        try:
            await self._objects.create(resource, self._namespace, content, guard=guard)
        except Conflict as error:
            return await self._known(order, resource, name, error)
        except ClusterError as error:
            return answer_of(error, sent=True)
        return RepairAnswer(AnswerState.TAKEN, f"{self._named(name)} is created")

    async def read_outcome(self, order: RepairOrder) -> RepairAnswer:
        """An object that is gone, or that another party has made anew, shows no outcome."""
        try:
            _, found = await self._find(order)
        except (UnusableNameError, ClusterError) as error:
            return RepairAnswer(AnswerState.UNSURE, str(error))
        if found is None:
            return RepairAnswer(AnswerState.UNSURE, f"the {self._kind.kind} of the order is gone")
        if not is_of_order(found, order):
            text = f"{self._named(found.name)} is not of this order any more"
            return RepairAnswer(AnswerState.UNSURE, text)
        failure = shows(self._section.failed, found.content)
        if failure is not None:
            return RepairAnswer(AnswerState.FAILED, f"{self._named(found.name)}: {failure}")
        success = shows(self._section.succeeded, found.content)
        if success is not None:
            return RepairAnswer(AnswerState.DONE, f"{self._named(found.name)}: {success}")
        return RepairAnswer(AnswerState.TAKEN)

    async def is_over(self, order: RepairOrder) -> bool:
        """Whether the object shows success, or is there no more. Always without ``succeeded``."""
        if self._section.succeeded is None:
            return True
        try:
            _, found = await self._find(order)
        except (UnusableNameError, ClusterError):
            return False
        if found is None or not is_of_order(found, order):
            return True
        return shows(self._section.succeeded, found.content) is not None

    async def cancel(self, order: RepairOrder) -> bool:
        """Delete the object; True where no controller had written to it."""
        try:
            resource, found = await self._find(order)
            if found is None or not is_of_order(found, order) or has_begun(found.content):
                return False
            if found.deleting:
                return False
            await self._objects.delete(resource, found, as_read=True, guard=UNGUARDED)
        except (UnusableNameError, NotFound, Refused):
            return False
        return True

    async def clean_up(self, order: RepairOrder) -> RepairAnswer:
        """Delete the object if it is still the order's, and wait for its controller's finalizers:
        until they are gone it may act on the node.

        DONE: none of ours is left. NOT_SENT: call again. FAILED: it stays.
        """
        try:
            resource, found = await self._find(order)
            if found is not None and is_of_order(found, order) and not found.deleting:
                await self._objects.delete(resource, found, as_read=False, guard=UNGUARDED)
                _, found = await self._find(order)
            if found is not None and is_of_order(found, order):
                text = f"{self._named(found.name)} is deleted, and a finalizer keeps it"
                return RepairAnswer(AnswerState.NOT_SENT, text)
        except UnusableNameError:
            return RepairAnswer(AnswerState.DONE)  # no object was made
        except Conflict:
            return RepairAnswer(AnswerState.DONE)  # another one has its name by now
        except ClusterError as error:
            return clean_up_of(error)
        return RepairAnswer(AnswerState.DONE)

    async def missing_rights(self) -> Sequence[str]:
        """The rights that the order needs and this identity lacks. Raises ClusterError."""
        resource = await self._objects.resource(self._kind)
        return await self._objects.lacks(resource, self._namespace, ("get", "create", "delete"))

    async def _find(self, order: RepairOrder) -> tuple[ObjectResource, ClusterObject | None]:
        name = object_name(self._template, order)
        resource = await self._objects.resource(self._kind)
        return resource, await self._objects.get(resource, self._namespace, name)

    async def _known(
        self, order: RepairOrder, resource: ObjectResource, name: str, conflict: Conflict
    ) -> RepairAnswer:
        """The name is taken: by this order, which was sent before, or by a stranger."""
        try:
            found = await self._objects.get(resource, self._namespace, name)
        except ClusterError as error:
            return RepairAnswer(AnswerState.UNSURE, str(error))
        if found is None:  # not about this name (for example a changed quota), or it has just gone
            return RepairAnswer(AnswerState.UNSURE, str(conflict))
        if not is_of_order(found, order):
            before = found.annotations.get(OPERATION)
            whose = f"of {before}" if before else "of another party"
            text = f"{self._named(name)} is there already, and is {whose}; expected none"
            return RepairAnswer(AnswerState.FAILED, text)
        if found.deleting:
            return RepairAnswer(AnswerState.UNSURE, f"{self._named(name)} is being deleted")
        return RepairAnswer(AnswerState.TAKEN, f"{self._named(name)} was created before")

    def _named(self, name: str) -> str:
        where = f"{self._namespace}/" if self._namespace else ""
        return f"{self._kind.kind} {where}{name}"

    def _misplaced(self, resource: ObjectResource) -> str:
        if resource.namespaced:
            return f"{self._kind} is in namespaces; expected metadata.namespace in the template"
        return f"{self._kind} is in no namespace; expected no metadata.namespace in the template"
