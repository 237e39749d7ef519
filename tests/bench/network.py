"""The components that triangulation blames for known network faults, over many random graphs.

For each kind of fault, ``BENCH_GRAPHS`` fleets (20 by default) of ``BENCH_NODES`` nodes (1,000) in
racks of 16, labelled, with the peers that the aggregator names. Precision: of those that are
blamed, how many are at fault. Recall: of those at fault, how many are blamed. False blame: healthy
nodes, racks and targets that are blamed. Run by `make bench-network`.
"""

import random
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

from aggregator.health.model import Status
from aggregator.policy.network.triangulate import PEERS, Triangulation
from tests.bench.figures import write
from tests.bench.small import exit_code, number, small_or
from tests.support.networks import RACK, TARGET, Network, address, name

NOISE = 0.01
SILENT = 0.30


@dataclass
class Score:
    right: int = 0
    false: int = 0
    missed: int = 0

    @property
    def precision(self) -> float:
        return self.right / (self.right + self.false) if self.right + self.false else 1.0

    @property
    def recall(self) -> float:
        return self.right / (self.right + self.missed) if self.right + self.missed else 1.0


Guilty = set[tuple[str, str]]


def _node_down(net: Network) -> Guilty:
    node = net.rng.randrange(net.size)
    net.down = {node}
    return {("node", name(node))}


def _one_way(net: Network) -> Guilty:
    node = net.rng.randrange(net.size)
    net.mute = {node}
    return {("node", name(node))}


def _rack_switch_down(net: Network) -> Guilty:
    rack = net.rng.randrange(net.size // RACK)
    net.down = set(range(rack * RACK, (rack + 1) * RACK))
    return {("domain", f"rack=r{rack}")}


def _gateway_down(net: Network) -> Guilty:
    rack = net.rng.randrange(net.size // RACK)
    net.gateways_down = {rack}
    return {("domain", f"rack=r{rack}")}


def _target_down(net: Network) -> Guilty:
    net.missed = {TARGET}
    return {("target", f"reach {TARGET}")}


def _halves(net: Network) -> Guilty:
    net.walls = [set(net.rng.sample(range(net.size), net.size // 2))]
    return set()


def _nothing(net: Network) -> Guilty:
    del net
    return set()


SCENES: dict[str, Callable[[Network], Guilty]] = {
    "nothing": _nothing,
    "node_down": _node_down,
    "one_way_loss": _one_way,
    "rack_switch_down": _rack_switch_down,
    "gateway_down": _gateway_down,
    "target_down": _target_down,
    "partition_in_halves": _halves,
}


def _blamed(found: Triangulation, net: Network) -> Guilty:
    guilty = {(verdict.kind, verdict.name) for verdict in found.verdicts()}
    guilty -= {("unnamed", "")}  # it says that no component is blamed
    for node in range(net.size):
        finding = found.finding(name(node))
        if finding is not None and finding.status is Status.FAILED:
            guilty.add(("node", name(node)))
    return guilty


def score(
    scene: Callable[[Network], Guilty], *, graphs: int, size: int, noise: float, silent: float
) -> Score:
    """The same seeds each time."""
    total = Score()
    for seed in range(graphs):
        net = Network(size, random.Random(seed))
        guilty = scene(net)
        net.noise = noise
        net.silent = {n for n in range(size) if net.rng.random() < silent}
        found = Triangulation()
        net.report_all(found)
        found.settle(1000.0)
        blamed = _blamed(found, net)
        total.right += len(blamed & guilty)
        total.false += len(blamed - guilty)
        total.missed += len(guilty - blamed)
    return total


def update_cost_us(size: int, updates: int) -> float:
    """Microseconds for an edge's change and the evaluation that follows, in a fleet of ``size``."""
    net, found = Network(size, random.Random(1)), Triangulation()
    net.report_all(found)
    found.settle(1000.0)
    picks = [net.rng.randrange(size) for _ in range(updates)]
    begun = time.process_time()
    for node in picks:
        for status in (Status.FAILED, Status.OK):
            found.set_edge(name(node), PEERS, address(net.peers[node][0]), status)
            found.settle(1001.0)
    return (time.process_time() - begun) / (2 * updates) * 1e6


def main() -> int:
    graphs = number("BENCH_GRAPHS", 20, 1)
    size = number("BENCH_NODES", 1000, 64)
    figures: dict[str, float] = {"graphs": graphs, "nodes": size}
    print(f"Triangulation, {graphs} graphs of {size} nodes for each row")
    print(f"  {'':38}{'precision':>10}{'recall':>8}{'false blame':>13}")
    failed = False
    conditions = {"": (0.0, 0.0), "noise": (NOISE, 0.0), "silent": (0.0, SILENT)}
    conditions["noise_silent"] = (NOISE, SILENT)
    for condition, (noise, silent) in conditions.items():
        for scene, make in SCENES.items():
            found = score(make, graphs=graphs, size=size, noise=noise, silent=silent)
            title = f"{scene} {condition}".replace("_", " ").rstrip()
            print(f"  {title:38}{found.precision:10.3f}{found.recall:8.3f}{found.false:13d}")
            key = f"{scene}_{condition}".rstrip("_")
            figures[f"{key}_precision"] = round(found.precision, 4)
            figures[f"{key}_recall"] = round(found.recall, 4)
            figures[f"{key}_false"] = found.false
            failed |= found.false > 0
    figures["update_us"] = round(update_cost_us(*small_or((64, 5), (10_000, 2_000))), 1)
    print(f"  one edge's change in a fleet of 10,000: {figures['update_us']} us")
    print(write("network", figures))
    return exit_code(failed=failed)


if __name__ == "__main__":
    sys.exit(main())
