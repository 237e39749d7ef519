"""Garbage costs only itself: the data beside it is seen as if it were not there."""

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nodeagent.checks import (
    disk_ext4,
    disk_md,
    gpu_clocks,
    gpu_ecc,
    gpu_fabric,
    gpu_inforom,
    gpu_nvlink,
    gpu_pages,
    gpu_recovery,
    gpu_rows,
    infiniband,
    nic_health,
    nic_link,
)
from nodeagent.checks.base import Check, CheckSpec
from nodeagent.model import Status
from nodeagent.sources.gpu_sample import gpu_from_wire
from nodeagent.sources.host import HostRoots
from nodeagent.sources.pcie_link import PcieLink, read_link
from tests.agent import test_disk_ext4, test_disk_md, test_infiniband, test_nic_health
from tests.agent.damage import REFUSED
from tests.agent.kernel_log import HandClock
from tests.agent.machines import made_up, options, sources, verdicts
from tests.agent.test_garbage import STARTS
from tests.nvml import gpu, uuid_of
from tests.nvml.gpu_bench import Bench, run_check
from tests.support.folders import fresh_folder
from tests.support.present import of_type

garbage = st.one_of(
    st.tuples(st.sampled_from(STARTS), st.binary(max_size=60)).map(b"".join),
    st.sampled_from(["refused", "gone"]),
)


def spoil(path: Path, what: bytes | str) -> None:
    path.unlink(missing_ok=True)
    if isinstance(what, bytes):
        path.write_bytes(what)
    else:
        path.symlink_to(REFUSED if what == "refused" else path.with_name("nowhere"))


def md(machine: HostRoots) -> tuple[str, Iterable[Path]]:
    test_disk_md.array(machine, "md0")
    return "md0", test_disk_md.array(machine, "md1").glob("*_*")


def ext4(machine: HostRoots) -> tuple[str, Iterable[Path]]:
    test_disk_ext4.disk(machine, 1)
    return "/d1", test_disk_ext4.disk(machine, 2).iterdir()


def nic(machine: HostRoots) -> tuple[str, Iterable[Path]]:
    test_nic_health.port(machine, "eth0", carrier=1)
    sick = test_nic_health.port(machine, "eth1", carrier=1)
    return "eth0", [each for each in sick.rglob("*") if each.is_file()]


def port(machine: HostRoots) -> tuple[str, Iterable[Path]]:
    test_infiniband.device(machine, "mlx5_0", "0000:3b:00.0")
    [sick] = test_infiniband.device(machine, "mlx5_1", "0000:4b:00.0")
    return "mlx5_0/1", [each for each in sick.rglob("*") if each.is_file()]


PAIRS = pytest.mark.parametrize(
    ("spec", "pair"),
    [
        (disk_md.SPEC, md),
        (disk_ext4.SPEC, ext4),
        (nic_link.SPEC, nic),
        (nic_health.SPEC, nic),
        (infiniband.SPEC, port),
    ],
    ids=["md", "ext4", "nic-link", "nic-health", "infiniband"],
)


@PAIRS
@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_the_well_one_of_two_is_well_whatever_the_other_says(
    tmp_path_factory: pytest.TempPathFactory,
    spec: CheckSpec,
    pair: Callable[[HostRoots], tuple[str, Iterable[Path]]],
    data: st.DataObject,
) -> None:
    machine = made_up(fresh_folder(tmp_path_factory, "machine"))
    well, files = pair(machine)
    for path in sorted(files):
        if data.draw(st.booleans()):
            spoil(path, data.draw(garbage))
    found = sources(machine)

    async def looks() -> None:
        check = cast("Check", spec.build(found, options(spec)))
        try:
            for _ in range(2):
                assert verdicts(await check.run_check())[well] == (Status.OK, "")
        finally:
            await found.disk.close()

    asyncio.run(looks())


@PAIRS
async def test_files_that_come_and_go_while_they_are_read_cost_themselves_alone(
    tmp_path: Path, spec: CheckSpec, pair: Callable[[HostRoots], tuple[str, Iterable[Path]]]
) -> None:
    machine = made_up(tmp_path)
    well, files = pair(machine)
    contents = {path: path.read_bytes() for path in files}
    over = threading.Event()

    def flicker() -> None:
        while not over.is_set():
            for path, content in contents.items():
                path.unlink()
                time.sleep(0.0002)
                path.write_bytes(content)

    found = sources(machine)
    check = cast("Check", spec.build(found, options(spec)))
    hand = threading.Thread(target=flicker)
    hand.start()
    try:
        for _ in range(12):
            assert verdicts(await check.run_check())[well] == (Status.OK, "")
    finally:
        over.set()
        hand.join()
        await found.disk.close()


# -- GPUs --------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    files=st.dictionaries(
        st.sampled_from(
            [
                *("current_link_width", "max_link_width", "current_link_speed"),
                *("aer_dev_correctable", "aer_dev_nonfatal", "aer_dev_fatal"),
            ]
        ),
        st.one_of(garbage, st.binary(max_size=20).map(lambda b: b"TOTAL_ERR_FATAL " + b)),
    )
)
def test_no_file_breaks_a_look_at_a_pcie_link(
    tmp_path_factory: pytest.TempPathFactory, files: dict[str, bytes | str]
) -> None:
    sys = fresh_folder(tmp_path_factory, "sys")
    device = sys / "bus/pci/devices/0000:3b:00.0"
    device.mkdir(parents=True)
    for name, what in files.items():
        spoil(device / name, what)
    link = of_type(read_link(HostRoots(clock=HandClock(), sys=sys), "0000:3b:00.0"), PcieLink)
    assert link.width is None or 0 < link.width <= 32
    assert all(n is None or n >= 0 for n in (link.replays, link.nonfatal, link.fatal))


EVALUATES = (gpu_ecc, gpu_rows, gpu_recovery, gpu_pages, gpu_clocks, gpu_inforom)
anything = st.one_of(st.none(), st.integers(-(2**63), 2**64 - 1))
number = st.integers(-(2**63), 2**64 - 1)


@settings(max_examples=100, deadline=None)
@given(
    message=st.fixed_dictionaries(
        {
            "index": st.integers(0, 64),
            "uuid": st.text(max_size=10),
            "pci": st.just(""),
            "name": st.text(max_size=10),
            "errors": st.dictionaries(
                st.sampled_from(["rows", "ecc", "pages", "links"]), st.integers(0, 2000)
            ),
            "ecc": st.none() | st.lists(anything, min_size=4, max_size=4),
            "rows": st.none() | st.lists(number, min_size=4, max_size=4),
            "seldom": st.fixed_dictionaries(
                {
                    "reserve": st.none() | st.lists(number, min_size=5, max_size=5),
                    "pages": st.none() | st.lists(number, min_size=4, max_size=4),
                    "fabric": st.none()
                    | st.fixed_dictionaries(
                        dict.fromkeys(("state", "status", "health", "summary", "clique"), number)
                        | {"cluster": st.text(max_size=32)}
                    ),
                    **dict.fromkeys(("sram_threshold_exceeded", "inforom"), anything),
                }
            ),
            **dict.fromkeys(("recovery_action", "clocks", "replays"), anything),
        }
    )
)
def test_every_number_that_nvml_can_give_has_a_verdict(message: dict[str, object]) -> None:
    sample = gpu_from_wire(json.loads(json.dumps(message)), {})
    for check in EVALUATES:
        status, reason, text = check.evaluate(sample)
        assert isinstance(status, Status)
        assert bool(reason) == (status is not Status.OK)
        assert text
    if sample.fabric is not None:
        assert gpu_fabric.evaluate(sample.fabric, is_young=False)[2]


LARGEST = 2**64 - 1


async def test_values_out_of_range_through_the_real_pynvml_cost_no_other_gpu(
    tmp_path: Path,
) -> None:
    wild = gpu(
        0,
        ecc=(2**62, 2**62, 2**62, 2**62),
        rows=(2**31, 2**31, 2**31, 2**31),
        recovery_action=2**62,
        clocks=LARGEST,
        replays=LARGEST,
        reserve=(LARGEST,) * 5,
        sram=True,
        pages=([], [-1e9, 9e12]),
        links=(1, 0, 77, LARGEST),
        link_errors={(161, 0): LARGEST, (162, 0): 2**63, (163, 0): LARGEST - 1},
        fabric=(2**32 - 1, 2**32 - 1, 2**32 - 1, 255, 2**32 - 1, 3),
    )
    specs = [*(each.SPEC for each in EVALUATES), gpu_fabric.SPEC, gpu_nvlink.SPEC]
    async with Bench(tmp_path, [wild, gpu(1, pages=([], []), links=(1,))]) as bench:
        for spec in specs:
            seen = await run_check(bench.build(spec))
            assert seen.status(uuid_of(1)) == ("OK", ""), spec.name
            assert uuid_of(0) in seen.by_component, spec.name
        (first, _) = (await bench.sample()).gpus
    assert first.replays is None, "all bits set is NVML's word for a value that is not there"
    assert first.links is not None
    assert first.links.errors is not None
    assert 0 not in first.links.errors.get("replay", {})
