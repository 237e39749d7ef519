"""A replica's reports and questions to the leader in one stream.

Only questions are queued: a node's report is built at the moment when the stream can take it, from
its state then. So memory is bounded by the number of nodes, however slow the stream.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from aggregator.clock import Clocks
from aggregator.policy.check_traits import NETWORK, SHARED_TARGETS
from aggregator.quarantine.correlation.common_cause import CommonCauseTracker
from aggregator.quarantine.correlation.network import NetworkTracker
from aggregator.quarantine.decide.admission import Proposal
from aggregator.quarantine.decide.replica_messages import (
    AdmissionDecision,
    AdmissionRequest,
    Answer,
    KeepAlive,
    NodeReport,
    ReportBatch,
    Said,
    Seen,
    rebase_batch_ages,
)
from aggregator.quarantine.decide.symptoms import fewest
from aggregator.quarantine.state.node import NodeState
from aggregator.quarantine.state.registry import NodeRegistry
from aggregator.quarantine.state.remote import DirtyNodes
from aggregator.replicas.membership.view import Member

#: Changes are gathered for so long (seconds); a question takes them along at once.
GATHER = 0.1
#: Each side sends a message so often (seconds), and is given up after `LOST` without one.
BEAT = 1.0
LOST = 5.0
#: A question is answered within so many seconds, or asked again later.
ANSWER_WITHIN = 5.0
#: One message: so many nodes at most, and about so many bytes.
NODES_A_MESSAGE, BYTES_A_MESSAGE = 100, 256 * 1024
#: Of one node's components that concern the network or other nodes, so many are reported. An agent
#: is asked to look at 8 peers.
MOST_SEEN, LONGEST = 256, 300


class LeaderSessionClosed(Exception):
    """The stream is of no use any more; the text says why."""


@dataclass(slots=True)
class _Question:
    """``after``: so many nodes must have been reported before it is asked."""

    ask: AdmissionRequest
    after: int


class Reporter:
    """Builds the reports on our nodes for the leader."""

    def __init__(
        self,
        *,
        node_registry: NodeRegistry,
        cause_tracker: CommonCauseTracker,
        network_tracker: NetworkTracker,
        owns: Callable[[str], bool],
        dirty_nodes: DirtyNodes,
        clocks: Clocks,
    ) -> None:
        self.node_registry = node_registry
        self.owns = owns
        self.dirty_nodes = dirty_nodes
        self.clocks = clocks
        self._cause_tracker = cause_tracker
        self._network_tracker = network_tracker

    def nodes(self) -> Iterator[str]:
        """The nodes with a report to send."""
        for node_state in self.node_registry.node_states():
            if self._speaks_of(node_state):
                yield node_state.node

    def node_report(self, node: str) -> NodeReport | None:
        """The report, or None if the node is not ours or never reported; times are monotonic."""
        node_state = self.node_registry.known(node)
        if node_state is None or not self._speaks_of(node_state):
            return None
        signs, traits, checks = self._cause_tracker.node_report(node)
        address, speaking, edges, assigned = self._network_tracker.node_report(node)
        return NodeReport(
            node,
            reported=self._reported(node_state),
            silent=is_silent(node_state),
            speaking=speaking,
            address=address,
            traits=traits,
            checks=checks,
            signs=fewest(signs),
            sees=_short((*edges, *_other_targets(node_state))),
            assigned=assigned,
        )

    def _speaks_of(self, node_state: NodeState) -> bool:
        return node_state.agent.health is not None and self.owns(node_state.node)

    @staticmethod
    def _reported(node_state: NodeState) -> bool:
        return node_state.agent.health is not None and node_state.agent.health.has_snapshot


class LeaderSession:
    """One stream to the leader. A transport calls `next` and `receive` until either raises, and
    `close` in the end. ``heard`` is given all answers except decisions.
    """

    def __init__(
        self, leader: Member, reporter: Reporter, heard: Callable[["LeaderSession", Answer], None]
    ) -> None:
        self.leader = leader
        self._reporter = reporter
        self._heard = heard
        self._now = reporter.clocks.now
        self._said: dict[str, NodeReport] = {}
        self._questions: deque[_Question] = deque()
        self._pending: dict[int, asyncio.Future[AdmissionDecision]] = {}
        self._number = 0
        self._spoken = 0  # nodes reported in this stream
        self._stirred = asyncio.Event()
        self._flush_at = self._now()
        self._beat_at = self._now()
        self._heard_at = self._now()
        self._complete = False
        self._lost = ""
        reporter.dirty_nodes.listen(self._stir)
        for node in reporter.nodes():
            reporter.dirty_nodes.mark(node)
        self._all = len(reporter.dirty_nodes)

    @property
    def lost(self) -> str:
        """Why the stream is of no use any more; empty: it is."""
        return self._lost

    def _stir(self) -> None:
        self._flush_at = self._now() + GATHER
        self._stirred.set()

    # -- what the transport calls ----------------------------------------------------------

    async def next(self) -> Said:
        """The next message to send; waits for it. Raises `LeaderSessionClosed`."""
        while True:
            now = self._now()
            if now - self._heard_at > LOST:
                self.close(f"{self.leader.name} has sent no message for {LOST:g} s")
            if self._lost:
                raise LeaderSessionClosed(self._lost)
            said = self._due(now)
            if said is not None:
                self._beat_at = now + BEAT
                return said
            until = min(
                self._beat_at, self._flush_at if self._reporter.dirty_nodes else self._beat_at
            )
            self._stirred.clear()
            try:
                async with asyncio.timeout(max(0.0, until - now)):
                    await self._stirred.wait()
            except TimeoutError:
                pass

    def receive(self, answer: Answer) -> None:
        """Take a message of the leader."""
        self._heard_at = self._now()
        if isinstance(answer, AdmissionDecision):
            waiting = self._pending.pop(answer.number, None)
            if waiting is not None and not waiting.done():
                waiting.set_result(answer)
        else:
            self._heard(self, answer)

    def close(self, reason: str) -> None:
        """The stream has ended. Callers that wait for an answer get an error."""
        if self._lost:
            return
        self._lost = reason
        self._reporter.dirty_nodes.listen(None)
        self._stirred.set()
        for waiting in self._pending.values():
            if not waiting.done():
                waiting.set_exception(LeaderSessionClosed(reason))
        self._pending.clear()

    # -- asking ------------------------------------------------------------------------------

    async def ask(self, proposal: Proposal) -> AdmissionDecision:
        """The leader's decision. Raises `LeaderSessionClosed`, also when none comes in time."""
        if self._lost:
            raise LeaderSessionClosed(self._lost)
        self._number += 1
        number = self._number
        waiting: asyncio.Future[AdmissionDecision] = asyncio.get_running_loop().create_future()
        self._pending[number] = waiting
        after = self._spoken + len(self._reporter.dirty_nodes)
        self._questions.append(_Question(AdmissionRequest(number, proposal), after))
        self._stirred.set()
        try:
            async with asyncio.timeout(ANSWER_WITHIN):
                return await waiting
        except TimeoutError:
            text = f"{self.leader.name} has not answered within {ANSWER_WITHIN:g} s"
            raise LeaderSessionClosed(text) from None
        finally:
            self._pending.pop(number, None)

    # -- sending ----------------------------------------------------------------------------

    def _due(self, now: float) -> Said | None:
        questions, dirty_nodes = self._questions, self._reporter.dirty_nodes
        while questions and questions[0].ask.number not in self._pending:
            questions.popleft()  # no caller waits for it any more
        if not self._complete:
            return self._words(now)
        if questions and self._spoken >= questions[0].after:
            return questions.popleft().ask
        if dirty_nodes and (questions or now >= self._flush_at):
            words = self._words(now)
            if words.reports or words.gone:
                return words
            if questions:
                return self._due(now)
        return KeepAlive() if now >= self._beat_at else None

    def _words(self, now: float) -> ReportBatch:
        """The changed reports, as many as one message takes."""
        dirty_nodes, size = self._reporter.dirty_nodes, 0
        reports: list[NodeReport] = []
        gone: list[str] = []
        while dirty_nodes and size < BYTES_A_MESSAGE and len(reports) + len(gone) < NODES_A_MESSAGE:
            node = dirty_nodes.take_dirty()
            self._spoken += 1
            report, before = self._reporter.node_report(node), self._said.get(node)
            if report is None:
                if self._said.pop(node, None) is not None:
                    gone.append(node)
            elif report != before:
                self._said[node] = report
                reports.append(report)
                size += _size(report)
        self._complete = self._complete or self._spoken >= self._all
        return rebase_batch_ages(ReportBatch(tuple(reports), tuple(gone), self._complete), now)

    def note_silence(self) -> None:
        """Report agents that have been gone for too long, or are back: time alone changes that."""
        for node, said in self._said.items():
            node_state = self._reporter.node_registry.known(node)
            if node_state is not None and is_silent(node_state) != said.silent:
                self._reporter.dirty_nodes.mark(node)


def is_silent(node_state: NodeState) -> bool:
    return node_state.agent.silent and not node_state.agent.is_fresh


def _other_targets(node_state: NodeState) -> Iterator[Seen]:
    """The results of shared targets that are no evidence of the network."""
    health = node_state.agent.health
    if health is not None:
        for check in sorted(SHARED_TARGETS - NETWORK):
            for one in health.components.of(check):
                yield one.check, one.component, one.status


def _short(sees: tuple[Seen, ...]) -> tuple[Seen, ...]:
    if len(sees) <= MOST_SEEN and all(len(one[1]) <= LONGEST for one in sees):
        return sees
    return tuple(one for one in sees if len(one[1]) <= LONGEST)[:MOST_SEEN]


def _size(report: NodeReport) -> int:
    """About how many bytes it takes."""
    seen = sum(len(one[0]) + len(one[1]) + 8 for one in report.sees)
    signs = sum(len(one.what) + len(one.component) + 24 for one in report.signs)
    checks = sum(len(one) + 2 for one in report.checks)
    assigned = sum(len(one) + 2 for one in report.assigned)
    traits = sum(len(a) + len(b) + 6 for a, b in report.traits)
    return 100 + seen + signs + checks + assigned + traits
