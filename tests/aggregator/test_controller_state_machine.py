"""The whole controller against all kinds of events, in any order, in virtual time.

Faults come and clear, machines reboot and are replaced, people cordon, uncordon, delete and stop,
the cluster fails, answers are lost, and the aggregator dies between any two calls. Each forbidden
state is looked for at every write; the final state is checked at the end.
"""

from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from aggregator.cluster.node_names import APPLIED, LABEL, TAINT, is_marked
from aggregator.cluster.port import (
    Action,
    ClusterError,
    Conflict,
    Evicted,
    EvictionResult,
    Phase,
    Quarantine,
    QuarantineSpec,
    Refused,
    Taint,
    Toleration,
    Unreachable,
)
from aggregator.health.model import Cleared, Delta, Fault, Status
from aggregator.quarantine.decide.intent import OURS
from aggregator.quarantine.decide.node_marks import known_applied
from aggregator.quarantine.decide.operator_requests import EXEMPT, FORCE, PIN, exemption
from aggregator.quarantine.decide.uncordon import OnUncordon
from tests.aggregator.controller_world import (
    CLIQUE,
    CODES,
    FABRIC_HOLD,
    FOREIGN,
    HOW,
    KUBELET,
    LEVELS,
    OF_CLIQUE,
    OF_LINKS,
    OF_OUR_KEY,
    POOL,
    TOOL,
    TRAY_FAULTS,
    TRAY_GPU,
    ControllerWorld,
    PlayedAgent,
    nodes,
)
from tests.support.replica import component, fault

#: It computes all the while: on a machine with much else to do that takes minutes.
pytestmark = pytest.mark.timeout(900)
#: It delays no release by more than seconds.
BUSY = Unreachable("429", retry_after=60.0)


class ControllerMachine(ControllerWorld):
    """The events."""

    # -- what happens to machines -----------------------------------------------------------

    @rule(name=nodes, code=st.sampled_from(CODES), gpu=st.sampled_from(("GPU-1", "GPU-2")))
    def a_fault(self, name: str, code: str, gpu: str) -> None:
        agent = self.agents[name]
        now = self.loop.time()
        known = agent.faults.get((code, gpu))
        self._latch(
            agent,
            replace(known, last_at=now, count=known.count + 1)
            if known
            else fault(code, gpu, first_at=now, last_at=now),
        )
        self._go(0)

    def _latch(self, agent: PlayedAgent, seen: Fault) -> None:
        """The agent has the fault from now on, and tells of it."""
        self.pods += 1
        known = agent.faults.get((seen.code, seen.component))
        sequence = known.source_seq if known else self.pods
        latched = replace(seen, boot_id=agent.boot_id, source_seq=sequence)
        agent.faults[seen.code, seen.component] = latched
        self._send_evidence(agent, Delta(faults=(latched,)))

    @rule(
        order=st.permutations([(name, code) for name in OF_CLIQUE for code in TRAY_FAULTS]),
        gap=st.sampled_from((0.0, 0.5, 3.0)),
        ends=st.booleans(),
    )
    def a_switch_tray_fails(self, order: list[tuple[str, str]], gap: float, *, ends: bool) -> None:
        """Each node of the clique logs an NVLink error and the driver's verdict, in any order; and
        a reset of one GPU after the other may end them.
        """
        if not self._links_are_well():
            return
        self.tray_fails = True
        for name, code in order:
            self._latch(self.agents[name], TRAY_FAULTS[code](TRAY_GPU, self.loop.time()))
            self._go(gap)
        self._go(FABRIC_HOLD + 5)
        for name, code in order if ends else ():
            if (code, TRAY_GPU) in self.agents[name].faults:
                self._clear(self.agents[name], (code, TRAY_GPU), "gpu-reset")
                self._go(gap)
        self.tray_fails = False

    @rule(name=st.sampled_from(OF_CLIQUE))
    def a_gpu_alone_loses_its_links(self, name: str) -> None:
        """No other node shows the same, so the fabric holds this one for a while and no longer."""
        if not self._links_are_well() or self.replica.fleet.causes:
            return
        restarts = len(self.restarts)
        for made in TRAY_FAULTS.values():
            self._latch(self.agents[name], made(TRAY_GPU, self.loop.time()))
        self._go(FABRIC_HOLD + 30)  # held nodes are looked at in rounds
        if len(self.restarts) == restarts and not self.replica.fleet.causes:
            hold = self.replica.fleet.node_summaries[name].decision.hold
            assert hold is None or hold.limit not in ("fabric", "limits.fabric_hold"), hold

    def _links_are_well(self) -> bool:
        """Whether no node of the clique has evidence of a link, and that of each would count."""
        for name in OF_CLIQUE:
            agent = self.agents[name]
            node_state = self.replica.controller.parts.registry.node_state(name)
            if node_state.agent.conflict or self.exempt.get(name, 0.0) > self.loop.time():
                return False
            if CLIQUE not in self.world.nodes[name].labels:  # another machine, not in the rack
                return False
            if any(code in OF_LINKS for code, _ in agent.faults):
                return False
            if agent.line is None or agent.line.closed:
                self._attach(agent)
        return True

    @rule(name=nodes, how=st.sampled_from(("operator", "replaced", "gpu-reset")), data=st.data())
    def a_sign(self, name: str, how: str, data: st.DataObject) -> None:
        agent = self.agents[name]
        if not agent.faults:
            return
        self._clear(agent, data.draw(st.sampled_from(sorted(agent.faults))), how)
        self._go(0)

    def _clear(self, agent: PlayedAgent, key: tuple[str, str], how: str) -> None:
        del agent.faults[key]
        sign = Cleared(*key, how)
        agent.unacked.append(sign)
        self.words[agent.node].discard(key)
        self._send_evidence(agent, Delta(cleared=(sign,)))

    @rule(
        name=nodes,
        level=st.sampled_from(LEVELS),
        status=st.sampled_from((Status.OK, Status.FAILED, Status.FAILED, Status.UNKNOWN)),
    )
    def a_check(self, name: str, level: tuple[str, str], status: Status) -> None:
        agent, (check, reason) = self.agents[name], level
        told = "" if status is Status.OK else reason
        before = agent.levels.get((check, "/"))
        since = self.loop.time()
        if before is not None and before.status is status:
            return
        agent.levels[check, "/"] = component(check, "/", status, told, since=since)
        self._is_back(agent, (check, "/"))
        self.words[name] &= agent.standing()
        self._send_evidence(agent, Delta(components=(agent.levels[check, "/"],)))
        self._go(0)

    @rule(name=nodes, level=st.sampled_from(LEVELS), heard=st.booleans())
    def a_component_goes(self, name: str, level: tuple[str, str], *, heard: bool) -> None:
        """A mount that was well is taken away; the message of it is lost, it may be."""
        agent, key = self.agents[name], (level[0], "/")
        if key not in agent.levels or agent.levels[key].status is not Status.OK:
            return
        del agent.levels[key]
        agent.vanished.add(key)
        agent.gone.append(key)
        self.words[name] &= agent.standing()
        if heard:
            self._send_evidence(agent, Delta(gone=(key,)))
        self._go(0)

    @rule(name=nodes, level=st.sampled_from(LEVELS), dies=st.booleans())
    def a_component_fails_recovers_and_goes(
        self, name: str, level: tuple[str, str], *, dies: bool
    ) -> None:
        """The component may go while no process listens: the next process has to learn of it."""
        for agent in self.agents.values():
            if agent.line is None:
                self._attach(agent)
        self.a_check(name, level, Status.FAILED)
        self._go(40)
        self.a_check(name, level, Status.OK)
        if dies:
            self.replica.cluster.crashed.set()
        self.a_component_goes(name, level, heard=not dies)

    @staticmethod
    def _is_back(agent: PlayedAgent, key: tuple[str, str]) -> None:
        agent.vanished.discard(key)
        agent.gone = [one for one in agent.gone if one != key]

    @rule(name=nodes, times=st.integers(2, 6))
    def a_check_flaps(self, name: str, times: int) -> None:
        for turn in range(times):
            self.a_check(name, LEVELS[1], Status.OK if turn % 2 else Status.FAILED)
            self._go(3)

    @rule(name=nodes, away=st.sampled_from((0.0, 90.0)))
    def a_reboot(self, name: str, away: float) -> None:
        agent = self.agents[name]
        self._detach(agent)
        agent.boot += 1
        agent.faults.clear()
        agent.levels.clear()
        agent.unacked.clear()
        self.words[name] = {key for key in self.words[name] if not key[0].startswith("xid")}
        node = self.world.nodes[name]
        self.world.set_node(replace(node, boot_id=agent.boot_id))
        self._go(away)
        self._attach(agent)
        self._go(0)

    @rule(name=nodes, old_token=st.booleans())
    def a_machine_is_replaced(self, name: str, *, old_token: bool) -> None:
        """Another machine under the name; for a moment the old one still speaks, it may be."""
        agent = self.agents[name]
        self.theirs.pop(name, None)
        self.cordoned.discard(name)
        self.foreign.discard(name)
        self.exempt.pop(name, None)
        self.words[name].clear()
        for key in [key for key in self.world.pods if key.startswith(f"{name}/")]:
            del self.world.pods[key]
        self.world.renew_node(name, f"{name}-boot-{agent.boot + 1}")
        if old_token and agent.line is not None:
            self._send_evidence(agent, agent.snapshot())
            self._go(1)
        self._detach(agent)
        self.agents[name] = PlayedAgent(name, self.world.nodes[name].uid, boot=agent.boot + 1)
        self._attach(self.agents[name])
        self._job(name)
        self._go(0)

    @rule(name=nodes, away=st.sampled_from((0.0, 0.1, 20.0, 400.0)))
    def a_node_is_recreated_in_the_same_boot(self, name: str, away: float) -> None:
        """The Node object alone: the machine, its faults and its agent are the same."""
        agent, labels = self.agents[name], self.world.nodes[name].labels
        self._detach(agent)
        for kept in (self.cordoned, self.foreign):
            kept.discard(name)
        self.exempt.pop(name, None)
        self.theirs.pop(name, None)
        self.words[name].clear()
        for key in [key for key in self.world.pods if key.startswith(f"{name}/")]:
            del self.world.pods[key]
        self.world.delete_node(name)
        if away:
            self._go(away)
        uid = f"uid-{self.world.tick()}-{name}"
        kept_labels = {key: labels[key] for key in (CLIQUE, POOL) if key in labels}
        self.world.add_node(name, uid=uid, boot_id=agent.boot_id, labels=kept_labels)
        agent.node_uid = uid
        self._job(name)
        self._attach(agent)
        self._go(0)

    @rule(name=nodes)
    def an_agent_loses_its_memory(self, name: str) -> None:
        """The kernel's ring brings the faults back a little later."""
        agent = self.agents[name]
        self._detach(agent)
        agent.epoch += 1
        agent.forgotten += agent.unacked
        remembered, agent.faults, agent.unacked = agent.faults, {}, []
        levels, agent.levels = agent.levels, {}
        agent.gone = []
        self._attach(agent)
        self._go(1)
        agent.faults, agent.levels = remembered, levels
        both = Delta(tuple(levels.values()), tuple(remembered.values()))
        self._send_evidence(agent, both)
        self._go(0)

    @rule(name=nodes)
    def an_agent_falls_silent(self, name: str) -> None:
        self._detach(self.agents[name])
        self._go(0)

    @rule(name=nodes)
    def an_agent_comes_back(self, name: str) -> None:
        self._detach(self.agents[name])
        self._attach(self.agents[name])
        self._go(0)

    @rule(name=nodes, two=st.booleans())
    def two_agents_claim_it(self, name: str, *, two: bool) -> None:
        detail = "a and b" if two else ""
        self._inside(lambda: self.replica.controller.on_conflict(name, detail))
        self._go(0)

    # -- what people and others do ------------------------------------------------------------

    @rule(name=nodes)
    def a_person_deletes(self, name: str) -> None:
        quarantine = self.world.quarantines.get(name)
        if quarantine is None or quarantine.deleting:
            return
        self._overruled(name)
        self.world.person_deletes(name)
        self._go(0)

    @rule(name=nodes, user=st.sampled_from(("mary", "mary", "", TOOL, KUBELET)))
    def an_uncordon(self, name: str, user: str) -> None:
        """``user``: the name that the policy writes on the node; empty: it writes none."""
        if not self.world.nodes[name].unschedulable:
            return
        self.cordoned.discard(name)
        if self._lifts(name, user):
            self.lifted.add(self.world.quarantines[name].uid)
            self._overruled(name)
        self.world.person_uncordons(name, reported_by=user)
        self._go(0)

    def _lifts(self, name: str, user: str) -> bool:
        """Whether that uncordon ends the node's quarantine: it is ours, and so is the cordon."""
        found = self.world.quarantines.get(name)
        marked = (Phase.CORDONED, Phase.DRAINING, Phase.DRAINED)
        if found is None or found.status.phase not in marked or found.spec.requester != OURS:
            return False
        applied = known_applied(self.world.nodes[name], found)
        if applied is None or not applied.cordoned:
            return False
        if self.on_uncordon is OnUncordon.CONFIRM:
            return user == "mary"
        return user != KUBELET

    @precondition(lambda self: self.world.quarantines)
    @rule(data=st.data())
    def a_person_edits_the_action(self, data: st.DataObject) -> None:
        """To the other one."""
        name = data.draw(st.sampled_from(sorted(self.world.quarantines)))
        found = self.world.quarantines[name]
        action = Action.CORDON if found.spec.action is Action.DRAIN else Action.DRAIN
        if found.deleting:
            return
        self.world.person_edits_spec(name, action=action)
        if found.spec.intent_action is None or action is found.spec.intent_action:
            self.overridden.pop(found.uid, None)
        elif found.spec.requester == OURS:  # a force's annotation may ask for something else
            self.overridden[found.uid] = (action, self.loop.time())
        self._go(0)

    @rule(name=nodes, words=st.sampled_from(("RMA 7", "fan 3 is dead")))
    def a_person_edits_the_reason(self, name: str, words: str) -> None:
        if name in self.world.quarantines:
            self.world.person_edits_spec(name, reason=words)
            self._go(0)

    def _overruled(self, name: str) -> None:
        quarantine = self.world.quarantines[name]
        if quarantine.spec.requester == OURS and quarantine.status.phase is not Phase.RELEASING:
            self.words[name] |= {
                (one.code, one.component) for one in quarantine.spec.evidence if not one.cleared
            } & self.agents[name].standing()

    @rule(name=nodes)
    def a_person_removes_by_force(self, name: str) -> None:
        if name not in self.world.quarantines or self.errors:
            return
        if not is_marked(self.world.nodes[name]):
            return  # without the annotation no mark on the node is known to be ours
        self.replica.cluster.crash_in(-1, after=False)
        self._go(30)
        if name in self.world.quarantines:
            self._overruled(name)
            self.world.person_removes_by_force(name)
            self._go(30)

    @rule(name=nodes)
    def a_person_cordons(self, name: str) -> None:
        """One that comes between an uncordon and ours, for a quarantine that stands, is ours."""
        found = self.world.quarantines.get(name)
        applied = known_applied(self.world.nodes[name], found)
        pending = (
            applied is not None
            and applied.cordoned
            and (found is None or not self._is_lifted(found))
        )
        if not self.world.nodes[name].unschedulable:
            if not pending:
                self.cordoned.add(name)
            self.world.person_cordons(name)
            self._go(0)

    def _is_lifted(self, quarantine: Quarantine) -> bool:
        return quarantine.uid in self.lifted

    @precondition(lambda self: self.mode is Action.DRAIN)
    @rule(name=nodes, action=st.sampled_from((Action.CORDON, Action.DRAIN)))
    def a_person_quarantines(self, name: str, action: Action) -> None:
        if name not in self.world.quarantines:
            self.world.person_creates(name, QuarantineSpec(action, "manual", "smells of smoke"))
            self._go(0)

    @rule(name=nodes, seconds=st.sampled_from((0.0, 100.0, 1000.0)))
    def a_person_exempts(self, name: str, seconds: float) -> None:
        until = round(self.loop.time() + seconds)
        self.exempt[name] = until if seconds else 0.0
        self.world.person_annotates(name, EXEMPT, exemption(until, "a test") if seconds else None)

    @rule(name=nodes, text=st.sampled_from((None, "RMA 12345", "")))
    def a_person_pins(self, name: str, text: str | None) -> None:
        self.world.person_annotates(name, PIN, text)

    @precondition(lambda self: self.mode is Action.DRAIN)
    @rule(name=nodes, text=st.sampled_from((None, "drain fan 3", "cordon fan 3", "nonsense")))
    def a_person_forces(self, name: str, text: str | None) -> None:
        self.world.person_annotates(name, FORCE, text)

    @rule(name=nodes, there=st.booleans())
    def somebody_elses_taint(self, name: str, *, there: bool) -> None:
        node = self.world.nodes[name]
        others = tuple(taint for taint in node.taints if taint != FOREIGN)
        self.foreign.discard(name)
        if there:
            self.foreign.add(name)
            others = (*others, FOREIGN)
        self.world.set_node(replace(node, taints=others))
        self._go(0)

    @rule(name=nodes, taint=st.sampled_from((None, *OF_OUR_KEY)))
    def somebody_elses_taint_of_our_key(self, name: str, taint: Taint | None) -> None:
        """Only before a quarantine, because a change during one is ours, and set again."""
        node = self.world.nodes[name]
        if is_marked(node) or name in self.world.quarantines:
            return
        self.theirs.pop(name, None)
        others = tuple(one for one in node.taints if one.key != TAINT)
        if taint is not None:
            self.theirs[name] = taint
            others = (*others, taint)
        self.world.set_node(replace(node, taints=others))
        self._go(0)

    @rule(
        name=nodes,
        what=st.sampled_from(("taint", "value", "label", "applied", "condition", "all")),
    )
    def somebody_removes_our_marks(self, name: str, what: str) -> None:
        node, found = self.world.nodes[name], self.world.quarantines.get(name)
        marked = (Phase.CORDONED, Phase.DRAINING, Phase.DRAINED)
        if found is None or found.status.phase not in marked or found.status.applied is None:
            return
        if found.status.node_uid != node.uid:
            return
        if what in ("taint", "all"):
            ours = (TAINT, "NoSchedule")
            kept = tuple(one for one in node.taints if (one.key, one.effect) != ours)
            node = replace(node, taints=kept)
        if what == "value":
            changed = (replace(t, value="x") if t.key == TAINT else t for t in node.taints)
            if name not in self.theirs:
                node = replace(node, taints=tuple(changed))
        if what in ("label", "all"):
            node = replace(node, labels={k: v for k, v in node.labels.items() if k != LABEL})
        if what in ("applied", "all"):
            notes = {k: v for k, v in node.annotations.items() if k != APPLIED}
            node = replace(node, annotations=notes)
        if what in ("condition", "all"):
            node = replace(node, condition="")
        self.world.set_node(node)
        self._go(0)

    @rule(stop=st.booleans())
    def a_person_stops_all(self, *, stop: bool) -> None:
        self.stopped_at = self.loop.time() if stop else None
        self.world.person_stops("drill" if stop else "")
        self._go(0)

    @rule()
    def a_person_stops_all_and_the_news_are_late(self) -> None:
        self.stopped_at = self.loop.time()
        self.world.person_stops_unseen("drill")

    @rule()
    def a_person_deletes_the_stop(self) -> None:
        # A running process keeps it; a process that starts anew does not know of it.
        self.stopped_at = None
        self.world.person_deletes_stop()
        self._go(0)

    @rule(deleted=st.booleans(), older=st.integers(0, 50))
    def the_record_is_lost(self, *, deleted: bool, older: int) -> None:
        if deleted:
            self.world.person_deletes_record()
        else:
            self.world.person_rolls_back_record(self.texts[older % len(self.texts)])
        self._go(0)

    @rule(name=nodes)
    def a_job_starts(self, name: str) -> None:
        if not self.world.nodes[name].unschedulable:
            self._job(name)

    @rule(name=nodes, tolerates=st.booleans())
    def a_pod_that_comes_back(self, name: str, *, tolerates: bool) -> None:
        """A StatefulSet's pod: it tolerates every taint, or its controller binds it to the node."""
        number = self.world.tick()
        pod = f"set-{number}"
        self.world.add_pod(
            name,
            pod,
            owner_kind="StatefulSet",
            owner_name=pod,
            tolerations=(Toleration(operator="Exists"),) if tolerates else (),
            created_at=float(int(self.loop.time())),
        )
        self.world.come_back.add(f"jobs/{pod}")

    @rule(name=nodes, tolerates=st.booleans(), seconds=st.sampled_from((30.0, 700.0)))
    def a_node_fails_whose_pod_comes_back(
        self, name: str, *, tolerates: bool, seconds: float
    ) -> None:
        """The fault may last for so long that a second eviction is due."""
        for agent in self.agents.values():
            if agent.line is None:
                self._attach(agent)
        self.a_pod_that_comes_back(name, tolerates=tolerates)
        self.a_fault(name, "xid:79", "GPU-1")
        self._go(seconds)

    @rule(rejection=st.sampled_from((None, Evicted.REJECTED, Evicted.FAILING)))
    def admission(self, rejection: Evicted | None) -> None:
        """A webhook rejects the evictions of all pods that are there, or no more."""
        self.world.rejections = {
            pod.uid: EvictionResult(rejection, "a webhook says so")
            for pod in self.world.pods.values()
            if rejection is not None
        }

    @rule(blocks=st.booleans())
    def budgets(self, *, blocks: bool) -> None:
        self.world.budget_blocks = {p.uid for p in self.world.pods.values()} if blocks else set()

    @rule(lags=st.booleans())
    def the_servers_cache(self, *, lags: bool) -> None:
        self.world.cache_lags = lags

    # -- what happens to us ---------------------------------------------------------------------

    @rule(calls=st.integers(1, 12), after=st.booleans())
    def it_will_die(self, calls: int, *, after: bool) -> None:
        self.replica.cluster.crash_in(calls, after=after)

    @rule()
    def it_dies(self) -> None:
        self.replica.cluster.crashed.set()
        self._go(0)

    @rule(late=st.booleans())
    def answers_come_late(self, *, late: bool) -> None:
        self.replica.cluster.answers_late = late

    @rule(
        call=st.sampled_from(
            (
                "read_record",
                "write_record",
                "create_quarantine",
                "read_quarantine",
                "write_quarantine_spec",
                "write_quarantine_status",
                "drop_quarantine",
                "read_node",
                "patch_node",
                "pods_on",
                "evict",
                "announce",
                "list_nodes",
            )
        ),
        late=st.booleans(),
        error=st.sampled_from((Unreachable("503"), BUSY, Conflict("409"), Refused("403"))),
        times=st.integers(1, 3),
    )
    def the_cluster_will_fail(
        self,
        call: str,
        *,
        late: bool,
        error: ClusterError,
        times: int,
    ) -> None:
        """The process dies before the call is done, or after it: then only the answer is lost."""
        if late and not isinstance(error, Unreachable):
            return
        self.errors += [(call, late, error)] * times

    @rule(seconds=st.sampled_from((0.01, 1.0, 6.0, 40.0, 200.0, 700.0)))
    def time_passes(self, seconds: float) -> None:
        self._go(seconds)


class Observing(ControllerMachine):
    """The same state machine, in a mode that allows no action."""

    mode = Action.OBSERVE


class Asking(ControllerMachine):
    """The same state machine, where an uncordon by a tool or an unknown client releases no node."""

    on_uncordon = OnUncordon.CONFIRM


ControllerMachine.TestCase.settings = HOW
Observing.TestCase.settings = settings(HOW, max_examples=30)
Asking.TestCase.settings = settings(HOW, max_examples=100)
TestControllerMachine = ControllerMachine.TestCase
TestAsking = Asking.TestCase
TestObserving = Observing.TestCase
