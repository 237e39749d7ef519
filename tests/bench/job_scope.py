"""GPU hours that ``scope: gpu`` keeps: single-GPU faults on nodes that jobs share, for a month.

Each node is filled with jobs of one GPU or two (four of five have one; an assumption). A fault of
one GPU evicts pods by the drain's own plan, once with the node's scope and once with the GPU's. An
evicted job loses the work since its last checkpoint, and its restart.
"""

import random
from collections.abc import Iterator, Mapping

from aggregator.cluster.port import Pod
from aggregator.jobs.gpu_report import gpus_by_pod
from aggregator.quarantine.decide.drain_plan import DrainMoment, DrainRules, plan_drain
from aggregator.runtime.interning import EMPTY
from aggregator.workloads.gpu_scope import spared
from tests.bench.jobplay import BEGIN, GPUS, HOUR, RATE

_ONE_GPU = 0.8
_RULES = DrainRules()


def kept_share(nodes: int, days: float, seed: int) -> float:
    """The share of the hours of whole-node drains that the scope keeps."""
    rng = random.Random(f"scope {seed}")
    whole = scoped = 0.0
    for fault in range(max(20, round(nodes * days * RATE))):
        pods = list(_pods(rng, fault))
        at = BEGIN + rng.random() * days * 24 * HOUR
        gpus = frozenset({f"GPU-{rng.randrange(GPUS)}"})
        moment = DrainMoment(at, at, at + _RULES.deadline)
        losses = {pod.uid: _hours(rng, pod) for pod in pods}
        whole += _lost(pods, moment, EMPTY, losses)
        scoped += _lost(pods, moment, spared(pods, gpus, _RULES, moment, gpus_by_pod(pods)), losses)
    return 1 - scoped / whole


def _pods(rng: random.Random, fault: int) -> Iterator[Pod]:
    free = [f"GPU-{number}" for number in range(GPUS)]
    rng.shuffle(free)
    number = 0
    while free:
        size = 1 if len(free) == 1 or rng.random() < _ONE_GPU else 2
        mine, free = free[:size], free[size:]
        number += 1
        yield Pod(
            namespace="jobs",
            name=f"job-{fault}-{number}",
            uid=f"{fault}-{number}",
            version="1",
            phase="Running",
            deleting=False,
            mirror=False,
            owner_kind="Job",
            owner_name="j",
            empty_dirs=(),
            gpus=size,
            gpu_ids=tuple(mine),
        )


def _hours(rng: random.Random, pod: Pod) -> float:
    interval, restart = rng.uniform(0.5, 1.5), rng.uniform(0.05, 0.3)
    return pod.gpus * (rng.random() * interval + restart)


def _lost(
    pods: list[Pod], moment: DrainMoment, waits: Mapping[str, str], losses: Mapping[str, float]
) -> float:
    return sum(losses[pod.uid] for pod in plan_drain(pods, _RULES, moment, EMPTY, waits).evict)
