"""Tests the nodes that carry a startup taint, and removes that from those that pass; and tests
idle nodes now and then, and nodes in service where a person asks for that.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from aggregator.clock import Clocks
from aggregator.cluster.node_names import NODE_TEST
from aggregator.cluster.port import (
    Cluster,
    ClusterError,
    Conflict,
    GuardRefused,
    ListedNodeTest,
    Node,
    Operation,
    RepairState,
)
from aggregator.events import EventSink
from aggregator.health.model import Component
from aggregator.policy.repairs import TEST
from aggregator.quarantine.admission.record_writer import AdmissionRecordWriter
from aggregator.quarantine.decide.idle_nodes import IdleNodeRules, next_idle_test
from aggregator.quarantine.decide.new_nodes import (
    condition_of,
    is_tainted,
    needs_a_person,
    next_test,
)
from aggregator.quarantine.decide.node_tests import (
    IDLE,
    NextTest,
    NodeTest,
    NodeTestStep,
    ended,
    open_failure,
    passed_in_quarantine,
    under_way,
)
from aggregator.quarantine.decide.repair import RepairMode
from aggregator.quarantine.decide.repair_permission import NO_ORDER
from aggregator.quarantine.repair.before_release import boot_of
from aggregator.quarantine.repair.idle_node_choice import IdleNodeChoice
from aggregator.quarantine.repair.node_test_checks import NodeTestChecks
from aggregator.quarantine.repair.node_test_display import NodeTestDisplay
from aggregator.quarantine.repair.node_test_events import NodeTestEvents
from aggregator.quarantine.repair.node_test_evidence import NodeTestEvidence
from aggregator.quarantine.repair.node_test_requests import is_test_of
from aggregator.quarantine.repair.node_test_state import (
    AT_ONCE,
    EVERY,
    POLL_BUSY,
    POLL_EVERY,
    WatchedNode,
    cancel_steps,
    parse_test,
    start_steps,
)
from aggregator.quarantine.repair.node_test_steps import NodeTestSteps
from aggregator.quarantine.repair.protocol import PermissionRequest, RepairSettings
from aggregator.quarantine.repair.unwanted_tests import UnwantedTests
from aggregator.quarantine.state.fleet import FleetState, NodeTestView
from aggregator.quarantine.state.node_pools import NodePools
from aggregator.quarantine.state.registry import NodeRegistry

log = logging.getLogger("sickbay.quarantine")

#: All Nodes are listed so often (seconds). A node whose agent is new is read at once.
LIST_EVERY = 180.0
#: Nodes that are done with, and that the page shows from memory until the list of nodes has them.
_MOST_DONE = 1000
#: New agents whose Nodes are read in one round.
_READS = 20


class NodeTests:
    """One task. Where ``settings`` name no startup taint, no test of idle nodes and none by hand,
    it begins no test, and ends those that it finds under way.
    """

    def __init__(
        self,
        *,
        cluster: Cluster,
        record_writer: AdmissionRecordWriter,
        clocks: Clocks,
        pools: NodePools,
        settings: RepairSettings,
        node_registry: NodeRegistry,
        fleet: FleetState,
        may_act: Callable[[], bool],
        view: Callable[[], bool],
        event_sink: EventSink,
        emit: Callable[[str, Component], object],
    ) -> None:
        """``say`` gives a node evidence in our own name. ``may_act`` tells whether we are
        the controller at this moment, ``view`` whether the picture of the cluster is whole.
        """
        self._cluster = cluster
        self._record_writer = record_writer
        self._clocks = clocks
        self._settings = settings
        self._rules = settings.rules.new_nodes
        self._registry = node_registry
        self._may_act = may_act
        self._view = view
        self._checks = NodeTestChecks(
            cluster=cluster,
            record_writer=record_writer,
            clocks=clocks,
            pools=pools,
            rules=self._rules,
            node_registry=node_registry,
            owner_kinds=settings.node_owner_kinds,
        )
        self._events = NodeTestEvents(
            clocks=clocks, event_sink=event_sink, fleet=fleet, rules=self._rules
        )
        steps_by = partial(
            NodeTestSteps,
            cluster=cluster,
            record_writer=record_writer,
            clocks=clocks,
            settings=settings,
            fleet=fleet,
            events=self._events,
            checks=self._checks,
        )
        self._steps = steps_by(rules=self._rules)
        self._display = NodeTestDisplay(
            cluster=cluster,
            settings=settings,
            node_registry=node_registry,
            fleet=fleet,
            may_act=may_act,
        )
        self._unwanted = UnwantedTests(
            cluster=cluster,
            record_writer=record_writer,
            clocks=clocks,
            settings=settings,
            node_registry=node_registry,
            may_act=may_act,
            # Without its key no step can remove a startup taint.
            steps=steps_by(rules=replace(self._rules, taint="")),
            display=self._display,
        )
        self._idle_choice = IdleNodeChoice(
            record_writer=record_writer,
            clocks=clocks,
            test_pause=settings.rules.test_pause,
            node_registry=node_registry,
            may_act=may_act,
            checks=self._checks,
        )
        self._evidence = NodeTestEvidence(
            clocks=clocks, node_registry=node_registry, may_act=may_act, emit=emit
        )
        self._watched: dict[str, WatchedNode] = {}
        self._list_at = float("-inf")
        #: The uids of Nodes that were listed or read; None before the first list.
        self._seen: set[str] | None = None
        #: The latest tests of nodes that are not watched any more, for the page.
        self._done: dict[str, NodeTestView] = {}
        self._trouble = ""
        #: The last test of each node that has one, as of the last list or of its end since.
        self._tests: dict[str, NodeTest] = {}

    async def run(self) -> None:
        """For ever."""
        idle = self._settings.rules.idle_nodes
        by_hand = self._settings.tests_in_service
        if self._settings.off or not (self._rules.taint or idle or by_hand):
            await self._end_unwanted()
            return
        try:
            while True:
                if self._view():
                    await self._go_round()
                    if idle is not None:
                        await self._choose_idle(idle)
                await asyncio.sleep(EVERY)
        finally:
            cancel_steps(self._watched)

    async def _end_unwanted(self) -> None:
        try:
            while True:
                if self._view():
                    self._unwanted.go_round()
                await asyncio.sleep(EVERY)
        finally:
            self._unwanted.cancel()

    async def _go_round(self) -> None:
        try:
            if self._clocks.now() >= self._list_at:
                await self._list()
            elif self._rules.taint:
                await self._read_new()
        except ClusterError as error:
            if str(error) != self._trouble:
                self._trouble = str(error)
                text = "nodes can't be listed: no test of a new or an idle one begins"
                log.warning(text, extra={"error": self._trouble})
            self._list_at = self._clocks.now() + max(POLL_EVERY, error.retry_after or 0.0)
        else:
            self._trouble = ""
        self._take_requests()
        self._start_steps()
        for name, watched in self._watched.items():
            self._evidence.give(name, watched)
        self._display.show(self._watched, self._done)

    async def permission_refusal(self, name: str, request: PermissionRequest) -> str:
        """Why the agent must not begin its test; empty: it may. Raises ClusterError."""
        watched = self._watched.get(name)
        known = watched.test if watched is not None else None
        if known is None or (known.operation, TEST) != (request.operation, request.repair):
            return NO_ORDER  # an agent's invention costs no read
        node = await self._cluster.read_node(name)
        test = parse_test(node.annotations, node.uid)[0] if node is not None else None
        if node is None or node.uid != request.quarantine:
            return "the cluster's Node is another one, or none"
        if test is None or not test.is_busy or test.operation != request.operation:
            return NO_ORDER
        facts = self._checks.facts(node, test)
        now = self._record_writer.times.time_of(test.operation, test.began_at)
        step = next_test(test, facts, self._rules, pause=0.0, now=now)
        if step.do in (NodeTestStep.STOP, NodeTestStep.END):
            return step.because
        why = await self._checks.pods_in_the_way(node)
        why = why or await self._checks.requests.why_ended_now(test)  # after each other wait
        if why:
            return why
        await self._checks.order_guard()()
        if not self._record_writer.has_operation(name, request.operation):
            return "the admission record does not have the test any more"
        return ""

    # -- which nodes ------------------------------------------------------------------------

    async def _list(self) -> None:
        known = {meta.uid for meta in self._registry.metas.values()}
        looks = self._rules.taint or self._settings.rules.idle_nodes is not None
        found = (
            await self._cluster.list_node_tests(self._rules.taint)
            if looks or self._registry.annotated(NODE_TEST)
            else []
        )
        self._list_at = self._clocks.now() + LIST_EVERY
        self._seen = known | {one.uid for one in found}
        for one in found:
            self._take_listed(one)
        reserved = self._record_writer.record.node_tests.keys()
        for name in reserved - self._watched.keys():  # of a Node that is gone, say
            self._watched[name] = WatchedNode("", tainted=False)
        for name in self._watched.keys() - {one.node for one in found} - reserved:
            self._drop(name)
        self._events.keep_observed(self._seen)
        self._idle_choice.forget_old()
        parsed = {one.node: parse_test(one.annotations, one.uid)[0] for one in found}
        self._tests = {name: test for name, test in parsed.items() if test is not None}
        async for node_state in self._registry.by_slices():  # evidence from before this process
            if node_state.node not in self._watched:
                self._evidence.give(node_state.node, None)
        tests = {name: one.test for name, one in self._watched.items() if one.test is not None}
        self._steps.keep_operations({one.operation for one in tests.values() if one.is_busy})
        for one in self._checks.requests.left(self._tests | tests):
            await self._end_left(one)

    async def _end_left(self, request: Operation) -> None:
        """End a request whose test its Node has no more: the list of nodes may be older."""
        known = self._record_writer.record.node_tests.get(request.spec.node)
        if known is not None and known.operation == request.status.operation:
            return
        node = await self._cluster.read_node(request.spec.node, background=True)
        test, problem = parse_test(node.annotations, node.uid) if node is not None else (None, "")
        if not (problem or is_test_of(request, test)):
            await self._checks.requests.end_lost(request)

    def _take_listed(self, one: ListedNodeTest) -> None:
        """The list may be a little old: each step reads the Node anew."""
        test, problem = parse_test(one.annotations, one.uid)
        told = condition_of(test, tainted=one.tainted, rules=self._rules)
        busy = test is not None and test.is_busy
        stays = one.tainted or busy or bool(open_failure(test)[0])
        if not (stays or (told is not None and told != one.condition)):
            self._drop(one.node)
            return
        known = self._watched.get(one.node)
        if known is None:
            self._watched[one.node] = WatchedNode(
                one.uid, one.tainted, test, problem=problem, said=one.condition
            )
        elif known.step is None and not known.chosen:
            known.uid, known.tainted, known.test = one.uid, one.tainted, test
            known.problem, known.said = problem, one.condition

    async def _read_new(self) -> None:
        """Read the Nodes of agents that have come since the last list, which may be minutes old."""
        if self._seen is None:
            return
        fresh: list[tuple[str, str]] = []
        async for node_state in self._registry.by_slices():
            uid = node_state.agent.claimed or self._registry.uid_of(node_state.node)
            if node_state.agent.is_fresh and uid and uid not in self._seen:
                fresh.append((node_state.node, uid))
        for name, uid in fresh[:_READS]:
            if not self._may_act():
                continue
            node = await self._cluster.read_node(name, background=True)
            self._seen.add(uid)
            if (
                node is not None
                and is_tainted(node, self._rules.taint)
                and name not in self._watched
            ):
                test, problem = parse_test(node.annotations, node.uid)
                self._watched[name] = WatchedNode(
                    node.uid, tainted=True, test=test, problem=problem
                )

    def _take_requests(self) -> None:
        """Watch the nodes in service of which a person wants a test."""
        if not self._settings.tests_in_service:
            return
        for name, asked in self._checks.requests.by_node().items():
            meta = self._registry.meta(name)
            if meta is None or self._is_quarantined(name) or not self._may_act():
                continue
            watched = self._watched.setdefault(name, WatchedNode(meta.uid, tainted=False))
            if not (watched.tainted or watched.requested or watched.step is not None):
                watched.requested, watched.poll_at = asked.name, float("-inf")

    def _drop(self, name: str) -> None:
        known = self._watched.get(name)
        if known is not None and known.step is None and not known.chosen and not known.requested:
            del self._watched[name]

    async def _choose_idle(self, idle: IdleNodeRules) -> None:
        """Take the nodes whose periodic test is due, as many as the fleet's limit has room for."""
        for one in self._watched.values():
            if one.chosen and one.step is None and not self._may_act():
                one.chosen = False
        told = self._settings.rules.mode is RepairMode.OBSERVE and self._events.idle_reported
        if self._seen is None or told or self._record_writer.switch.reason:
            return
        for due in await self._idle_choice.choose_due(idle, self._watched, self._tests):
            watched = self._watched.setdefault(due.node, WatchedNode(due.uid, tainted=False))
            if watched.step is None:
                watched.chosen, watched.poll_at = True, float("-inf")

    def _start_steps(self) -> None:
        most = AT_ONCE + self._rules.concurrent
        now = self._clocks.now()
        start_steps(self._watched, now, most, self._may_start, self._step, "new-node")

    def _may_start(self, name: str, watched: WatchedNode) -> bool:
        return self._may_act() and not self._rests(name, watched)

    def _rests(self, name: str, watched: WatchedNode) -> bool:
        """Whether the node is watched for its failed idle test alone, which is evidence, and no
        read could change that.
        """
        test = watched.test
        acts = watched.tainted or watched.chosen or watched.requested
        if acts or test is None or test.is_busy:
            return False
        if not open_failure(test)[0] or self._passed_since(name, test):
            return False
        if self._is_quarantined(name) and not test.quarantined:
            return False
        told = condition_of(test, tainted=False, rules=self._rules)
        return told is None or told == watched.said

    def _is_quarantined(self, name: str) -> bool:
        node_state = self._registry.known(name)
        return node_state is not None and node_state.quarantine is not None

    def _passed_since(self, name: str, test: NodeTest) -> str:
        """The operation of a test in quarantine that the node has passed since; empty: none."""
        node_state = self._registry.known(name)
        quarantine = node_state.quarantine if node_state is not None else None
        if node_state is None or quarantine is None:
            return ""
        return passed_in_quarantine(test, boot_of(node_state), quarantine.status.repair)

    # -- one step ---------------------------------------------------------------------------

    async def _step(self, name: str, watched: WatchedNode) -> None:
        watched.poll_at = self._clocks.now() + POLL_EVERY
        try:
            await self._advance(name, watched)
        except (GuardRefused, Conflict) as error:  # decided anew at the next look
            watched.poll_at = self._clocks.now() + POLL_BUSY
            log.info(
                "the test of a node is decided on anew",
                extra={"event": "node.test_redecided", "node": name, "error": str(error)},
            )
        except ClusterError as error:
            watched.poll_at = self._clocks.now() + max(POLL_EVERY, error.retry_after or 0.0)
            self._note_failure(name, watched, str(error))
        else:
            watched.note_failure("")
        finally:
            watched.step, watched.chosen = None, False

    def _note_failure(self, name: str, watched: WatchedNode, error: str) -> None:
        """The page shows what the cluster refuses, and so does the log."""
        if watched.note_failure(error):
            log.warning(
                "the test of a node can't go on now",
                extra={"event": "node.test_unfinished", "node": name, "error": error},
            )

    async def _advance(self, name: str, watched: WatchedNode) -> None:
        await self._note_quarantine(name, watched)
        busy = watched.test is not None and watched.test.is_busy
        why = "" if busy else self._checks.against_memory(name)
        if why and watched.tainted and not watched.problem:  # no read can change that
            watched.held = why
            await self._steps.forget_leftover(name, watched)
            await self._display.write_condition(name, watched)
            return
        node = await self._cluster.read_node(name, background=True)
        if node is None:
            watched.test = None
            await self._steps.forget_leftover(name, watched)
            self._watched.pop(name, None)
            self._tests.pop(name, None)
            return
        requested = self._checks.requests.by_node().get(name)
        watched.take_read(node, self._rules.taint, self._settings.domain_labels, requested)
        if watched.problem:
            return
        await self._take_later_pass(name, watched)
        step = self._next(node, watched)
        watched.held = step.because if step.do is NodeTestStep.NOTHING else ""
        if step.do is not NodeTestStep.ORDER:
            await self._steps.forget_leftover(name, watched)
        await self._steps.take_step(name, watched, node, step)
        if step.do is NodeTestStep.ORDER:  # it may have been refused after its reservation
            await self._steps.forget_leftover(name, watched)
        await self._display.write_condition(name, watched)
        await self._checks.requests.settle(watched.test)
        if watched.test is not None:
            self._tests[name] = watched.test
        stays = watched.tainted or watched.requested or open_failure(watched.test)[0]
        if not stays and not (watched.test is not None and watched.test.is_busy):
            self._watched.pop(name, None)
            self._evidence.give(name, None)
            self._done.pop(name, None)
            if watched.test is not None:
                self._done[name] = NodeTestView(watched.test, tainted=False)
            while len(self._done) > _MOST_DONE:
                del self._done[next(iter(self._done))]

    async def _note_quarantine(self, name: str, watched: WatchedNode) -> None:
        """The Node remembers a quarantine after its last test: that is decided on anew after it.

        Without that a node that was repaired, and released, would wait for a person or a reboot.
        """
        test = watched.test
        if test is None or test.quarantined or test.is_busy or not self._is_quarantined(name):
            return
        if not (needs_a_person(test, watched.boot_id, self._rules) or open_failure(test)[0]):
            return
        await self._steps.change(name, watched, test, replace(test, quarantined=True))

    async def _take_later_pass(self, name: str, watched: WatchedNode) -> None:
        """Write down that the failure of an idle node is over by a test in its quarantine: else it
        would stand again when the quarantine is gone.
        """
        test = watched.test
        if test is None or test.is_busy or not open_failure(test)[0]:
            return
        operation = self._passed_since(name, test)
        if operation:
            text = f"it has passed a test since, in quarantine (operation {operation})"
            at = round(self._clocks.wall(), 3)
            # It answers no request: the last one may have been refused.
            mine = replace(test, request="", request_uid="")
            passed = ended(mine, RepairState.SUCCEEDED, text, at=at, boot_id=watched.boot_id)
            await self._steps.change(name, watched, test, passed)

    def _next(self, node: Node, watched: WatchedNode) -> NextTest:
        test, facts = watched.test, self._checks.facts(node, watched.test)
        pause, now = self._settings.rules.test_pause, self._clocks.earliest()
        asked = watched.requested and not watched.tainted and self._settings.tests_in_service
        busy = test is not None and test.is_busy
        if test is not None and busy:  # by the clock that began it
            now = self._record_writer.times.time_of(test.operation, test.began_at)
        # With idle_nodes the configuration has such a repairer.
        kept = self._settings.tests_in_service or self._settings.rules.idle_nodes is not None
        if test is not None and busy and test.reason == IDLE and not kept:
            return under_way(test, facts, now, "no repairer runs tests that work preempts any more")
        if (test.reason == IDLE) if test is not None and busy else (asked or watched.chosen):
            idle = self._settings.rules.idle_nodes
            return next_idle_test(test, facts, idle, pause=pause, now=now)
        return next_test(test, facts, self._rules, pause=pause, now=now)
