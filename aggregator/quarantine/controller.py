"""The aggregator's middle: hears agents and the cluster's news, judges, sees to each node.

Its parts: `hearing` (the agents), `following` (the cluster's news), `judging`, `attending` (each
node's steps), `moving` (which nodes are ours). All of it can be lost: snapshots, Quarantine objects
and the record bring it back.
"""

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Awaitable

from aggregator.health.model import Component, Delta, Hello, Snapshot
from aggregator.policy.rules import Policy
from aggregator.quarantine.acts import Acts, Clocks
from aggregator.quarantine.attending import Attending
from aggregator.quarantine.case import Case
from aggregator.quarantine.census import Census
from aggregator.quarantine.cluster import Action, Cluster, ClusterError, Phase
from aggregator.quarantine.conferring import Conferring
from aggregator.quarantine.decide.admission import quorum
from aggregator.quarantine.decide.wishes import NONE, describe
from aggregator.quarantine.drain import Drain
from aggregator.quarantine.elsewhere import Elsewhere, Unsaid
from aggregator.quarantine.fleet import Fleet
from aggregator.quarantine.following import Following
from aggregator.quarantine.hearing import Hearing, Line
from aggregator.quarantine.hooking import Hooking
from aggregator.quarantine.judging import Judging
from aggregator.quarantine.lane import Lane, share
from aggregator.quarantine.ledger import Ledger, NoWitness, Witness
from aggregator.quarantine.looking import Looking
from aggregator.quarantine.moving import Moving
from aggregator.quarantine.registrar import Registrar
from aggregator.quarantine.releasing import Releasing
from aggregator.quarantine.settings import Settings, limits_for_people
from aggregator.quarantine.suspecting import Suspecting
from aggregator.quarantine.triangulating import Triangulating
from aggregator.shards.council import Alone, Shards
from aggregator.together import together

#: Held proposals, silence and the fleet's size are looked at again so often (seconds).
ROUNDS = 5.0
_QUORUM_LOOKS = 0.5
#: Why the cluster can't be seen before it has told anything.
NO_NEWS_YET = "not connected yet"
#: So many of those that a common cause holds in one round, in turn, and as many of the others.
HELD_A_ROUND = 500
#: The list of nodes is read anew so often (seconds).
REFRESH = 180.0

#: Nodes seen to in a round between two looks at whatever else is to be done.
_SLICE = 500

log = logging.getLogger("sickbay.quarantine")

_IN_SUSPENSE = (Phase.ADMITTED, Phase.CORDONED, Phase.DRAINING, Phase.RELEASING)


class Controller:
    """Its `attached`, `heard`, ... are ingest's `Intake`."""

    def __init__(
        self,
        *,
        cluster: Cluster,
        policy: Policy,
        settings: Settings,
        fleet: Fleet,
        ledger: Ledger,
        clocks: Clocks,
        rng: random.Random,
        witness: Witness | None = None,
        shards: Shards | None = None,
    ) -> None:
        """``shards`` tells whose node is whose; None: all are ours."""
        shards = shards or Alone()
        self._cluster = cluster
        self._settings = settings
        self._fleet = fleet
        self._clocks = clocks
        self._turns = {True: 0, False: 0}
        elsewhere, unsaid = Elsewhere(), Unsaid()
        self._census = census = Census(
            fleet, settings.limits.pool_label, elsewhere, lists_all=cluster.lists_all
        )
        self._suspecting = suspecting = Suspecting(
            limits=settings.common,
            admission=settings.limits,
            policy=policy,
            census=census,
            fleet=fleet,
            ledger=ledger,
            clocks=clocks,
            owns=shards.owns,
            elsewhere=elsewhere,
            unsaid=unsaid,
        )
        self._registrar = registrar = Registrar(
            cluster,
            limits=settings.limits,
            policy_hash=policy.hash,
            size=census.size,
            causes=suspecting.causes,
            wall=clocks.even,
            doubt=lambda: conferring.doubt(),  # noqa: PLW0108 - it is made below
        )
        self._triangulating = triangulating = Triangulating(
            census=census,
            fleet=fleet,
            ledger=ledger,
            clocks=clocks,
            labels=settings.common.domain_labels,
            judge=lambda case: judging.judge(case),  # noqa: PLW0108 - it is made below
            owns=shards.owns,
            elsewhere=elsewhere,
            unsaid=unsaid,
        )
        self.conferring = conferring = Conferring(
            shards=shards,
            census=census,
            elsewhere=elsewhere,
            unsaid=unsaid,
            suspecting=suspecting,
            triangulating=triangulating,
            registrar=registrar,
            fleet=fleet,
            ledger=ledger,
            clocks=clocks,
            again=lambda case: attending.kick(case),  # noqa: PLW0108 - it is made below
        )
        acts = Acts(
            cluster=cluster,
            registrar=registrar,
            admission=conferring,
            ledger=ledger,
            clocks=clocks,
            policy=policy,
            pool_of=census.pool_of,
            suspects=suspecting.suspects,
            drain_suspects=suspecting.drain_suspects,
            unsettled=suspecting.unsettled,
            basis=suspecting.basis,
            off_balancers=settings.off_balancers and settings.mode is Action.DRAIN,
            may_act=shards.may_act,
        )
        hooking = Hooking(acts=acts, clocks=clocks, rules=settings.hooks, rng=rng)
        drain = Drain(
            cluster=cluster,
            acts=acts,
            clocks=clocks,
            rules=settings.drain,
            hooking=hooking,
            off_balancers=settings.off_balancers,
            at_once=Lane(lambda: share(settings.evictions_at_once, shards.council)),
            deadline=settings.drain_deadline,
            rng=rng,
        )
        releasing = Releasing(
            cluster=cluster,
            registrar=registrar,
            acts=acts,
            clocks=clocks,
            policy=policy,
            after_release=hooking.after_release,
            differing=lambda: shards.council.differing,
        )
        self._attending = attending = Attending(
            cluster=cluster,
            acts=acts,
            releasing=releasing,
            drain=drain,
            registrar=registrar,
            settings=settings,
            fleet=fleet,
            clocks=clocks,
            rng=rng,
            shards=shards,
            judge=lambda case: judging.judge(case),  # noqa: PLW0108 - it is made below
            shut_out=lambda case: hearing.shut_out(case),  # noqa: PLW0108 - it is made below
        )
        judging = Judging(
            policy=policy,
            mode=settings.mode,
            acts=acts,
            ledger=ledger,
            clocks=clocks,
            suspecting=suspecting,
            see_to=attending.kick_if_busy,
            silent_action=settings.silent_action,
        )
        self._judging = judging
        self._looking = Looking(
            cluster=cluster,
            census=census,
            judging=judging,
            acts=acts,
            clocks=clocks,
            shards=shards,
        )
        self._hearing = hearing = Hearing(
            census=census,
            judging=judging,
            attending=attending,
            acts=acts,
            policy=policy,
            clocks=clocks,
            silent_after=settings.silent_after,
            triangulating=triangulating,
            witness=witness or NoWitness(),
            shards=shards,
        )
        self._following = Following(
            cluster=cluster,
            policy=policy,
            census=census,
            registrar=registrar,
            attending=attending,
            judging=judging,
            suspecting=suspecting,
            triangulating=triangulating,
            fleet=fleet,
            ledger=ledger,
            clocks=clocks,
            shards=shards,
            look_at_held=self._look_at_held,
        )
        self._moving = Moving(
            shards=shards,
            census=census,
            hearing=hearing,
            attending=attending,
            list_nodes=self._following.refresh_nodes,
            clocks=clocks,
        )
        fleet.mode = settings.mode.value
        fleet.limits = limits_for_people(settings)
        fleet.view_lost = NO_NEWS_YET

    @property
    def record_problem(self) -> str:
        """Why the admission record can't be used; empty when it can."""
        return self._registrar.problem

    async def is_current(self, node: str, node_uid: str) -> bool | None:
        """Whether the cluster's Node of this name has this UID; None: that can't be told now.

        Costs a request only where the list of nodes, which may be a little old, says otherwise.
        """
        if not self._attending.view:
            return None
        case = self._census.known(node)
        meta = case.patient.meta if case is not None else None
        if meta is not None and meta.uid == node_uid:
            return True
        try:
            found = await self._cluster.read_node(node)
        except ClusterError as error:
            log.warning("the node can't be read", extra={"node": node, "error": str(error)})
            return None
        return found is not None and found.uid == node_uid

    async def run(self) -> None:
        """Until cancelled: the cluster's news, and the rounds."""
        try:
            await together(
                news=self._following.follow(),
                rounds=self._go_round(),
                looking=self._looking.run(),
                moving=self._moving.run(),
                conferring=self.conferring.run(),
            )
        finally:
            self._triangulating.close()
            self.conferring.close()
            for case in self._census.cases():
                for task in (case.task, case.trail):
                    if task is not None:
                        task.cancel()
                if case.timer is not None:
                    case.timer.cancel()

    async def _go_round(self) -> None:
        refreshed = float("-inf")
        while True:
            now = self._clocks.now()
            if (
                self._attending.view
                and now - refreshed >= REFRESH
                and await self._following.refresh_nodes()
            ):
                refreshed = now
            wall = self._clocks.earliest()
            async for case in self._by_slices():
                self._hearing.note_silence(case, now)
            self._tell_fleet()
            self._following.tell_stop()
            async for case in self._by_slices():
                if case.wishes != NONE and case.patient.wishes != describe(case.wishes, wall):
                    self._judging.judge(case)  # an exemption has ended
                if _in_suspense(case) or case.release_held:
                    self._attend_again(case)
                self._attending.resume(case)
            self._look_at_held()
            await self._rest()

    async def _rest(self) -> None:
        """Until the next round, which comes sooner once enough agents have reported: what waited
        for that is due, and of what is new since then people would read beside a wait that is over.
        """
        if not self._fleet.waiting_for_quorum:
            await asyncio.sleep(ROUNDS)
            return
        for _ in range(int(ROUNDS / _QUORUM_LOOKS)):
            await asyncio.sleep(_QUORUM_LOOKS)
            self._tell_quorum()
            if not self._fleet.waiting_for_quorum:
                return

    async def _by_slices(self) -> AsyncIterator[Case]:
        """All cases, and a look at whatever else is to be done every millisecond or so."""
        for count, case in enumerate(self._census.cases(), 1):
            if count % _SLICE == 0:
                await asyncio.sleep(0)
            if self._census.known(case.node) is case:  # else it was forgotten in between
                yield case

    def _look_at_held(self) -> None:
        """Those that share a cause, and those that don't, in lines of their own.

        What holds one node for a moment (its version has just changed) must not stand in line
        behind all that a driver's roll-out holds.
        """
        lines: dict[bool, list[Case]] = {True: [], False: []}
        for case in self._census.cases():
            if case.patient.hold is not None:
                lines[bool(case.patient.hold.cause)].append(case)
        for shared, held in lines.items():
            for case in self._in_turn(held, shared=shared):
                self._attend_again(case)

    def _in_turn(self, held: list[Case], *, shared: bool) -> list[Case]:
        """Some of those that are held: the next of their line in each round.

        Each costs half a millisecond. In a storm of thousands agents must be heard all the same.
        """
        if len(held) <= HELD_A_ROUND:
            return held
        start = self._turns[shared] % len(held)
        self._turns[shared] = start + HELD_A_ROUND
        return (held + held)[start : start + HELD_A_ROUND]

    def _attend_again(self, case: Case) -> None:
        if case.patient.maintained:
            case.suspect = True  # whether they have ended: a read tells
        self._attending.kick(case)

    def _tell_fleet(self) -> None:
        self._fleet.record_entries = len(self._registrar.record.entries)
        self._tell_quorum()
        self.conferring.go_round()

    def _tell_quorum(self) -> None:
        waiting = quorum(self._settings.limits, self._census.size())
        self._fleet.waiting_for_quorum = waiting.reason if waiting is not None else ""

    def say(self, node: str, component: Component) -> bool:
        """Evidence about a node in our own name; False: its agent was not heard yet."""
        case = self._census.known(node)
        if case is None or case.patient.health is None:
            return False
        if case.patient.health.say(component):
            self._judging.judge(case)
        return True

    # -- ingest's Intake -----------------------------------------------------------

    def home(self, node: str) -> str:
        return self._hearing.home(node)

    def placed(self, node: str, address: str) -> None:
        self._triangulating.placed(node, address)

    def attached(self, hello: Hello, line: Line) -> None:
        self._hearing.attached(hello, line)

    def heard(self, node: str, evidence: Snapshot | Delta, at: float) -> Awaitable[None] | None:
        return self._hearing.heard(node, evidence, at)

    def digest(self, node: str) -> int | None:
        return self._hearing.digest(node)

    def beat(self, node: str, at: float) -> None:
        self._hearing.beat(node, at)

    def answered(self, node: str, command_id: str, *, ok: bool, message: str) -> None:
        self._hearing.answered(node, command_id, ok=ok, message=message)

    def detached(self, node: str, line: Line, reason: str) -> None:
        self._hearing.detached(node, line, reason)

    def conflict(self, node: str, detail: str) -> None:
        self._hearing.conflict(node, detail)


def _in_suspense(case: Case) -> bool:
    quarantine = case.patient.quarantine
    return quarantine is not None and quarantine.status.phase in _IN_SUSPENSE
