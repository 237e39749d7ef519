"""Annotations for other tools never keep a node from being marked, or from being released."""

from dataclasses import dataclass, field
from typing import cast

import pytest

from aggregator.cluster.node_names import CODES, KEPT
from aggregator.cluster.port import (
    UNGUARDED,
    AdmissionRefused,
    Cluster,
    ClusterError,
    Node,
    NodeChange,
    Refused,
)
from aggregator.quarantine.actions.node_actions import patch_marks
from aggregator.quarantine.decide.node_marks import KEEPING, without_notices

NODE = Node("n1", "uid-1", "1", False, (), {}, {}, "boot-1", True, "")
OWN = {CODES: "xid:79"}
CHANGE = NodeChange(
    unschedulable=True, annotations={**OWN, **dict.fromkeys(KEEPING, "true"), KEPT: "x"}
)
UNDO = NodeChange(
    unschedulable=False, annotations={CODES: None, **dict.fromkeys(KEEPING), KEPT: None}
)


@dataclass
class Api:
    """A cluster whose admission refuses other tools' annotations, or all, or none."""

    refuses: str = "foreign"
    error: type[ClusterError] = AdmissionRefused
    asked: list[NodeChange] = field(default_factory=list)
    guards: int = 0

    async def patch_node(self, node: Node, change: NodeChange, *, guard: object = None) -> Node:
        self.asked.append(change)
        self.guards += guard is not None
        foreign = any(key in KEEPING for key in change.annotations)
        if self.refuses == "all" or (self.refuses == "foreign" and foreign):
            raise self.error(
                "denied request: the aggregator may change annotations under ... alone"
            )
        return node


async def patch(api: Api, change: NodeChange) -> None:
    await patch_marks(cast("Cluster", api), NODE, change, guard=UNGUARDED)


@pytest.mark.parametrize("change", [CHANGE, UNDO])
async def test_a_refused_change_goes_without_them_and_the_log_says_so(
    change: NodeChange, caplog: pytest.LogCaptureFixture
) -> None:
    api = Api()
    await patch(api, change)
    assert api.asked == [change, without_notices(change)]
    assert set(api.asked[1].annotations) == {CODES}
    assert api.asked[1].unschedulable is change.unschedulable
    assert api.guards == 2, "each request checks the stop switch"
    assert caplog.text.count("admission refuses annotations") == 1
    api.refuses = "none"
    await patch(api, change)
    assert api.asked[2:] == [change], "the policy may be a new one"


@pytest.mark.parametrize(
    ("api", "requests"),
    [(Api("all"), 2), (Api("all", Refused), 1)],
    ids=["by admission", "by rights"],
)
async def test_what_is_refused_for_another_reason_is_an_error(api: Api, requests: int) -> None:
    with pytest.raises(Refused):
        await patch(api, CHANGE)
    assert len(api.asked) == requests


async def test_a_mark_without_such_annotations_is_asked_for_once() -> None:
    api = Api("all")
    with pytest.raises(AdmissionRefused):
        await patch(api, NodeChange(annotations=OWN))
    assert len(api.asked) == 1
