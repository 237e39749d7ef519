"""Tests the nodes that carry a startup taint, and removes that from those that pass; and tests
idle nodes now and then.

Order, as for repairs in a quarantine: the reservation in the admission record, the test in an
annotation of the Node (compare-and-set), the order; then the verdict, its end on the Node together
with the removal of the taint, and the reservation out of the record. So a process that dies between
any two of them leaves behind at least as much as it has done.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from aggregator.clock import Clocks
from aggregator.cluster.node_names import NODE_TEST, is_marked
from aggregator.cluster.port import (
    Action,
    Cluster,
    ClusterError,
    Conflict,
    Guard,
    GuardRefused,
    ListedNodeTest,
    Node,
    NodeChange,
    NodeTestCondition,
    RepairState,
)
from aggregator.events import EventKind, EventSink, Transition
from aggregator.health.model import Component
from aggregator.policy.repairs import TEST
from aggregator.quarantine.admission.record_writer import AdmissionRecordWriter
from aggregator.quarantine.decide.admission_record import RunningRepair
from aggregator.quarantine.decide.drain_plan import FINISHED, stays_by_nature
from aggregator.quarantine.decide.idle_nodes import (
    IdleCandidate,
    IdleNodeRules,
    choose,
    in_use,
    next_idle_test,
    waits_for,
)
from aggregator.quarantine.decide.maintenance import maintained_by
from aggregator.quarantine.decide.new_nodes import (
    NewNodeRules,
    condition_of,
    is_tainted,
    needs_a_person,
    next_test,
    why_over,
    without_taint,
)
from aggregator.quarantine.decide.node_tests import (
    IDLE,
    IDLE_TEST,
    NEW_NODE,
    NextTest,
    NodeTest,
    NodeTestFacts,
    NodeTestStep,
    NodeTestUnreadable,
    as_details,
    ended,
    failure_evidence,
    has_failed,
    is_own_evidence,
    not_ready,
    passed_in_quarantine,
    read_test,
    running_of,
    standing_failure,
    write_test,
)
from aggregator.quarantine.decide.operator_requests import NO_QUARANTINE, read_operator_requests
from aggregator.quarantine.decide.repair import (
    RepairMode,
    domains_of,
    followed_change,
    other_party,
    read_request,
)
from aggregator.quarantine.repair.before_release import boot_of
from aggregator.quarantine.repair.protocol import (
    AnswerState,
    RepairAnswer,
    RepairOrder,
    RepairSettings,
)
from aggregator.quarantine.state.fleet import FleetState, NodeTestView
from aggregator.quarantine.state.node import NodeState
from aggregator.quarantine.state.node_pools import NodePools
from aggregator.quarantine.state.registry import NodeRegistry

log = logging.getLogger("sickbay.quarantine")

#: The nodes are looked through so often (seconds).
EVERY = 3.0
#: All Nodes are listed so often (seconds). A node whose agent is new is read at once.
LIST_EVERY = 180.0
#: A node that waits is looked at so often (seconds), one under test so often.
LOOK_EVERY, LOOK_BUSY = 15.0, 5.0
#: Nodes that are looked at together, beside those under test.
_AT_ONCE = 8
#: Nodes that are done with, and that the page shows from memory until the list of nodes has them.
_MOST_DONE = 1000
#: New agents whose Nodes are read in one round.
_READS = 20
#: An order that its process could not send within so long of writing it is not sent (seconds).
_SEND_WITHIN = 20.0
#: A test that has ended waits so long beyond its deadline (seconds) for the removal of what its
#: order left, and for its node's agent.
_ENDS_WITHIN = 300.0
#: The pod of an idle node's test must have begun so long after the order (seconds): work has come.
_BEGINS_WITHIN = 600.0
#: An idle node whose test did not begin is looked at again so much later (seconds).
_IDLE_AGAIN = 600.0
#: Failure domains of a reservation.
_MOST_DOMAINS = 8
_TRIES = 5
_MOST_NAMED = 3
_NO_PLACE = "this replica's place among the others is not certain any more"
_ANSWERS: Mapping[AnswerState, RepairState] = {
    AnswerState.DONE: RepairState.SUCCEEDED,
    AnswerState.FAILED: RepairState.FAILED,
    AnswerState.INCONCLUSIVE: RepairState.INCONCLUSIVE,
}
_IN_WORDS: Mapping[RepairState, str] = {
    RepairState.SUCCEEDED: "passed",
    RepairState.FAILED: "failed",
    RepairState.CANCELLED: "was ended",
}


@dataclass(slots=True)
class _Watched:
    """A node with the startup taint, or with a test or a condition that has to be brought to its
    end. ``problem``: why its annotation can't be read. ``held``: why no test begins now.
    ``failure``: the cluster's answer to the last step, where it refused that. ``said``: the
    condition as it was last seen or written. ``chosen``: an idle node whose test is due.
    ``domains``: its failure domains.
    """

    uid: str
    tainted: bool
    test: NodeTest | None = None
    boot_id: str = ""
    problem: str = ""
    held: str = ""
    failure: str = ""
    said: NodeTestCondition | None = None
    chosen: bool = False
    domains: tuple[str, ...] = ()
    look_at: float = float("-inf")
    step: asyncio.Task[None] | None = None


class NewNodeTests:
    """One task. Where ``settings`` name no startup taint and no test of idle nodes, it reads and
    writes nothing.
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
        may_act: Callable[[str], bool],
        view: Callable[[], bool],
        event_sink: EventSink,
        say: Callable[[str, Component], object],
    ) -> None:
        """``say`` gives a node evidence in our own name. ``may_act`` tells whether a node is ours
        to act for at this moment, ``view`` whether the picture of the cluster is whole.
        """
        self._cluster = cluster
        self._record_writer = record_writer
        self._clocks = clocks
        self._pools = pools
        self._settings = settings
        self._registry = node_registry
        self._fleet = fleet
        self._may_act = may_act
        self._view = view
        self._event_sink = event_sink
        self._say = say
        self._watched: dict[str, _Watched] = {}
        self._list_at = float("-inf")
        #: The uids of Nodes that were listed or read; None before the first list.
        self._seen: set[str] | None = None
        #: How tests end whose leftovers are being removed: afterwards no object tells it.
        self._ends: dict[str, tuple[RepairState, str]] = {}
        self._details: dict[str, Mapping[str, str]] = {}
        #: The latest tests of nodes that are not watched any more, for the page.
        self._done: dict[str, NodeTestView] = {}
        #: The Nodes whose test mode observe has reported, by uid.
        self._observed: set[str] = set()
        self._trouble = ""
        #: The last test of each node that has one, as of the last list or of its end since.
        self._tests: dict[str, NodeTest] = {}
        #: Until when an idle node is not looked at again.
        self._idle_again: dict[str, float] = {}
        #: When idle nodes are looked through again; at once unless none was due.
        self._choose_at = float("-inf")
        #: Whether mode observe has reported that idle nodes would be tested.
        self._idle_told = False

    async def run(self) -> None:
        """For ever."""
        rules = self._settings.rules.new_nodes
        idle = self._settings.rules.idle_nodes
        if self._settings.off or not (rules.taint or idle):
            await asyncio.Event().wait()
            return
        try:
            while True:
                if self._view():
                    await self._go_round(rules)
                    if idle is not None:
                        await self._choose_idle(idle)
                await asyncio.sleep(EVERY)
        finally:
            for watched in self._watched.values():
                if watched.step is not None:
                    watched.step.cancel()

    async def _go_round(self, rules: NewNodeRules) -> None:
        try:
            if self._clocks.now() >= self._list_at:
                await self._list(rules)
            else:
                await self._read_new(rules)
        except ClusterError as error:
            if str(error) != self._trouble:
                self._trouble = str(error)
                text = "nodes can't be listed: no test of a new or an idle one begins"
                log.warning(text, extra={"error": self._trouble})
            self._list_at = self._clocks.now() + max(LOOK_EVERY, error.retry_after or 0.0)
        else:
            self._trouble = ""
        self._start_steps(rules)
        for name, watched in self._watched.items():
            self._give_evidence(name, watched)
        self._show(rules)

    # -- which nodes ------------------------------------------------------------------------

    async def _list(self, rules: NewNodeRules) -> None:
        known = {meta.uid for meta in self._registry.metas.values()}
        found = await self._cluster.list_node_tests(rules.taint)
        self._list_at = self._clocks.now() + LIST_EVERY
        self._seen = known | {one.uid for one in found}
        for one in found:
            self._take_listed(one, rules)
        reserved = self._record_writer.record.node_tests.keys()
        for name in reserved - self._watched.keys():  # of a Node that is gone, say
            self._watched[name] = _Watched("", tainted=False)
        for name in self._watched.keys() - {one.node for one in found} - reserved:
            self._drop(name)
        self._observed &= self._seen
        now = self._clocks.now()
        self._idle_again = {name: at for name, at in self._idle_again.items() if now < at}
        parsed = {one.node: _parse(one.annotations, one.uid)[0] for one in found}
        self._tests = {name: test for name, test in parsed.items() if test is not None}
        async for node_state in self._registry.by_slices():  # evidence from before this process
            if node_state.node not in self._watched:
                self._give_evidence(node_state.node, None)
        tests = [one.test for one in self._watched.values()]
        known_tests = {one.operation for one in tests if one is not None and one.is_busy}
        self._ends = {key: one for key, one in self._ends.items() if key in known_tests}
        self._details = {key: one for key, one in self._details.items() if key in known_tests}

    def _take_listed(self, one: ListedNodeTest, rules: NewNodeRules) -> None:
        """The list may be a little old: each step reads the Node anew."""
        test, problem = _parse(one.annotations, one.uid)
        told = condition_of(test, tainted=one.tainted, rules=rules)
        busy = test is not None and test.is_busy
        stays = one.tainted or busy or bool(standing_failure(test)[0])
        if not (stays or (told is not None and told != one.condition)):
            self._drop(one.node)
            return
        known = self._watched.get(one.node)
        if known is None:
            self._watched[one.node] = _Watched(
                one.uid, one.tainted, test, problem=problem, said=one.condition
            )
        elif known.step is None and not known.chosen:
            known.uid, known.tainted, known.test = one.uid, one.tainted, test
            known.problem, known.said = problem, one.condition

    async def _read_new(self, rules: NewNodeRules) -> None:
        """Read the Nodes of agents that have come since the last list, which may be minutes old."""
        if self._seen is None:
            return
        fresh: list[tuple[str, str]] = []
        async for node_state in self._registry.by_slices():
            uid = node_state.agent.claimed or self._registry.uid_of(node_state.node)
            if node_state.agent.is_fresh and uid and uid not in self._seen:
                fresh.append((node_state.node, uid))
        for name, uid in fresh[:_READS]:
            if not self._may_act(name):
                continue
            node = await self._cluster.read_node(name, background=True)
            self._seen.add(uid)
            if node is not None and is_tainted(node, rules.taint) and name not in self._watched:
                test, problem = _parse(node.annotations, node.uid)
                self._watched[name] = _Watched(node.uid, tainted=True, test=test, problem=problem)

    def _drop(self, name: str) -> None:
        known = self._watched.get(name)
        if known is not None and known.step is None and not known.chosen:
            del self._watched[name]

    async def _choose_idle(self, idle: IdleNodeRules) -> None:
        """Take the nodes whose periodic test is due, as many as the fleet's limit has room for."""
        for name, one in self._watched.items():
            if one.chosen and one.step is None and not self._may_act(name):
                one.chosen = False
        told = self._settings.rules.mode is RepairMode.OBSERVE and self._idle_told
        if self._seen is None or told or self._record_writer.switch.reason:
            return
        now, wall = self._clocks.now(), self._clocks.trusted_wall()
        if now < self._choose_at:
            return
        runs = [
            one
            for one in self._record_writer.record.node_tests.values()
            if one.repair == IDLE_TEST and wall < one.until
        ]
        room = idle.concurrent - len(runs) - sum(one.chosen for one in self._watched.values())
        if room <= 0:
            return
        candidates = []
        pause, earliest = self._settings.rules.test_pause, self._clocks.earliest()
        async for node_state in self._registry.by_slices():
            name = node_state.node
            test = self._tests.get(name)
            if waits_for(test, idle, pause=pause, now=earliest):  # nearly all, so it is asked first
                continue
            if now >= self._idle_again.get(name, now) and self._is_free(name, node_state):
                candidates.append(IdleCandidate(name, self._registry.uid_of(name), test))
        if not candidates:
            self._choose_at = now + LOOK_EVERY
        for due in choose(candidates, idle, room, pause=pause, now=earliest):
            watched = self._watched.setdefault(due.node, _Watched(due.uid, tainted=False))
            if watched.step is None:
                watched.chosen, watched.look_at = True, float("-inf")
                self._idle_again[due.node] = now + _IDLE_AGAIN

    def _is_free(self, name: str, node_state: NodeState) -> bool:
        """Whether memory has nothing against a periodic test of the node."""
        known = self._watched.get(name)
        if known is not None:
            busy = known.test is not None and known.test.is_busy
            if known.tainted or known.problem or known.chosen or busy or known.step is not None:
                return False
        return self._may_act(name) and not self._against_state(name, node_state)

    def _start_steps(self, rules: NewNodeRules) -> None:
        now = self._clocks.now()
        busy = sum(one.step is not None for one in self._watched.values())
        for name, watched in list(self._watched.items()):
            if watched.step is not None or now < watched.look_at or not self._may_act(name):
                continue
            if self._rests(name, watched, rules):
                continue
            if busy >= _AT_ONCE + rules.concurrent:
                return
            busy += 1
            step = self._step(name, watched, rules)
            watched.step = asyncio.create_task(step, name=f"new-node {name}")

    def _rests(self, name: str, watched: _Watched, rules: NewNodeRules) -> bool:
        """Whether the node is watched for its failed idle test alone, which is evidence, and no
        read could change that.
        """
        test = watched.test
        if watched.tainted or watched.chosen or test is None or test.is_busy:
            return False
        if not standing_failure(test)[0] or self._passed_since(name, test):
            return False
        if self._is_quarantined(name) and not test.quarantined:
            return False
        told = condition_of(test, tainted=False, rules=rules)
        return told is None or told == watched.said

    def _is_quarantined(self, name: str) -> bool:
        node_state = self._registry.known(name)
        return node_state is not None and node_state.node_summary.quarantine is not None

    def _passed_since(self, name: str, test: NodeTest) -> str:
        """The operation of a test in quarantine that the node has passed since; empty: none."""
        node_state = self._registry.known(name)
        quarantine = node_state.node_summary.quarantine if node_state is not None else None
        if node_state is None or quarantine is None:
            return ""
        return passed_in_quarantine(test, boot_of(node_state), quarantine.status.repair)

    def _show(self, rules: NewNodeRules) -> None:
        """What the page and the metrics tell: of our own nodes."""
        self._fleet.node_tests = self._done | {
            name: NodeTestView(
                watched.test,
                tainted=watched.tainted,
                held=watched.problem
                or watched.failure
                or watched.held
                or self._why_over(watched, rules),
                needs_person=watched.tainted
                and (bool(watched.problem) or needs_a_person(watched.test, watched.boot_id, rules)),
            )
            for name, watched in self._watched.items()
            if self._may_act(name) and (watched.tainted or watched.test is not None)
        }

    @staticmethod
    def _why_over(watched: _Watched, rules: NewNodeRules) -> str:
        """Why a person has to go on, before the first look after the test's end has told it."""
        if not watched.tainted or not needs_a_person(watched.test, watched.boot_id, rules):
            return ""
        return why_over(watched.test, watched.boot_id, rules)

    def _give_evidence(self, name: str, watched: _Watched | None) -> None:
        """Say that the node has failed its test, or that this is over; rules decide on it.

        Only while the node's agent reports: of a silent one the boot is not known.
        """
        node_state = self._registry.known(name)
        if node_state is None or not node_state.agent.is_fresh or not self._may_act(name):
            return
        standing = _has_own_evidence(node_state)
        quarantine = node_state.node_summary.quarantine
        failed = watched is not None and has_failed(
            watched.test,
            boot_of(node_state),
            quarantine.status if quarantine is not None else None,
            tainted=watched.tainted,
        )
        if failed and watched is not None and not standing:
            self._say(name, failure_evidence(watched.test, self._clocks.now()))
        elif standing and not failed:
            self._say(name, failure_evidence(None, self._clocks.now()))

    # -- one step ---------------------------------------------------------------------------

    async def _step(self, name: str, watched: _Watched, rules: NewNodeRules) -> None:
        watched.look_at = self._clocks.now() + LOOK_EVERY
        try:
            await self._look_at(name, watched, rules)
        except (GuardRefused, Conflict) as error:  # decided anew at the next look
            watched.look_at = self._clocks.now() + LOOK_BUSY
            log.info(
                "the test of a node is decided on anew",
                extra={"event": "node.test_redecided", "node": name, "error": str(error)},
            )
        except ClusterError as error:
            watched.look_at = self._clocks.now() + max(LOOK_EVERY, error.retry_after or 0.0)
            self._note_failure(name, watched, str(error))
        else:
            watched.failure = ""
        finally:
            watched.step, watched.chosen = None, False

    def _note_failure(self, name: str, watched: _Watched, error: str) -> None:
        """The page shows what the cluster refuses; the log has it once, and not at each look."""
        if error != watched.failure:
            watched.failure = error
            log.warning(
                "the test of a node can't go on now",
                extra={"event": "node.test_unfinished", "node": name, "error": error},
            )

    async def _look_at(self, name: str, watched: _Watched, rules: NewNodeRules) -> None:
        node_state = self._registry.known(name)
        await self._note_quarantine(name, watched, node_state, rules)
        busy = watched.test is not None and watched.test.is_busy
        why = "" if busy else self._against_memory(name, node_state, rules)
        if why and watched.tainted and not watched.problem:  # no read can change that
            watched.held = why
            await self._forget_leftover(name, watched)
            await self._tell(name, watched, rules)
            return
        node = await self._cluster.read_node(name, background=True)
        if node is None:
            watched.test = None
            await self._forget_leftover(name, watched)
            self._watched.pop(name, None)
            self._tests.pop(name, None)
            return
        self._take_read(watched, node, rules)
        if watched.problem:
            return
        await self._take_later_pass(name, watched)
        step = self._next(node, node_state, watched.test, rules, chosen=watched.chosen)
        watched.held = step.because if step.do is NodeTestStep.NOTHING else ""
        if step.do is not NodeTestStep.ORDER:
            await self._forget_leftover(name, watched)
        await self._do(name, watched, node, step, rules)
        await self._tell(name, watched, rules)
        if watched.test is not None:
            self._tests[name] = watched.test
        stays = watched.tainted or bool(standing_failure(watched.test)[0])
        if not stays and not (watched.test is not None and watched.test.is_busy):
            self._watched.pop(name, None)
            self._give_evidence(name, None)
            self._done.pop(name, None)
            if watched.test is not None:
                self._done[name] = NodeTestView(watched.test, tainted=False)
            while len(self._done) > _MOST_DONE:
                del self._done[next(iter(self._done))]

    async def _note_quarantine(
        self, name: str, watched: _Watched, node_state: NodeState | None, rules: NewNodeRules
    ) -> None:
        """The Node remembers a quarantine after its last test: that is decided on anew after it.

        Without that a node that was repaired, and released, would wait for a person or a reboot.
        """
        test = watched.test
        in_quarantine = node_state is not None and node_state.node_summary.quarantine is not None
        if test is None or not in_quarantine or test.quarantined or test.is_busy:
            return
        if not (needs_a_person(test, watched.boot_id, rules) or standing_failure(test)[0]):
            return
        await self._change(name, watched, test, replace(test, quarantined=True))

    def _take_read(self, watched: _Watched, node: Node, rules: NewNodeRules) -> None:
        watched.uid, watched.tainted = node.uid, is_tainted(node, rules.taint)
        watched.boot_id = node.boot_id
        watched.test, watched.problem = _parse(node.annotations, node.uid)
        domains = domains_of(node.labels, self._settings.domain_labels)
        watched.domains = domains[:_MOST_DOMAINS]

    async def _take_later_pass(self, name: str, watched: _Watched) -> None:
        """Write down that the failure of an idle node is over by a test in its quarantine: else it
        would stand again when the quarantine is gone.
        """
        test = watched.test
        if test is None or test.is_busy or not standing_failure(test)[0]:
            return
        operation = self._passed_since(name, test)
        if operation:
            text = f"it has passed a test since, in quarantine (operation {operation})"
            at = round(self._clocks.wall(), 3)
            passed = ended(test, RepairState.SUCCEEDED, text, at=at, boot_id=watched.boot_id)
            await self._change(name, watched, test, passed)

    def _next(
        self,
        node: Node,
        node_state: NodeState | None,
        test: NodeTest | None,
        rules: NewNodeRules,
        *,
        chosen: bool,
    ) -> NextTest:
        asked = read_request(node.annotations)
        unbound = asked is not None and asked.quarantine in ("", NO_QUARANTINE)
        by_hand = asked if asked is not None and asked.what == TEST and unbound else None
        facts = NodeTestFacts(
            node_uid=node.uid,
            boot_id=node.boot_id or (boot_of(node_state) if node_state is not None else ""),
            tainted=is_tainted(node, rules.taint),
            against=self._against(node, node_state),
            ends=self._ends_test(node, node_state),
            request=by_hand.ident if by_hand is not None else "",
            request_profile=by_hand.profile if by_hand is not None else "",
        )
        pause, now = self._settings.rules.test_pause, self._clocks.earliest()
        if chosen or (test is not None and test.is_busy and test.reason == IDLE):
            idle = self._settings.rules.idle_nodes
            return next_idle_test(test, facts, idle, pause=pause, now=now)
        return next_test(test, facts, rules, pause=pause, now=now)

    async def _do(
        self, name: str, watched: _Watched, node: Node, step: NextTest, rules: NewNodeRules
    ) -> None:
        test = watched.test
        if test is not None and test.is_busy and step.do is not NodeTestStep.SEND:
            await self._record_writer.restore_test(self._running_of(name, watched, test))
        match step.do:
            case NodeTestStep.ORDER if step.test is not None and step.test.reason == IDLE:
                await self._begin_idle(name, watched, node, step, rules)
            case NodeTestStep.ORDER if self._settings.rules.mode is RepairMode.OBSERVE:
                watched.held = "repair.mode is observe: no test begins"
                self._observe(name, node, rules)
            case NodeTestStep.ORDER:
                await self._begin(name, watched, node, step, rules)
            case NodeTestStep.SEND if test is not None:
                await self._send(name, watched, test, rules)
            case NodeTestStep.PROVE if test is not None:
                await self._prove(name, watched, test, rules)
            case NodeTestStep.STOP if test is not None:
                await self._stop(name, watched, test, step.because, rules)
            case NodeTestStep.END if test is not None:
                await self._give_up(name, watched, test, rules)
            case _:
                pass

    def _running_of(self, name: str, watched: _Watched, test: NodeTest) -> RunningRepair:
        at = self._clocks.trusted_wall()
        return running_of(name, test, at=at, domains=watched.domains)

    def _concurrent(self, test: NodeTest, rules: NewNodeRules) -> int:
        """How many tests of its kind may run at once."""
        idle = self._settings.rules.idle_nodes
        return idle.concurrent if test.reason == IDLE and idle is not None else rules.concurrent

    async def _forget_leftover(self, name: str, watched: _Watched) -> None:
        """Take out a reservation whose test has ended, or was never begun."""
        known, test = self._record_writer.record.node_tests.get(name), watched.test
        busy = test is not None and test.is_busy
        if known is not None and not (busy and test and test.operation == known.operation):
            await self._record_writer.end_test(name, known.operation)

    # -- what speaks against it -------------------------------------------------------------

    def _against_memory(self, name: str, node_state: NodeState | None, rules: NewNodeRules) -> str:
        """Why no test begins now, as far as no read of the Node is needed to know it."""
        why = self._against_state(name, node_state)
        if why:
            return why
        now = self._clocks.trusted_wall()
        others = [
            one
            for one in self._record_writer.record.node_tests.values()
            if one.node != name and one.repair != IDLE_TEST and now < one.until
        ]
        if len(others) >= rules.concurrent:
            return (
                f"held by repair.new_nodes.concurrent = {rules.concurrent}: {len(others)} new "
                "nodes are being tested"
            )
        return ""

    def _against_state(self, name: str, node_state: NodeState | None) -> str:
        """What is known of the node against a test, and against the removal of its taint."""
        if node_state is None or not node_state.agent.is_fresh:
            return "its agent has not reported"
        if node_state.node_summary.quarantine is not None or node_state.cluster.marked:
            return "it is in quarantine"
        if self._pools.mode_of(name) is Action.OBSERVE:
            return f"nothing is done in {self._pools.describe_mode(name)}"
        for incident in node_state.decision.incidents.values():
            others = any(not is_own_evidence(item.code) for item in incident.evidence)
            if incident.action != Action.OBSERVE.value and others:
                return f"evidence stands against it: {incident.summary}"
        return ""

    def _against_removal(self, node: Node, node_state: NodeState | None) -> str:
        """Why the taint may not be removed, and no test begin: by memory, and by the Node."""
        if is_marked(node):
            return "it is in quarantine"
        why = read_operator_requests(node.annotations).why_capped(self._clocks.earliest())
        return why or self._against_state(node.name, node_state)

    def _against(self, node: Node, node_state: NodeState | None) -> str:
        """Why no test may begin on the node now; empty: one may."""
        why = self._against_removal(node, node_state) or not_ready(node)
        if why:
            return why
        party = other_party(node) or maintained_by(node)
        if party:
            return f"another party is at work on the node: {party}"
        told = boot_of(node_state) if node_state is not None else ""
        if node.boot_id and told and node.boot_id != told:
            return "the node's kubelet and its agent do not name the same boot"
        return ""

    def _ends_test(self, node: Node, node_state: NodeState | None) -> str:
        """Why a test under way has to end; evidence that comes meanwhile is no reason."""
        known = node_state is not None and node_state.node_summary.quarantine is not None
        if is_marked(node) or known:
            return "the node is in quarantine"
        return read_operator_requests(node.annotations).why_capped(self._clocks.earliest())

    # -- a test begins ----------------------------------------------------------------------

    def _observe(self, name: str, node: Node, rules: NewNodeRules) -> None:
        if node.uid in self._observed:
            return
        self._observed.add(node.uid)
        text = (
            f"{TEST} {rules.profile} of the new node would be ordered, and its taint {rules.taint} "
            "be removed when it passes (repair.mode is observe)"
        )
        self._emit(name, EventKind.REPAIR_SUPPRESSED, text, {"repair": TEST, "reason": NEW_NODE})

    async def _begin_idle(
        self, name: str, watched: _Watched, node: Node, step: NextTest, rules: NewNodeRules
    ) -> None:
        """The same as for a new node, on one that has no work at this moment. Work that comes
        later preempts the test.
        """
        why = in_use(await self._cluster.pods_on(name, background=True))
        if why or step.test is None:
            watched.held = why
        elif self._settings.rules.mode is not RepairMode.OBSERVE:
            await self._begin(name, watched, node, step, rules)
        elif not self._idle_told:
            self._idle_told = True
            text = (
                f"{TEST} {step.test.profile} of the idle node would be ordered, and of other idle "
                "nodes too, of which nothing more is told (repair.mode is observe)"
            )
            self._emit(name, EventKind.REPAIR_SUPPRESSED, text, {"repair": TEST, "reason": IDLE})

    async def _begin(
        self, name: str, watched: _Watched, node: Node, step: NextTest, rules: NewNodeRules
    ) -> None:
        """Reserve the test, make it durable, and send the order."""
        entry, test = self._settings.repairers.get(TEST), step.test
        if entry is None or test is None:
            watched.held = "no repairer of kind test is configured"
            return
        now = round(self._clocks.latest(), 3)
        watched.held = "" if test.reason else await self._pods_in_the_way(node, rules)
        if watched.held:
            return
        test = replace(test, began_at=now, deadline_at=now + entry.timeout)
        wanted = self._running_of(name, watched, test)
        held = await self._record_writer.reserve_test(wanted, self._concurrent(test, rules))
        if held is not None:
            watched.held = f"held by {held.limit} = {held.value}: {held.reason}"
            return
        change: dict[str, str | None] = {NODE_TEST: write_test(test)}
        change |= followed_change(node.annotations, (test.request,))
        begun_at = self._clocks.now()
        await self._cluster.patch_node(
            node, NodeChange(annotations=change), guard=self._guard(node)
        )
        watched.test = test
        text = f"test {test.profile} of the {_kind(test)} is ordered: {step.because}"
        self._emit(name, EventKind.REPAIR_ORDERED, text, as_details(test))
        if self._clocks.now() - begun_at <= _SEND_WITHIN:  # else the process was paused in between
            await self._send(name, watched, test, rules, first=True)

    async def _pods_in_the_way(self, node: Node, rules: NewNodeRules) -> str:
        """The pods that were there before the taint, in words: the node is no new one then."""
        own = [taint for taint in node.taints if taint.key == rules.taint]
        found = [
            pod.key
            for pod in await self._cluster.pods_on(node.name, background=True)
            if pod.phase not in FINISHED
            and not stays_by_nature(pod)
            and not all(pod.tolerates(taint) for taint in own)
        ]
        if not found:
            return ""
        more = f" and {len(found) - _MOST_NAMED} others" if len(found) > _MOST_NAMED else ""
        named = ", ".join(sorted(found)[:_MOST_NAMED])
        return f"pods that do not tolerate {rules.taint} are on the node: {named}{more}; drain it"

    def _guard(self, node: Node) -> Guard:
        """The guard of the write by which a test begins, after its wait in the queue."""

        async def check() -> None:
            await self._record_writer.switch.check()
            self._check_place(node)

        return check

    def _removal_guard(self, node: Node) -> Guard:
        """The same for the removal of the taint, which no stop holds: it is a release."""

        async def check() -> None:
            self._check_place(node)

        return check

    def _check_place(self, node: Node) -> None:
        """Raise GuardRefused where the node is not ours to act for, or something stands against it
        by now.
        """
        if not self._may_act(node.name):
            raise GuardRefused(_NO_PLACE)
        why = self._against_removal(node, self._registry.known(node.name))
        if why:
            raise GuardRefused(why)

    async def _send(
        self,
        name: str,
        watched: _Watched,
        test: NodeTest,
        rules: NewNodeRules,
        *,
        first: bool = False,
    ) -> None:
        """Send the order. Only one that its repairer carries out once is sent again."""
        entry = self._settings.repairers.get(TEST)
        if entry is None or not (first or entry.repairer.sends_twice):
            return
        if test.operation in self._ends:
            await self._end(name, watched, test, *self._ends[test.operation], rules)
            return
        if not self._record_writer.has_test(name, test.operation):
            wanted = self._running_of(name, watched, test)
            held = await self._record_writer.reserve_test(wanted, self._concurrent(test, rules))
            if held is not None:
                watched.held = f"held by {held.limit} = {held.value}: {held.reason}"
                return
        await self._record_writer.switch.check()
        if not self._may_act(name):
            raise GuardRefused(_NO_PLACE)
        watched.look_at = self._clocks.now() + LOOK_BUSY
        answer = await entry.repairer.order(self._order(name, watched.uid, test, rules))
        self._keep_details(test, answer)
        if answer.state in _ANSWERS:
            await self._end(name, watched, test, _ANSWERS[answer.state], answer.text, rules)
        elif answer.state is AnswerState.TAKEN:
            taken = replace(test, state=RepairState.ORDERED, message=answer.text[:500])
            await self._change(name, watched, test, taken)
        elif answer.state is AnswerState.NOT_SENT and not entry.repairer.sends_twice:
            state = RepairState.INCONCLUSIVE
            await self._end(name, watched, test, state, answer.text, rules)
        else:
            watched.held = answer.text

    def _order(self, name: str, uid: str, test: NodeTest, rules: NewNodeRules) -> RepairOrder:
        idle = self._settings.rules.idle_nodes if test.reason == IDLE else None
        return RepairOrder(
            operation=test.operation,
            repair=TEST,
            node=name,
            node_uid=uid,
            boot_id=test.boot_id,
            quarantine="",
            reason="an idle node" if test.reason else f"a new node (taint {rules.taint})",
            lasts=max(1.0, test.deadline_at - self._clocks.latest()),
            profile=test.profile,
            tolerates="" if test.reason else rules.taint,
            idle_class=idle.priority_class if idle is not None else "",
        )

    # -- and ends ---------------------------------------------------------------------------

    async def _prove(
        self, name: str, watched: _Watched, test: NodeTest, rules: NewNodeRules
    ) -> bool:
        """End the test where its end is known. Returns whether it is."""
        watched.look_at = self._clocks.now() + LOOK_BUSY
        if test.operation in self._ends:
            await self._end(name, watched, test, *self._ends[test.operation], rules)
            return True
        entry = self._settings.repairers.get(TEST)
        if entry is None or test.state is not RepairState.ORDERED:
            return False
        answer = await entry.repairer.read_outcome(self._order(name, watched.uid, test, rules))
        self._keep_details(test, answer)
        if answer.state not in _ANSWERS:
            late = self._clocks.earliest() >= test.began_at + _BEGINS_WITHIN
            if test.reason == IDLE and answer.text and late:  # its pod waits behind work
                text = f"it has not begun within {_BEGINS_WITHIN:g} s: {answer.text}"
                await entry.repairer.cancel(self._order(name, watched.uid, test, rules))
                await self._end(name, watched, test, RepairState.INCONCLUSIVE, text, rules)
                return True
            return False
        await self._end(name, watched, test, _ANSWERS[answer.state], answer.text, rules)
        return True

    async def _stop(
        self, name: str, watched: _Watched, test: NodeTest, why: str, rules: NewNodeRules
    ) -> None:
        """The test has lost its purpose: it says nothing about the node any more."""
        if test.operation not in self._ends:
            entry = self._settings.repairers.get(TEST)
            if entry is not None:
                await entry.repairer.cancel(self._order(name, watched.uid, test, rules))
        same = test.is_of_boot(watched.boot_id)
        state = RepairState.CANCELLED if same else RepairState.INCONCLUSIVE
        await self._end(name, watched, test, state, why, rules)

    async def _give_up(
        self, name: str, watched: _Watched, test: NodeTest, rules: NewNodeRules
    ) -> None:
        """Its time is over. One last look: a verdict that has come counts."""
        if await self._prove(name, watched, test, rules):
            return
        entry = self._settings.repairers.get(TEST)
        if entry is not None:
            await entry.repairer.cancel(self._order(name, watched.uid, test, rules))
            if await self._prove(name, watched, test, rules):
                return
        text = watched.held or "it gave no verdict in its time"
        await self._end(name, watched, test, RepairState.INCONCLUSIVE, text, rules)

    async def _end(
        self,
        name: str,
        watched: _Watched,
        test: NodeTest,
        state: RepairState,
        text: str,
        rules: NewNodeRules,
    ) -> None:
        """Write the test's end, and remove what the order left; then its reservation goes.

        A verdict is written first: its program has ended, and after the removal no process would
        know of it. A test without one may still run, so that it is removed first.
        """
        self._ends[test.operation] = state, text
        entry = self._settings.repairers.get(TEST)
        in_time = self._clocks.earliest() < test.deadline_at + _ENDS_WITHIN
        verdict = state in (RepairState.SUCCEEDED, RepairState.FAILED)
        order = self._order(name, watched.uid, test, rules)
        if entry is not None and entry.clean_up is not None and not verdict:
            left = await entry.clean_up(order)
            if left.state is AnswerState.NOT_SENT and in_time:
                watched.held, watched.look_at = left.text, self._clocks.now() + LOOK_BUSY
                return
        node_state = self._registry.known(name)
        passed = state is RepairState.SUCCEEDED
        if passed and in_time and not (node_state is not None and node_state.agent.is_fresh):
            # It has passed: what else is known of it has to be heard before the taint goes.
            watched.held, watched.look_at = "its agent is awaited", self._clocks.now() + LOOK_BUSY
            return
        written = await self._write_end(name, watched, test, state, text, rules)
        del self._ends[test.operation]
        details = self._details.pop(test.operation, {})
        if entry is not None and entry.clean_up is not None and verdict:
            await entry.clean_up(order)  # what stays is deleted by the cluster: job_manifest.py
        if entry is not None and entry.note_end is not None:
            entry.note_end(name, test.operation)
        if written is not None:
            self._tell_end(name, watched, written, details, rules)
        await self._record_writer.end_test(name, test.operation)

    async def _write_end(
        self,
        name: str,
        watched: _Watched,
        test: NodeTest,
        state: RepairState,
        text: str,
        rules: NewNodeRules,
    ) -> NodeTest | None:
        """The test with its end, as written; None where the Node is another one by now.

        The taint goes in the same patch, against the version of the read that it was decided on:
        another party's taint that came meanwhile makes it fail, and is kept by the next one.
        """
        for attempt in range(1, _TRIES + 1):
            node = await self._cluster.read_node(name)
            if node is None or node.uid != watched.uid:
                return None
            _require_same(node, test)
            end, why = state, text
            if not test.is_of_boot(node.boot_id):
                end = RepairState.INCONCLUSIVE
                why = f"the node is in another boot than the test was for; {text}".rstrip("; ")
            against = self._against_removal(node, self._registry.known(name))
            if end is RepairState.SUCCEEDED and against:
                end, why = RepairState.CANCELLED, f"it passed, and does not count: {against}"
            opens = rules.remove_taint and not test.reason
            removes = end is RepairState.SUCCEEDED and opens
            written = ended(test, end, why, at=round(self._clocks.wall(), 3), boot_id=node.boot_id)
            change = NodeChange(
                taints=without_taint(node, rules.taint) if removes else None,
                annotations={NODE_TEST: write_test(written)},
            )
            guard = self._removal_guard(node) if removes else None
            try:
                node = await self._cluster.patch_node(node, change, guard=guard)
            except Conflict:  # the kubelet writes its node too
                if attempt == _TRIES:
                    raise
            else:
                self._take_read(watched, node, rules)
                return written
        raise AssertionError("unreachable")

    def _tell_end(
        self,
        name: str,
        watched: _Watched,
        test: NodeTest,
        details: Mapping[str, str],
        rules: NewNodeRules,
    ) -> None:
        passed = test.state is RepairState.SUCCEEDED
        reason = "by-hand" if test.request else test.reason or NEW_NODE
        self._fleet.stages.note_test(reason, test.state.value)
        told = f": {test.message}" if test.message else ""
        words = _IN_WORDS.get(test.state, "gave no verdict about it")
        opened = passed and rules.remove_taint and not test.reason
        removed = f"; the taint {rules.taint} is removed" if opened else ""
        self._emit(
            name,
            EventKind.REPAIR_ENDED,
            f"test {test.profile} of the {_kind(test)} {words}{told}{removed}",
            {**details, **as_details(test), "outcome": test.state.value},
        )
        if watched.tainted and not test.reason and needs_a_person(test, watched.boot_id, rules):
            why = why_over(test, watched.boot_id, rules)
            text = (
                f"the new node keeps its taint {rules.taint}: {why}. Repair it and reboot it, or "
                f"test it again: sickbay test {name}. To take it as it is: "
                f"kubectl taint nodes {name} {rules.taint}-"
            )
            self._emit(name, EventKind.NEW_NODE_HELD, text, as_details(test))

    def _keep_details(self, test: NodeTest, answer: RepairAnswer) -> None:
        if answer.details:
            self._details[test.operation] = answer.details

    async def _change(
        self, name: str, watched: _Watched, before: NodeTest, after: NodeTest
    ) -> None:
        """Write the test, unless another process has changed it."""
        for attempt in range(1, _TRIES + 1):
            node = await self._cluster.read_node(name)
            if node is None or node.uid != watched.uid:
                raise Conflict("the Node is another one now")
            _require_same(node, before)
            try:
                await self._cluster.patch_node(
                    node, NodeChange(annotations={NODE_TEST: write_test(after)})
                )
            except Conflict:
                if attempt == _TRIES:
                    raise
            else:
                watched.test = after
                return

    # -- what others are told ----------------------------------------------------------------

    async def _tell(self, name: str, watched: _Watched, rules: NewNodeRules) -> None:
        """Bring the Node's condition up to date."""
        told = condition_of(watched.test, tainted=watched.tainted, rules=rules)
        if told is None or told == watched.said or watched.problem:
            return
        if self._settings.rules.mode is not RepairMode.REPAIR:
            return
        await self._cluster.write_test_condition(name, node_uid=watched.uid, condition=told)
        watched.said = told

    def _emit(self, name: str, kind: EventKind, text: str, details: Mapping[str, str]) -> None:
        self._event_sink.record_event(
            Transition(self._clocks.wall(), kind, name, text, details=details)
        )


def _kind(test: NodeTest) -> str:
    return "idle node" if test.reason == IDLE else "new node"


def _has_own_evidence(node_state: NodeState) -> bool:
    """Whether a failed test stands against the node, perhaps from before this process."""
    quarantine = node_state.node_summary.quarantine
    items = quarantine.spec.evidence if quarantine is not None else ()
    return any(
        is_own_evidence(item.code)
        for incident in node_state.decision.incidents.values()
        for item in incident.in_force
    ) or any(is_own_evidence(item.code) and not item.cleared for item in items)


def _require_same(node: Node, test: NodeTest) -> None:
    """Raise Conflict unless the Node has this test in this state."""
    if _parse(node.annotations, node.uid)[0] != test:
        raise Conflict("the test was changed by another process")


def _parse(annotations: Mapping[str, str], uid: str) -> tuple[NodeTest | None, str]:
    """The test, and why it can't be read."""
    try:
        return read_test(annotations, uid), ""
    except NodeTestUnreadable as error:
        return None, str(error)
