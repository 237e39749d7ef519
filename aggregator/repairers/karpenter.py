"""A replacement by Karpenter: the Node's NodeClaim is deleted, and Karpenter makes another one.

Karpenter's finalizer keeps the NodeClaim until its Nodes and its instance are gone
(kubernetes-sigs/karpenter pkg/controllers/nodeclaim/lifecycle). So the Node that is gone, or is
another one, proves the replacement. A deletion can't be taken back.
"""

from collections.abc import Sequence

from aggregator.cluster.objects import ClusterObject, ObjectKind, ObjectResource, ObjectStore
from aggregator.cluster.port import ClusterError, Conflict, Guard
from aggregator.quarantine.repair.protocol import AnswerState, RepairAnswer, RepairOrder
from aggregator.repairers.node_object import NodeIsAnotherError, read_node_facts
from aggregator.repairers.object_answers import answer_of
from aggregator.repairers.sent_once import SentOnce

NODE_CLAIM = ObjectKind("karpenter.sh/v1", "NodeClaim")
#: Karpenter may write the status in between, but not that often in a row.
_TRIES = 5
_MOST_NAMED = 3


class KarpenterRepairer(SentOnce):
    """Implements `Repairer`. A second order finds the NodeClaim's deletion, so it is harmless."""

    sends_twice = True

    def __init__(self, objects: ObjectStore) -> None:
        self._objects = objects

    async def order(self, order: RepairOrder, guard: Guard) -> RepairAnswer:
        try:
            resource = await self._objects.resource(NODE_CLAIM)
            for _ in range(_TRIES):
                node = await read_node_facts(self._objects, order)
                claims = await self._objects.find(resource, node.is_of_claim)
                if len(claims) != 1:
                    return RepairAnswer(AnswerState.FAILED, _not_one(order.node, claims))
                fresh = await self._objects.get(resource, "", claims[0].name)
                if fresh is None or not node.is_of_claim(fresh.content):
                    continue
                if fresh.deleting:
                    text = f"NodeClaim {fresh.name} is being deleted already"
                    return RepairAnswer(AnswerState.TAKEN, text)
                answer = await self._delete(resource, fresh, guard)
                if answer is not None:
                    return answer
        except NodeIsAnotherError as error:
            return RepairAnswer(AnswerState.UNSURE, str(error))
        except ClusterError as error:
            return answer_of(error, sent=False)
        text = "the NodeClaim changes faster than it can be deleted"
        return RepairAnswer(AnswerState.NOT_SENT, text)

    async def _delete(
        self, resource: ObjectResource, claim: ClusterObject, guard: Guard
    ) -> RepairAnswer | None:
        """None: it has changed since it was read."""
        try:
            await self._objects.delete(resource, claim, as_read=True, guard=guard)
        except Conflict:
            return None
        except ClusterError as error:
            return answer_of(error, sent=True)
        return RepairAnswer(AnswerState.TAKEN, f"NodeClaim {claim.name} is deleted")

    async def missing_rights(self) -> Sequence[str]:
        """The rights that the order needs and this identity lacks. Raises ClusterError."""
        resource = await self._objects.resource(NODE_CLAIM)
        return await self._objects.lacks(resource, "", ("get", "list", "delete"))


def _not_one(node: str, claims: Sequence[ClusterObject]) -> str:
    if not claims:
        return (
            f"no NodeClaim has status.nodeName {node} or the Node's providerID: Karpenter did not"
            " make this node"
        )
    names = ", ".join(sorted(one.name for one in claims)[:_MOST_NAMED])
    return f"{len(claims)} NodeClaims are of node {node}: {names}; expected one, so none is deleted"
