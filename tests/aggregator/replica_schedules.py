"""Schedules of the simulated replicas: what may happen to them, and how one is played."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from aggregator.cluster.port import BUSY, Action
from aggregator.quarantine.decide.new_nodes import NewNodeRules
from aggregator.quarantine.decide.operator_requests import EXEMPT, FORCE, exemption
from aggregator.quarantine.decide.repair import RepairMode, RepairRules
from aggregator.quarantine.repair.protocol import RepairSettings
from aggregator.quarantine.settings import Settings
from tests.aggregator.replica_simulator import DAY, Simulation
from tests.aggregator.replica_workshop import UNTESTED
from tests.support.replica import OPEN, SETTINGS

#: The pause after it (seconds), what happens, and to which replica and node.
Event = tuple[float, str, str, str]

QUICK = replace(SETTINGS, limits=replace(OPEN, silent_drain_after=60.0))
#: Seconds.
PAUSES = (0.0, 0.01, 0.05, 0.3, 1.0, 4.0, 11.0, 20.0, 45.0)
HOSTS, NODES = ("r0", "r1", "r2"), tuple(f"n{number}" for number in range(6))


#: Of six nodes two may be in quarantine: a held node gets in when there is room.
TIGHT = replace(QUICK, limits=replace(OPEN, concurrent=2))


#: The nodes are repaired: two at once, and one of a rack.
REPAIRING = replace(
    QUICK,
    repair=RepairSettings(
        RepairRules(mode=RepairMode.REPAIR, concurrent=2, concurrent_percent=100.0, attempts=20)
    ),
)
#: The same, and each Node that is made anew has to pass a test, one after the other.
TESTING = replace(
    REPAIRING,
    repair=RepairSettings(
        replace(
            REPAIRING.repair.rules,
            test_pause=20.0,
            new_nodes=NewNodeRules(taint=UNTESTED.key, concurrent=1),
        )
    ),
)
#: A restart finds one of these files in place of its own.
OTHERS = (
    replace(QUICK, mode=Action.OBSERVE),
    replace(QUICK, limits=replace(OPEN, concurrent=1)),
    REPAIRING,
)


def play(seed: int, events: Sequence[Event], rules: Settings = QUICK) -> Simulation:
    sim = Simulation(seed, replicas=len(HOSTS), nodes=len(NODES), settings=rules)
    sim.time.run(30)
    for pause, what, host, node in events:
        ACTS[what](sim, host, node)
        sim.time.run(pause)
    sim.heal()
    sim.time.run(30)
    sim.check_one_acts()
    sim.time.run(300)
    sim.check_one_acts()
    sim.check_settled()
    for agent in sim.agents.values():  # all held nodes get in, two at a time
        if rules is TIGHT and agent.node in sim.world.quarantines and agent.ill is not None:
            agent.is_mended()
    if rules is TIGHT:
        sim.time.run(300)
        sim.check_settled()
    sim.time.end()
    return sim


def _kill(sim: Simulation, host: str, _: str) -> None:
    sim.hosts[host].kill()


def _start(sim: Simulation, host: str, _: str) -> None:
    if not sim.hosts[host].up:
        sim.hosts[host].start()


def _lossy(sim: Simulation, _: str, __: str) -> None:
    sim.wire.lost = 0.0 if sim.wire.lost else 0.2


def _delete_lease(sim: Simulation, _: str, __: str) -> None:
    sim.board.lease, sim.board.deleted_at = None, sim.time.now


def _release(sim: Simulation, _: str, node: str) -> None:
    """A person deletes the quarantine of an unhealthy node."""
    quarantine = sim.world.quarantines.get(node)
    if quarantine is not None and not quarantine.deleting:
        sim.agents[node].overruled = sim.agents[node].ill is not None
        sim.agents[node].released_at = sim.time.now
        sim.world.person_deletes(node)


def _all_cut(sim: Simulation, _: str, __: str) -> None:
    """The API server is away for all, or back."""
    if sim.wire.cut >= set(HOSTS):
        sim.wire.cut.clear()
    else:
        sim.wire.cut |= set(HOSTS)


def _annotated(sim: Simulation, node: str, key: str, value: str) -> None:
    """A person annotates the node, or takes that back."""
    if node in sim.world.nodes:
        known = key in sim.world.nodes[node].annotations
        sim.world.person_annotates(node, key, None if known else value)


def _uncordon(sim: Simulation, _: str, node: str) -> None:
    """A person uncordons the node."""
    there = sim.world.nodes.get(node)
    if there is not None and there.unschedulable:
        sim.agents[node].overruled |= sim.agents[node].ill is not None
        sim.agents[node].released_at = sim.time.now
        sim.world.person_uncordons(node)


def _node_gone(sim: Simulation, _: str, node: str) -> None:
    """The Node is deleted, with its pods, or is created again."""
    if node not in sim.world.nodes:
        sim.bring_back(node)
        return
    sim.world.delete_node(node)
    for key in [key for key, pod in sim.world.pods.items() if pod.node == node]:
        del sim.world.pods[key]


def _node_anew(sim: Simulation, _: str, node: str) -> None:
    if node in sim.world.nodes:
        sim.world.delete_node(node)
        sim.bring_back(node)


def _failing(sim: Simulation, _: str, __: str) -> None:
    sim.wire.failing = 0.0 if sim.wire.failing else 0.2


def _watches_end(sim: Simulation, host: str, _: str) -> None:
    for stream in sim.streams_of(host):
        stream.break_off()


def _record_restored(sim: Simulation, _: str, __: str) -> None:
    """An older copy of the record is written over it."""
    if sim.records:
        sim.world.person_rolls_back_record(sim.rng.choice(sim.records))


def _cancel(sim: Simulation, _: str, node: str) -> None:
    """A person deletes the Operation that is under way, or requests one, which follows it."""
    quarantine = sim.world.quarantines.get(node)
    repair = quarantine.status.repair if quarantine is not None else None
    for one in repair.attempts if repair is not None else ():
        if one.state in BUSY:
            if sim.rng.random() < 0.5:
                sim.world.operations.person_requests(
                    node, one.repair, f"by-hand-{sim.world.tick()}"
                )
            sim.world.operations.person_deletes(one.name)
            sim.world.facts.cancelled.setdefault(one.operation, sim.time.now)


def _jump(sim: Simulation, host: str, _: str) -> None:
    """The machine's wall clock is set, by at most a day."""
    sim.hosts[host].skew = sim.rng.uniform(-DAY, DAY)


def _other_rules(sim: Simulation, host: str, _: str) -> None:
    """The replica is started anew with another file, which the others get at their next start."""
    at = OTHERS.index(sim.settings) if sim.settings in OTHERS else -1
    sim.settings = OTHERS[(at + 1) % len(OTHERS)]
    sim.hosts[host].kill()
    sim.hosts[host].start()


def _bind(sim: Simulation, _: str, node: str) -> None:
    """A pod comes to the node past the scheduler."""
    if node in sim.world.nodes:
        sim.world.add_pod(node, f"bound-{sim.world.tick()}")


ACTS: dict[str, Callable[[Simulation, str, str], None]] = {
    "fault": lambda sim, _, node: sim.agents[node].falls_ill(),
    "mended": lambda sim, _, node: sim.agents[node].is_mended(),
    "kill": _kill,
    "start": _start,
    "pause": lambda sim, host, _: sim.hosts[host].pause(paused=True),
    "wake": lambda sim, host, _: sim.hosts[host].pause(paused=False),
    "cut": lambda sim, host, _: sim.wire.cut.add(host),
    "mend": lambda sim, host, _: sim.wire.cut.discard(host),
    "agent cut": lambda sim, host, node: sim.agents[node].cut.add(host),
    "agent back": lambda sim, host, node: sim.agents[node].cut.discard(host),
    "loss": _lossy,
    "lease deleted": _delete_lease,
    "person releases": _release,
    "stop at 1": lambda sim, host, _: sim.hosts[host].stop_at(1),
    "stop at 2": lambda sim, host, _: sim.hosts[host].stop_at(2),
    "stop at 3": lambda sim, host, _: sim.hosts[host].stop_at(3),
    "stop at 5": lambda sim, host, _: sim.hosts[host].stop_at(5),
    "leave": lambda sim, host, _: sim.hosts[host].leave(),
    "API server": _all_cut,
    "exempt": lambda sim, _, node: _annotated(sim, node, EXEMPT, exemption(2e9, "a test")),
    "force": lambda sim, _, node: _annotated(sim, node, FORCE, "drain a test"),
    "person uncordons": _uncordon,
    "node anew": _node_anew,
    "node gone": _node_gone,
    "agent restarts": lambda sim, _, node: sim.agents[node].restarts(),
    "API errors": _failing,
    "watches end": _watches_end,
    "stop": lambda sim, _, __: sim.world.person_stops("" if sim.world.stop.reason else "drill"),
    "record restored": _record_restored,
    "record lost": lambda sim, _, __: sim.world.person_deletes_record(),
    "cancel": _cancel,
    "clock jumps": _jump,
    "other rules": _other_rules,
    "pod bound": _bind,
}
