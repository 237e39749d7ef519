"""Ends the tests of nodes that are under way where no such test may go on, as repairs are off.

An order in a Node's annotation outlives the process that wrote it, and so does its Job. With
``repair.mode: off`` no process begins, sends or proves a test, so each that is found under way is
ended without a verdict: its order is taken back, what it left is removed, and the Node says so.
"""

import logging
from collections.abc import Callable, Mapping

from aggregator.clock import Clocks
from aggregator.cluster.node_names import NODE_TEST
from aggregator.cluster.port import ClusterError, Conflict, NodeMeta, NodesAndPods
from aggregator.policy.repairs import TEST
from aggregator.quarantine.admission.record_writer import AdmissionRecordWriter
from aggregator.quarantine.decide.node_tests import (
    NextTest,
    NodeTest,
    NodeTestStep,
    is_ended_by,
)
from aggregator.quarantine.repair.node_test_display import NodeTestDisplay
from aggregator.quarantine.repair.node_test_state import (
    AT_ONCE,
    POLL_BUSY,
    POLL_EVERY,
    WatchedNode,
    cancel_steps,
    parse_test,
    start_steps,
)
from aggregator.quarantine.repair.node_test_steps import NodeTestSteps
from aggregator.quarantine.repair.protocol import RepairSettings
from aggregator.quarantine.state.fleet import NodeTestView
from aggregator.quarantine.state.registry import NodeRegistry
from aggregator.runtime.backoff import Backoff

log = logging.getLogger("sickbay.quarantine")

#: The pauses after tries in vain. Without jitter: each node's begin at the end of its own try.
_BACKOFF = Backoff(first=POLL_EVERY, most=300.0)
#: Why a test is ended, where ``repair.mode`` is off.
REPAIRS_OFF = "repairs are off (repair.mode: off)"
#: The same where no repairer and no section of the configuration is about tests of nodes any more.
NO_TESTS = "the configuration has no tests of nodes any more"


class UnwantedTests:
    """Reads a node only where the list of nodes has a test of it under way, or the admission record
    a reservation; and once in each process where the test of a new node was ended like this, since
    no list tells whether its condition was written.
    """

    def __init__(
        self,
        *,
        cluster: NodesAndPods,
        record_writer: AdmissionRecordWriter,
        clocks: Clocks,
        settings: RepairSettings,
        node_registry: NodeRegistry,
        may_act: Callable[[], bool],
        steps: NodeTestSteps,
        display: NodeTestDisplay,
    ) -> None:
        """``may_act`` tells whether we are the controller at this moment."""
        self._cluster = cluster
        self._record_writer = record_writer
        self._clocks = clocks
        self._settings = settings
        self._registry = node_registry
        self._may_act = may_act
        self._steps = steps
        self._display = display
        self._why = REPAIRS_OFF if settings.off else NO_TESTS
        self._listed: Mapping[str, NodeMeta] = {}
        self._watched: dict[str, WatchedNode] = {}
        self._done: dict[str, NodeTestView] = {}

    def cancel(self) -> None:
        """The process ends."""
        cancel_steps(self._watched)

    async def go_round(self) -> None:
        """Begin what is due. The view of the cluster is whole."""
        if self._registry.metas is not self._listed:
            self._take_listed(self._registry.metas)
        now = self._clocks.now()
        start_steps(self._watched, now, AT_ONCE, self._may_start, self._step, "unwanted-test")
        self._display.show_ends(self._watched, self._done)

    def _take_listed(self, metas: Mapping[str, NodeMeta]) -> None:
        """Watch the nodes whose test has to be ended, or whose condition to be told of its end; and
        those with a reservation, which may be left over.
        """
        self._listed = metas
        for name in self._registry.annotated(NODE_TEST):
            meta = metas[name]
            test, _ = parse_test(meta.annotations, meta.uid)
            # A process may die between the end of a new node's test and its condition.
            untold = is_ended_by(test, self._why) and name not in self._done
            if test is not None and (test.is_busy or (untold and not test.reason)):
                self._watched.setdefault(name, WatchedNode(meta.uid, tainted=False, test=test))
        for name in self._record_writer.record.node_tests:
            self._watched.setdefault(name, WatchedNode("", tainted=False))
        self._done = {name: one for name, one in self._done.items() if name in metas}

    def _may_start(self, _: str, __: WatchedNode) -> bool:
        return self._may_act()

    async def _step(self, name: str, watched: WatchedNode) -> None:
        watched.poll_at = self._clocks.now() + POLL_EVERY
        try:
            await self._advance(name, watched)
        except Conflict:  # the kubelet writes its node too: the next look decides anew
            watched.poll_at = self._clocks.now() + POLL_BUSY
        except ClusterError as error:
            self._try_later(watched, error.retry_after or 0.0)
            self._note_failure(name, watched, str(error))
        else:
            self._note_failure(name, watched, watched.problem)
        finally:
            watched.step = None

    def _note_failure(self, name: str, watched: WatchedNode, error: str) -> None:
        """As in `WatchedNode.note_failure`, and in the log."""
        if watched.note_failure(error):
            log.warning(
                "the test of a node can't be ended now, and is tried again",
                extra={"event": "node.test_not_ended", "node": name, "error": error},
            )

    async def _advance(self, name: str, watched: WatchedNode) -> None:
        node = await self._cluster.read_node(name, background=True)
        if node is None:
            watched.test = None
            await self._steps.forget_leftover(name, watched)
            del self._watched[name]
            return
        watched.take_read(node, "", self._settings.domain_labels)
        if watched.problem:  # its test may be under way, and keeps its reservation
            self._try_later(watched)
            return
        test = watched.test
        if test is not None and test.is_busy:
            by_agent = self._ends_by_agent(watched, test)
            watched.held = self._why_awaited(name) if by_agent else ""
            if watched.held:
                watched.tries = 0  # a new stream of the agent is asked at once
                return
            if by_agent:
                if not await self._steps.request_end(name, watched, test, self._why):
                    watched.held = f"{self._why}; its agent has not confirmed the end of the test"
                    self._try_later(watched)
                    return
                watched.tries = 0
            stop = NextTest(NodeTestStep.STOP, self._why)
            await self._steps.take_step(name, watched, node, stop)
            test = watched.test
            if test is not None and test.is_busy:  # its pod has not ended
                watched.tries = 0
                return
        await self._steps.forget_leftover(name, watched)
        await self._steps.requests.settle(test)
        if is_ended_by(test, self._why):
            await self._display.write_end(name, watched)
        del self._watched[name]
        if test is not None:
            self._done[name] = NodeTestView(test, tainted=False)

    def _try_later(self, watched: WatchedNode, at_least: float = 0.0) -> None:
        """Look at the node again after a pause that grows with each try in vain."""
        watched.tries += 1
        pause = max(_BACKOFF.longest(watched.tries), at_least)
        watched.poll_at = self._clocks.now() + pause

    def _ends_by_agent(self, watched: WatchedNode, test: NodeTest) -> bool:
        """Whether its agent alone can end the test: not beyond its deadline or a boot of the node,
        which it does not survive.
        """
        entry = self._settings.repairers.get(TEST)
        if entry is None or not entry.by_agent or not test.is_of_boot(watched.boot_id):
            return False
        now = self._record_writer.times.time_of(test.operation, test.began_at)
        return now < test.deadline_at

    def _why_awaited(self, name: str) -> str:
        """Only a connected agent can be asked to end its test."""
        node_state = self._registry.known(name)
        fresh = node_state is not None and node_state.agent.is_fresh
        return "" if fresh else f"{self._why}; its agent is awaited, which is to end the test"
