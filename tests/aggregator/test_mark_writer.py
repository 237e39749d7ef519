"""Annotations for other tools never keep a node from being marked, or from being released."""

import logging
from dataclasses import dataclass, field
from typing import cast

import pytest

from aggregator.clock import Clocks
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
from aggregator.quarantine.actions.node_actions import WITHOUT_FOR, MarkWriter
from aggregator.quarantine.decide.node_marks import KEEPING, without_notices
from tests.support.replica import Turned

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


def writer(api: Api, clock: Turned) -> MarkWriter:
    return MarkWriter(cast("Cluster", api), Clocks(clock, clock))


async def test_a_refused_mark_goes_without_them_and_the_log_says_so_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    api, clock = Api(), Turned()
    marks = writer(api, clock)
    await marks.mark(NODE, CHANGE, guard=UNGUARDED)
    assert [set(one.annotations) for one in api.asked] == [set(CHANGE.annotations), {CODES}]
    assert all(one.unschedulable for one in api.asked)
    assert api.guards == 2, "each request checks the stop switch"
    await marks.mark(NODE, CHANGE, guard=UNGUARDED)
    assert len(api.asked) == 3, "the next taint is not delayed by a refusal"
    clock.time += WITHOUT_FOR
    await marks.mark(NODE, CHANGE, guard=UNGUARDED)
    assert len(api.asked) == 5, "the policy may be a new one"
    assert caplog.text.count("admission refuses annotations") == 1
    api.refuses, clock.time = "none", clock.time + WITHOUT_FOR
    await marks.mark(NODE, CHANGE, guard=UNGUARDED)
    assert api.asked[-1] == CHANGE
    assert caplog.text.count("takes annotations for other tools again") == 1


async def test_an_undo_is_tried_whole_each_time_and_goes_without_them() -> None:
    api = Api()
    marks = writer(api, Turned())
    for _ in range(2):
        await marks.undo(NODE, UNDO, guard=UNGUARDED)
    assert api.asked == [UNDO, without_notices(UNDO)] * 2
    assert api.asked[1].annotations == {CODES: None}


@pytest.mark.parametrize(
    ("api", "requests"),
    [(Api("all"), 2), (Api("all", Refused), 1)],
    ids=["by admission", "by rights"],
)
async def test_what_is_refused_for_another_reason_is_an_error(api: Api, requests: int) -> None:
    with pytest.raises(Refused):
        await writer(api, Turned()).mark(NODE, CHANGE, guard=UNGUARDED)
    assert len(api.asked) == requests


async def test_a_mark_without_such_annotations_is_asked_for_once() -> None:
    api = Api("all")
    with pytest.raises(AdmissionRefused):
        await writer(api, Turned()).mark(NODE, NodeChange(annotations=OWN), guard=UNGUARDED)
    assert len(api.asked) == 1
