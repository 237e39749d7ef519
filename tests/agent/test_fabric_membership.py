"""The NVLink cliques that an agent names, and how the aggregator learns of them."""

from contextlib import closing
from pathlib import Path

import pytest

from aggregator.quarantine.decide.symptoms import domains
from nodeagent.evidence.latch import Latch
from nodeagent.evidence.state import State, dump, restore
from nodeagent.sources.fabric import FabricMembership
from nodeagent.sources.gpu_sample import Fabric, Gpu, GpuSample, NvmlTrouble, TroubleKind
from tests.agent.agent_process import AgentProcess
from tests.nvml import FakeGpus, gpu
from tests.support.fake_aggregator import FakeAggregator
from tests.support.waiting import until

DIGITS = "5b4a3c2d1e0f4a5b8c7d6e5f40312233"
UUID = "5b4a3c2d-1e0f-4a5b-8c7d-6e5f40312233"


def fabric(state: int = 3, status: int = 0, cluster: str = DIGITS, clique: int = 7) -> Fabric:
    return Fabric(state, status, 0, 1, cluster, clique)


def sample(*fabrics: Fabric | None, trouble: NvmlTrouble | None = None) -> GpuSample:
    gpus = tuple(Gpu(number, fabric=one) for number, one in enumerate(fabrics))
    return GpuSample(1.0, gpus=gpus, trouble=trouble)


def test_the_cliques_are_named_as_the_aggregator_reads_them() -> None:
    membership = FabricMembership()
    membership.learn(sample(fabric(), fabric(), None))
    assert membership.cliques == f"{UUID}.7"
    assert domains(membership.cliques) == (UUID,)
    membership.learn(sample(fabric(), fabric(clique=8)))
    assert membership.cliques == f"{UUID}.7,{UUID}.8"
    assert domains(membership.cliques) == (UUID,), "the cliques of one domain share its switches"


@pytest.mark.parametrize(
    "other",
    [
        sample(),
        sample(None),
        sample(fabric(state=2)),
        sample(fabric(status=999)),
        sample(fabric(clique=9), trouble=NvmlTrouble(TroubleKind.HUNG, "it hangs")),
    ],
)
def test_a_gpu_that_has_not_joined_or_does_not_answer_changes_nothing(other: GpuSample) -> None:
    membership = FabricMembership(f"{UUID}.7")
    membership.on_change(lambda: pytest.fail("nothing has changed"))
    membership.learn(other)
    assert membership.cliques == f"{UUID}.7"


def test_a_machine_with_switches_of_its_own_is_of_no_fabric() -> None:
    """HGX boards have a cluster UUID of zeros, and clique 0, on every node."""
    membership = FabricMembership(f"{UUID}.7")
    membership.learn(sample(fabric(cluster="0" * 32, clique=0)))
    assert membership.cliques == ""


def test_a_change_is_told_of_once() -> None:
    changes: list[str] = []
    membership = FabricMembership()
    membership.on_change(lambda: changes.append(membership.cliques))
    for clique in (7, 7, 8):
        membership.learn(sample(fabric(clique=clique)))
    assert changes == [f"{UUID}.7", f"{UUID}.8"]


def test_the_cliques_outlive_the_agent_and_a_boot() -> None:
    before = State(Latch(boot_id="boot-a", epoch="e"), cliques=f"{UUID}.7")
    document = dump(before, 300.0)
    for boot in ("boot-a", "boot-b"):
        assert restore(document, boot_id=boot, new_epoch=lambda: "f").cliques == before.cliques


@pytest.mark.parametrize(
    "trait",
    ["", "x", "no-uuid.7", f"{UUID}.", f"{UUID}.x", ".7", f"{UUID * 3}.7", f"{UUID}.7\n", "," * 99],
)
def test_a_trait_that_names_no_clique_is_no_fabric(trait: str) -> None:
    assert domains(trait) == ()


def test_an_agent_that_names_a_thousand_fabrics_is_of_a_few() -> None:
    assert len(domains(",".join(f"{number:036x}.1" for number in range(1_000)))) <= 4


async def test_an_agent_greets_anew_when_it_learns_its_fabric_and_at_once_when_it_knew_it(
    aggregator: FakeAggregator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = AgentProcess(tmp_path, aggregator=aggregator.address, top="[expect]\ngpus = 1\n")
    gpus = FakeGpus(tmp_path, [gpu(0)])
    for name, value in gpus.env.items():
        monkeypatch.setenv(name, value)
    named = "c1c1c1c1-c1c1-c1c1-c1c1-c1c1c1c1c1c1.7"
    with closing(node):
        await node.start().up()
        await until(lambda: aggregator.streams and _cliques(aggregator) == named, within=30)
        seen = len(aggregator.streams)
        node.kill()
        await node.start().up()
        await until(
            lambda: len(aggregator.streams) > seen and "hello" in aggregator.latest.kinds(),
            within=30,
        )
        assert aggregator.streams[seen].hello.traits["fabric_clique"] == named


def _cliques(aggregator: FakeAggregator) -> str:
    if "hello" not in aggregator.latest.kinds():
        return ""
    return aggregator.latest.hello.traits.get("fabric_clique", "")
