"""Slurm's programs of newer versions, as far as no real one of Debian has their behaviour."""

import json
from collections.abc import Callable, Collection
from pathlib import Path

import pytest

from aggregator.cluster.port import Unreachable
from aggregator.cluster.slurm.client import SlurmPrograms
from aggregator.cluster.slurm.names import MappedSlurm, NameRules
from aggregator.cluster.slurm.state import SlurmNode

Programs = Callable[[list[str]], SlurmPrograms]


@pytest.fixture
def programs(tmp_path: Path) -> Programs:
    """`scontrol` with nodes of these reasons; `sinfo` of 23.02 and later prints no nodes."""

    def made(reasons: list[str]) -> SlurmPrograms:
        nodes = [
            {"name": f"n{number}", "state": ["IDLE", "DRAIN"], "reason": reason}
            for number, reason in enumerate(reasons)
        ]
        (tmp_path / "nodes.json").write_text(json.dumps({"nodes": nodes, "errors": []}))
        for name, printed in (("scontrol", f"cat {tmp_path}/nodes.json"), ("sinfo", "echo '{}'")):
            (tmp_path / name).write_text(f"#!/bin/sh\n{printed}\n")
            (tmp_path / name).chmod(0o755)
        return SlurmPrograms(str(tmp_path))

    return made


async def test_an_answer_that_is_nested_too_deep_is_none(programs: Programs) -> None:
    client = programs([])
    (Path(client.folder) / "nodes.json").write_text(100_000 * "[")
    with pytest.raises(Unreachable, match="printed no JSON: it is nested too deep"):
        await client.read_nodes()


@pytest.mark.parametrize("words", ["Invalid node name specified", "epilog: invalid option -z"])
async def test_an_administrators_words_are_no_failure_of_a_program(
    programs: Programs, words: str
) -> None:
    client = programs([words, "fan"])
    assert [one.reason for one in await client.read_nodes()] == [words, "fan"]
    assert [one.reason for one in await client.read_nodes(["n0", "stranger"])] == [words]
    assert await client.read_nodes(["stranger"]) == []


async def test_more_names_than_an_argument_can_have_are_read(programs: Programs) -> None:
    client = programs(["fan"])
    names = ["n0", *(f"node-{number:0200}" for number in range(1000))]
    assert [one.name for one in await client.read_nodes(names)] == ["n0"]


async def test_agents_without_a_node_cost_one_read_of_all_nodes() -> None:
    class Counted(SlurmPrograms):
        async def read_nodes(self, names: Collection[str] | None = None) -> list[SlurmNode]:
            read.append(names)
            if len(read) > 2:
                raise Unreachable("read too often")
            return [SlurmNode("n1", "gpu-1", "IDLE", frozenset())]

    read: list[Collection[str] | None] = []
    client = MappedSlurm(Counted(), NameRules("hostname"))
    strangers = [f"stranger-{number}" for number in range(100)]
    assert [one.name for one in await client.read_nodes(["gpu-1", *strangers])] == ["gpu-1"]
    assert read == [None, ["n1"]]
