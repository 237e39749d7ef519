"""InfiniBand and RoCE ports, from trees as mlx5 and others make them in sysfs."""

import errno
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.checks import infiniband
from nodeagent.checks.base import Off
from nodeagent.evidence.latch import Latch
from nodeagent.local.ready import readiness
from nodeagent.model import Status
from nodeagent.sources.disk_probe import DiskProbe, Files, Hung, Result
from nodeagent.sources.host import HostRoots
from nodeagent.sources.infiniband import COUNTERS, Port, parse_port
from tests.agent.kernel_log import HandClock
from tests.agent.machines import (
    built,
    made_up,
    observations,
    options,
    sources,
    this_machine,
    verdicts,
)

OK = (Status.OK, "")
DOWN, MISSING = (Status.FAILED, "link-down"), (Status.FAILED, "missing")


def device(machine: HostRoots, name: str, pci: str, ports: int = 1) -> list[Path]:
    """An adapter, up and well; the folders of its ports."""
    on_bus = machine.sys / "bus/pci/devices" / pci
    on_bus.mkdir(parents=True)
    folder = machine.sys / "class/infiniband" / name
    folder.mkdir(parents=True)
    (folder / "device").symlink_to(on_bus)
    found = [folder / "ports" / str(number + 1) for number in range(ports)]
    for port in found:
        (port / "counters").mkdir(parents=True)
        (port / "hw_counters").mkdir()
        write_counters(port, state="4: ACTIVE", phys_state="5: LinkUp", link_layer="InfiniBand")
        write_counters(port, rate="400 Gb/sec (4X NDR)", **dict.fromkeys(COUNTERS, "0"))
    return found


def write_counters(port: Path, **files: str) -> None:
    for name, text in files.items():
        (port / COUNTERS.get(name, "") / name).write_text(f"{text}\n")


def built_here(machine: HostRoots, **settings: object) -> infiniband.Infiniband:
    check: infiniband.Infiniband = built(
        infiniband.SPEC, sources(machine), options(infiniband.SPEC, **settings)
    )
    return check


ACTIVE = Port("ACTIVE", "LinkUp", 400, ethernet=False, counters={})
POLLING = replace(ACTIVE, state="DOWN", physical="Polling")
DISABLED = replace(ACTIVE, state="DOWN", physical="Disabled")
UNUSED = ": never up, not in use"
MANAGER, CABLE = ": is a subnet manager running?", ": cable, transceiver or switch port"


@pytest.mark.parametrize(
    ("port", "used", "named", "verdict", "words"),
    [
        (ACTIVE, True, False, None, ""),
        (replace(ACTIVE, state="ACTIVE_DEFER"), True, False, None, ""),
        (replace(POLLING, physical=""), False, False, OK, UNUSED),
        (POLLING, True, False, DOWN, CABLE),
        (POLLING, False, False, OK, UNUSED),
        (POLLING, False, True, DOWN, CABLE),
        (replace(ACTIVE, state="INIT"), True, False, (Status.FAILED, "inactive"), MANAGER),
        (replace(ACTIVE, state="ARMED"), False, True, (Status.FAILED, "inactive"), MANAGER),
        (replace(ACTIVE, state="INIT"), False, False, OK, UNUSED),
        (replace(ACTIVE, state="DOWN", ethernet=True), True, False, DOWN, CABLE),
        (DISABLED, False, False, OK, ""),
        (DISABLED, True, False, (Status.UNKNOWN, "disabled"), ""),
        (DISABLED, True, True, DOWN, CABLE),
    ],
)
def test_links(
    *, port: Port, used: bool, named: bool, verdict: tuple[Status, str] | None, words: str
) -> None:
    found = infiniband.evaluate_link("mlx5_0/1", port, used=used, named=named)
    assert (found and (found.status, found.reason)) == verdict
    if found is not None:
        message = f"state {port.state}, physical state {port.physical or 'not reported'}{words}"
        assert (found.check, found.component) == ("infiniband", "mlx5_0/1")
        assert found.message == message


@given(st.dictionaries(st.sampled_from(["state", "phys_state", "rate", *COUNTERS]), st.text()))
def test_garbage_is_survived(values: dict[str, str]) -> None:
    port = parse_port(values)
    assert port is None or port.rate >= 0


async def test_an_adapter_with_a_spare_port_and_a_virtual_function(tmp_path: Path) -> None:
    machine = made_up(tmp_path)
    assert isinstance(await built_here(machine).run_check(), Off)
    first, spare = device(machine, "mlx5_0", "0000:3b:00.0", ports=2)
    write_counters(spare, state="1: DOWN", phys_state="3: Disabled")
    device(machine, "mlx5_9", "0000:3b:01.0")
    (machine.sys / "bus/pci/devices/0000:3b:01.0/physfn").mkdir()
    check = built_here(machine)
    report = await check.run_check()
    assert verdicts(report) == {"mlx5_0/1": OK, "mlx5_0/2": OK}
    assert observations(report)["mlx5_0/1"].message == "InfiniBand, 400 Gbit/s"
    write_counters(first, state="1: DOWN", phys_state="2: Polling")
    assert verdicts(await check.run_check())["mlx5_0/1"] == DOWN
    write_counters(first, state="4: ACTIVE", phys_state="5: LinkUp", rate="100 Gb/sec (1X NDR)")
    assert verdicts(await check.run_check())["mlx5_0/1"] == (Status.DEGRADED, "slow")


async def test_representors_and_subfunctions_are_no_ports(tmp_path: Path) -> None:
    machine = made_up(tmp_path)
    assert isinstance(await built_here(machine).run_check(), Off)
    device(machine, "mlx5_0", "0000:3b:00.0", ports=3)
    card = machine.sys / "bus/pci/devices/0000:3b:00.0"
    for name in ("p0", "vf0_rep", "vf1_rep"):
        (card / "net" / name).mkdir(parents=True)
        (card / "net" / name / "dev_port").write_text("0\n")
    device(machine, "mlx5_2", "0000:4b:00.0")
    (machine.sys / "bus/pci/devices/0000:4b:00.0/sfnum").write_text("88\n")
    device(machine, "mlx4_0", "0000:5b:00.0", ports=2)
    for name in ("ib0", "ib1"):
        folder = machine.sys / "bus/pci/devices/0000:5b:00.0/net" / name
        folder.mkdir(parents=True)
        (folder / "dev_port").write_text(f"{name[-1]}\n")
    report = verdicts(await built_here(machine).run_check())
    assert set(report) == {"mlx5_0/1", "mlx4_0/1", "mlx4_0/2"}


async def test_a_restarted_agent_still_knows_that_the_port_was_up(tmp_path: Path) -> None:
    machine = made_up(tmp_path)
    [port] = device(machine, "mlx5_0", "0000:3b:00.0")
    write_counters(port, state="1: DOWN", phys_state="2: Polling", link_downed="1")
    assert verdicts(await built_here(machine).run_check()) == {"mlx5_0/1": DOWN}


async def test_counters_count_by_the_hour_and_survive_their_reset(tmp_path: Path) -> None:
    clock = HandClock()
    machine = made_up(tmp_path, clock)
    [port] = device(machine, "mlx5_0", "0000:3b:00.0")
    write_counters(port, symbol_error="4000", link_downed="3")
    check = built_here(machine)
    assert verdicts(await check.run_check()) == {"mlx5_0/1": OK}, "nobody knows when those were"
    clock.now += 30
    write_counters(port, symbol_error="4130")
    report = await check.run_check()
    assert verdicts(report) == {"mlx5_0/1": (Status.FAILED, "errors")}
    assert observations(report)["mlx5_0/1"].message == "130 symbol_error within an hour"
    clock.now += 30
    write_counters(port, symbol_error="0", link_downed="0")  # a person cleared them
    assert verdicts(await check.run_check()) == {"mlx5_0/1": (Status.FAILED, "errors")}
    clock.now += 3600
    assert verdicts(await check.run_check()) == {"mlx5_0/1": OK}


async def test_an_adapter_off_the_bus_is_missing_and_one_in_a_pod_is_gone(tmp_path: Path) -> None:
    machine = made_up(tmp_path)
    device(machine, "mlx5_0", "0000:3b:00.0")
    device(machine, "mlx5_1", "0000:5e:00.0")
    check = built_here(machine)
    await check.run_check()
    for name in ("mlx5_0", "mlx5_1"):
        (machine.sys / "class/infiniband" / name).rename(tmp_path / name)
    (machine.sys / "bus/pci/devices/0000:3b:00.0").rename(tmp_path / "pci")
    report = await check.run_check()
    assert verdicts(report) == {"mlx5_0/1": MISSING}
    assert verdicts(await check.run_check()) == {"mlx5_0/1": MISSING}
    (tmp_path / "pci").rename(machine.sys / "bus/pci/devices/0000:3b:00.0")
    (tmp_path / "mlx5_0").rename(machine.sys / "class/infiniband/mlx5_0")
    assert verdicts(await check.run_check()) == {"mlx5_0/1": OK}


@pytest.mark.parametrize("is_read_last", [True, False])
@pytest.mark.parametrize(("layer", "is_missed"), [("InfiniBand", True), ("Ethernet", False)])
async def test_an_ethernet_adapter_that_hyper_v_takes_away_is_not_missing(
    tmp_path: Path, layer: str, *, is_missed: bool, is_read_last: bool
) -> None:
    machine = made_up(tmp_path)
    (machine.sys / "bus/vmbus/drivers/hv_netvsc").mkdir(parents=True)
    [port] = device(machine, "mlx5_0", "0000:3b:00.0")
    write_counters(port, link_layer=layer)
    check = built_here(machine)
    assert verdicts(await check.run_check()) == {"mlx5_0/1": OK}
    if not is_read_last:
        (port / "state").unlink()
        assert verdicts(await check.run_check())["mlx5_0/1"][0] is Status.UNKNOWN
    (machine.sys / "class/infiniband/mlx5_0").rename(tmp_path / "mlx5_0")
    (machine.sys / "bus/pci/devices/0000:3b:00.0").rename(tmp_path / "pci")
    report = await check.run_check()
    assert (verdicts(report) if is_missed else report) == (
        {"mlx5_0/1": MISSING} if is_missed else Off("no InfiniBand or RoCE device")
    )
    assert ("mlx5_0/1" in check._counters) == is_missed, "an adapter that is gone has no memory"


class Asked(DiskProbe):
    """Reads for real, records the requests, refuses one file and may hang."""

    def __init__(self, machine: HostRoots) -> None:
        super().__init__(machine=machine)
        self.names: list[str] = []
        self.hangs: Hung | None = None

    async def files(self, groups: Sequence[Sequence[str]]) -> list[Result]:
        if self.hangs:
            return [self.hangs for _ in groups]
        self.names = [Path(path).name for group in groups for path in group]
        found: list[Result] = []
        for group, answer in zip(groups, await super().files(groups), strict=True):
            assert isinstance(answer, Files)
            named = zip(group, answer.contents, strict=True)
            found.append(
                Files(tuple(errno.EINVAL if p.endswith("symbol_error") else c for p, c in named))
            )
        return found


async def test_a_file_that_is_refused_is_asked_for_once(tmp_path: Path) -> None:
    machine = made_up(tmp_path)
    device(machine, "mlx5_0", "0000:3b:00.0")
    probe = Asked(machine)
    found = replace(sources(machine), disk=probe)
    check = built(infiniband.SPEC, found, options(infiniband.SPEC))
    assert verdicts(await check.run_check()) == {"mlx5_0/1": OK}
    assert "symbol_error" in probe.names
    assert verdicts(await check.run_check()) == {"mlx5_0/1": OK}
    assert "symbol_error" not in probe.names
    assert "link_downed" in probe.names
    probe.hangs = Hung(12.0, "D in mlx5_cmd_exec")
    report = await check.run_check()
    assert verdicts(report) == {"mlx5_0/1": (Status.DEGRADED, "hung")}
    assert "D in mlx5_cmd_exec" in observations(report)["mlx5_0/1"].message


async def test_half_a_port_is_survived(tmp_path: Path) -> None:
    machine = made_up(tmp_path)
    [port] = device(machine, "mlx5_0", "0000:3b:00.0")
    write_counters(port, symbol_error="N/A (no PMA)", rate="what?")
    (port / "phys_state").unlink()
    assert verdicts(await built_here(machine).run_check()) == {"mlx5_0/1": OK}
    (port / "state").unlink()
    assert verdicts(await built_here(machine).run_check()) == {
        "mlx5_0/1": (Status.UNKNOWN, "not-reported")
    }


async def test_this_machine_survives_a_look() -> None:
    assert isinstance(await built_here(this_machine()).run_check(), Off | list)


async def test_a_port_that_another_adapter_s_name_was_given_to_has_no_past(tmp_path: Path) -> None:
    machine = made_up(tmp_path)
    device(machine, "mlx5_0", "0000:3b:00.0")
    [spare] = device(machine, "mlx5_1", "0000:5b:00.0")
    write_counters(spare, state="1: DOWN", phys_state="2: Polling")
    check = built_here(machine)
    assert verdicts(await check.run_check()) == {"mlx5_0/1": OK, "mlx5_1/1": OK}
    names = machine.sys / "class/infiniband"
    (names / "mlx5_0").rename(names / "between")
    (names / "mlx5_1").rename(names / "mlx5_0")
    (names / "between").rename(names / "mlx5_1")
    report = await check.run_check()
    assert verdicts(report) == {"mlx5_0/1": OK, "mlx5_1/1": OK}
    assert observations(report)["mlx5_0/1"].message.endswith(UNUSED)


async def test_a_port_may_train_for_long_after_a_boot(tmp_path: Path) -> None:
    """Its count of lost links may be from before the boot."""
    clock = HandClock(60.0)
    machine = made_up(tmp_path, clock)
    [port] = device(machine, "mlx5_0", "0000:3b:00.0")
    write_counters(port, state="1: DOWN", phys_state="2: Polling", link_downed="1")
    late = (Status.UNKNOWN, "not-up-yet")
    unnamed = built_here(machine)
    write_counters(port, link_downed="0")
    assert verdicts(await unnamed.run_check()) == {"mlx5_0/1": OK}, "never up"
    write_counters(port, link_downed="1")
    assert verdicts(await unnamed.run_check()) == {"mlx5_0/1": late}
    check = built_here(machine, devices=("mlx5_0", "mlx5_9"))
    report, latch = await check.run_check(), Latch(boot_id="boot-a", epoch="e")
    assert verdicts(report) == {"mlx5_0/1": late, "mlx5_9": late}
    latch.apply([*observations(report).values()], clock.now)
    found = readiness(latch, node="node-a", now=clock.now, without={"mlx5_9"})
    assert [(one.component, one.code) for one in found.against] == [("mlx5_0/1", "not-up-yet")]
    write_counters(port, state="4: ACTIVE", phys_state="5: LinkUp")
    assert verdicts(await check.run_check())["mlx5_0/1"] == (Status.OK, "")
    write_counters(port, state="1: DOWN", phys_state="2: Polling", link_downed="2")
    assert verdicts(await check.run_check())["mlx5_0/1"] == DOWN
    clock.now = 1201.0
    assert verdicts(await built_here(machine).run_check()) == {"mlx5_0/1": DOWN}
