"""The facts that a node reports for comparison: bounded, without secrets and its own ids."""

from pathlib import Path

import pytest

from nodeagent.checks import drift
from nodeagent.model import Status
from nodeagent.sources import node_facts
from nodeagent.sources.host import HostRoots
from tests.agent.machines import made_up
from tests.nvml import gpu
from tests.nvml.gpu_bench import Bench, next_run, run_check


def put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")


def machine_with(root: Path) -> HostRoots:
    machine = made_up(root)
    put(machine.proc / "sys/kernel/osrelease", "6.8.0-49-generic")
    put(machine.proc / "sys/vm/swappiness", "10")
    put(machine.proc / "cmdline", "BOOT_IMAGE=/vmlinuz root=UUID=0a1b ro iommu=pt")
    for name, model, revision in (("nvme0", "KIOXIA CM7", "0105"), ("nvme1", "KIOXIA CM7", "0106")):
        put(machine.sys / f"class/nvme/{name}/model", model)
        put(machine.sys / f"class/nvme/{name}/firmware_rev", revision)
    put(machine.sys / "class/infiniband/mlx5_0/fw_ver", "28.39.1002")
    put(machine.sys / "class/infiniband/mlx5_0/board_id", "MT_0000000838")
    return machine


def test_versions_are_read_by_model(tmp_path: Path) -> None:
    machine = machine_with(tmp_path)
    assert node_facts.drives(machine) == {"KIOXIA CM7": "0105, 0106"}
    assert node_facts.adapters(machine) == {"MT_0000000838": "28.39.1002"}
    assert node_facts.kernel(machine) == {
        "release": "6.8.0-49-generic",
        "command line": "BOOT_IMAGE=<own> iommu=pt ro root=<own>",
    }
    assert node_facts.sysctls(machine) == {"vm.swappiness": "10"}


@pytest.mark.parametrize(
    ("written", "kept"),
    [
        ("iommu=pt mitigations=auto,nosmt", "iommu=pt mitigations=auto,nosmt"),
        ("site.password=hunter2", "site.password=<redacted>"),
        ("join_TOKEN=abc", "join_TOKEN=<redacted>"),
        ("x=eyJhbGciOiJIUzI1NiJ9abcdef", "x=<redacted>"),
        ("x=0123456789abcdef0123456789abcdef", "x=<redacted>"),
        ("eyJhbGciOiJIUzI1NiJ9abcdef0", "<redacted>"),
        ("coreos.config.url=https://u:pw@h/x", "coreos.config.url=<redacted>"),
        ("url=https://h/x?token=abc", "url=<redacted>"),
        ("url=https://h/image.raw", "url=https://h/image.raw"),
        ("ip=10.0.0.7::10.0.0.1 systemd.machine_id=ab12", "ip=<own> systemd.machine_id=<own>"),
        ("nvidia-drm.modeset=1 isolcpus=2-63,66-127", "isolcpus=2-63,66-127 nvidia-drm.modeset=1"),
        ("quiet -- --password hunter2", "quiet"),
        ("a=b;c=d", "a=b c=d"),
    ],
)
def test_a_command_line_has_no_secret_and_no_own_id(written: str, kept: str) -> None:
    assert node_facts.command_line(written) == kept


def test_facts_are_bounded() -> None:
    line = node_facts.command_line(" ".join(f"parameter{n}=x" for n in range(900)))
    assert len(line) < 700
    assert line.endswith("more)")
    text = node_facts.to_text({f"name{n}": "é" * 100 for n in range(99)}, 900)
    assert len(text.encode()) <= 900
    assert text.startswith("name0: é")


async def test_each_group_is_a_row_that_is_ok(tmp_path: Path) -> None:
    gpus = [gpu(0, ecc_mode=(1, 1)), gpu(1, ecc_mode=(0, 0))]
    async with Bench(tmp_path, gpus) as bench:
        (bench.gpus.sys / "module/nvidia/version").write_text("580.65.06\n")
        check = bench.build(drift.SPEC)
        seen = await run_check(check)
        assert {each.status for each in seen.by_component.values()} == {Status.OK}
        message = seen.by_component["gpu"].message
        assert "driver: 580.65.06" in message
        assert "NVIDIA H100 80GB HBM3 VBIOS: 96.00.99.00.01" in message
        assert "NVIDIA H100 80GB HBM3 ECC: off, on" in message
        bench.gpus.fail("nvmlInitWithFlags", code=999)
        await bench.nvml.quiesce(0.0)
        assert (await next_run(bench, check)).by_component["gpu"].message == message
