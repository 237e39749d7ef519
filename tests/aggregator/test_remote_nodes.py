"""The state kept of other replicas' nodes, and the reports still due to them: pure."""

import asyncio
from dataclasses import replace

from aggregator.cluster.port import NodeMeta
from aggregator.health.model import Status
from aggregator.health.node import NodeHealth
from aggregator.quarantine.decide.replica_messages import NodeReport
from aggregator.quarantine.state.fleet import FleetState
from aggregator.quarantine.state.registry import NodeRegistry
from aggregator.quarantine.state.remote import LEAVING, DirtyNodes, RemoteNodes
from tests.support.replica import hello, snapshot


def report(node: str) -> NodeReport:
    return NodeReport(node, reported=True)


def test_a_node_is_known_by_its_last_teller_without_what_others_have_no_use_for() -> None:
    known = RemoteNodes()
    assert known.reported == 0
    assert (known.get("n1"), known.teller("n1"), len(known), "n1" in known) == (None, "", 0, False)
    seen = tuple((check, "x", Status.OK) for check in ("reach", "dns", "xid", "disk-mounts"))
    known.apply_reports("r1", replace(report("n1"), sees=seen, assigned=("10.0.0.1",)))
    known.apply_reports("r2", report("n2"))
    assert known.get("n1") == replace(report("n1"), sees=(seen[0], seen[1], seen[3]))
    assert (known.teller("n1"), known.tellers(), len(known)) == ("r1", {"r1", "r2"}, 2)
    known.apply_reports("r2", report("n1"))
    assert (known.teller("n1"), known.tellers(), len(known)) == ("r2", {"r2"}, 2)
    assert [one.node for one in known.reports()] == ["n1", "n2"]


def test_what_was_told_of_a_node_stands_for_a_minute_after_its_replica_left() -> None:
    known = RemoteNodes()
    for name in ("n1", "n2"):
        known.apply_reports("r1", report(name))
    known.apply_reports("r2", report("n3"))
    known.leave_all("r1", 100.0)
    known.leave_all("r1", 130.0)  # the time of the first call counts
    assert [known.is_leaving(name) for name in ("n1", "n2", "n3")] == [True, True, False]
    known.apply_reports("r2", report("n2"))
    assert not known.is_leaving("n2")
    assert known.take_expired(100.0 + LEAVING - 0.1) == []
    assert "n1" in known
    assert known.take_expired(100.0 + LEAVING) == ["n1"]
    assert "n1" not in known
    assert not known.is_leaving("n1")
    assert known.take_expired(1e9) == []
    assert known.tellers() == {"r2"}


def test_a_node_that_speaks_here_is_nobody_elses_and_not_on_its_way() -> None:
    known = RemoteNodes()
    known.apply_reports("r1", report("n1"))
    known.leave("n1", 100.0)
    known.reclaim("n1")
    assert ("n1" in known, known.is_leaving("n1")) == (False, False)
    known.reclaim("n1")  # nor is there anything to take back twice


def test_all_that_is_forgotten_at_once_is_named() -> None:
    known = RemoteNodes()
    known.apply_reports("r1", report("n1"))
    known.apply_reports("r1", report("n2"))
    known.leave("n2", 5.0)
    known.leave("n3", 5.0)  # ours was
    assert sorted(known.take_all()) == ["n1", "n2", "n3"]
    assert (len(known), known.take_all(), known.take_expired(1e9)) == (0, [], [])


def test_what_is_unsaid_is_collected_while_somebody_listens_and_taken_in_its_order() -> None:
    dirty_nodes, stirred = DirtyNodes(), []
    dirty_nodes.mark("n0")
    assert len(dirty_nodes) == 0
    dirty_nodes.listen(lambda: stirred.append(len(dirty_nodes)))
    for name in ("n2", "n1", "n2", "n3"):
        dirty_nodes.mark(name)
    assert stirred == [1], "once, when there was nothing before"
    assert [dirty_nodes.take_dirty() for _ in range(2)] == ["n2", "n1"]
    dirty_nodes.mark("n2")
    assert stirred == [1]
    assert [dirty_nodes.take_dirty() for _ in range(2)] == ["n3", "n2"]
    dirty_nodes.mark("n1")
    assert stirred == [1, 1]
    dirty_nodes.listen(None)
    assert len(dirty_nodes) == 0
    dirty_nodes.mark("n1")
    assert len(dirty_nodes) == 0
    assert stirred == [1, 1]


def test_silence_is_counted_of_the_clusters_nodes_and_of_all_before_these_are_listed() -> None:
    known = RemoteNodes()
    registry = NodeRegistry(FleetState(), "", known)
    for name in ("n1", "n2", "ghost"):
        node_state = registry.node_state(name)
        node_state.agent.health = NodeHealth(hello(name))
        node_state.agent.health.snapshot(snapshot())
        node_state.agent.silent = name != "n1"
    known.apply_reports("r1", replace(report("n3"), silent=True))
    known.apply_reports("r1", replace(report("gone"), silent=True))
    assert asyncio.run(registry.silence()) == (4, 5)
    registry.listed([NodeMeta(name, name) for name in ("n1", "n2", "n3")])
    assert asyncio.run(registry.silence()) == (2, 3)
    registry.node_state("n2").agent.attached = True
    assert asyncio.run(registry.silence()) == (1, 3), "it is fresh"
    known.apply_reports("r1", report("n2"))
    assert asyncio.run(registry.silence()) == (1, 3), "another counts it"


def test_an_absent_node_counts_for_no_limit_until_it_is_back() -> None:
    registry = NodeRegistry(FleetState(), "")
    registry.note_absence("n1", absent=True)
    assert registry.size().absent == {"n1"}
    registry.note_absence("n1", absent=False)
    registry.note_absence("n1", absent=False)
    assert registry.size().absent == frozenset()
