"""When a pod of slurmd may be evicted, by the conditions that slurm-operator writes."""

import pytest

from aggregator.cluster.port import Pod
from aggregator.policy.slurm_reason import condition_of
from aggregator.quarantine.decide.drain_plan import DrainMoment
from aggregator.workloads.slurm_pods import why_it_waits

DAY = 86400.0


def slurmd(*states: str, owner: str = "NodeSet", labelled: bool = True) -> Pod:
    labels = {"nodeset.slinky.slurm.net/pod-name": "h-0"} if labelled else {}
    return Pod(
        *("slurm", "h-0", "u", "1", "Running"), deleting=False, mirror=False,
        owner_kind=owner, owner_name="h", empty_dirs=(), labels=labels,
        conditions=frozenset({"Ready", *(f"SlurmNodeState{one}" for one in states)}),
    )  # fmt: skip


def waits(pod: Pod, now: float = 10.0) -> str:
    return why_it_waits(pod, DrainMoment(now, 0.0, 7 * DAY), DAY)


@pytest.mark.parametrize(
    ("states", "reason"),
    [
        (("Mixed", "Drain"), "jobs end (pod condition SlurmNodeStateMixed)"),
        (("Allocated",), "jobs end (pod condition SlurmNodeStateAllocated)"),
        (("Idle", "Drain", "Completing"), "jobs end (pod condition SlurmNodeStateCompleting)"),
        (("Idle",), "has not drained its node"),
        (("Idle", "Drain", "Undrain"), "has not drained its node"),
        ((), "reports no state"),
    ],
)
def test_it_waits_for_slurm_and_not_for_ever(states: tuple[str, ...], reason: str) -> None:
    assert reason in waits(slurmd(*states))
    assert "at the latest at 1970-01-02T00:00:00" in waits(slurmd(*states))
    assert waits(slurmd(*states), now=DAY) == ""


@pytest.mark.parametrize("states", [("Idle", "Drain"), ("Down",), ("Down", "Drain"), ("Error",)])
def test_it_goes_once_slurm_has_drained_its_node_or_holds_it_for_dead(
    states: tuple[str, ...],
) -> None:
    assert waits(slurmd(*states)) == ""


def test_other_pods_do_not_wait() -> None:
    assert waits(slurmd("Mixed", owner="StatefulSet")) == ""
    assert waits(slurmd("Mixed", labelled=False)) == ""


def test_the_reason_of_slurm_operator_is_no_evidence_so_that_no_loop_arises() -> None:
    assert condition_of("slurm-operator: sickbay: Not responding") == ""
    assert condition_of("slurm-operator: Kill task failed") == ""
