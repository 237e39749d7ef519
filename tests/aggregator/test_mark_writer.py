"""Annotations for other tools never keep a node from being marked, or from being released."""

from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

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
from aggregator.quarantine.actions.node_actions import NodeActions
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
    words: object = None
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


def acts_on(api: Api, now: Callable[[], float] = lambda: 0.0) -> NodeActions:
    unused: Any = SimpleNamespace(switch=SimpleNamespace(may_act=bool, check_place=None))
    return NodeActions(
        cluster=cast("Cluster", api),
        record_writer=unused,
        pools=unused,
        announcer=unused,
        event_sink=unused,
        clocks=Clocks(now, now),
        policy=unused,
        stages=unused,
    )


async def patch(api: Api, change: NodeChange) -> None:
    await acts_on(api).patch_marks(NODE, change, guard=UNGUARDED)


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


async def test_a_storm_of_refusals_is_one_line_with_their_number(
    caplog: pytest.LogCaptureFixture,
) -> None:
    time = 0.0
    acts = acts_on(Api(), lambda: time)

    async def mark(nodes: int) -> None:
        for _ in range(nodes):
            await acts.patch_marks(NODE, CHANGE, guard=UNGUARDED)

    await mark(1000)
    time = 601.0
    await mark(2)
    assert [getattr(one, "left_out", 0) for one in caplog.records] == [0, 999]


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
