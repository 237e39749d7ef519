"""Ports that have a link: speed, errors, drops. On files as sysfs has them, and on a real veth."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from nodeagent.checks import nic_health, nic_link
from nodeagent.checks.base import Off
from nodeagent.model import Status
from nodeagent.sources.disk_probe import DiskProbe, Hung, Result
from nodeagent.sources.host import HostRoots
from nodeagent.sources.network import Link
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


def port(machine: HostRoots, name: str = "eth0", **files: object) -> Path:
    """A physical port; ``files`` of its folder, and of ``statistics`` where they belong."""
    folder = machine.sys / "class/net" / name
    (folder / "statistics").mkdir(parents=True, exist_ok=True)
    (folder / "device").mkdir(exist_ok=True)
    values = {"flags": "0x1003", "operstate": "up", "carrier_up_count": 1, "type": 1}
    values |= {"carrier_down_count": 0, "speed": 100000}
    counters = dict.fromkeys(("rx_packets", "tx_packets", "rx_errors", "tx_errors"), 0)
    counters |= {"rx_missed_errors": 0, "tx_dropped": 0}
    for file, value in (values | counters | files).items():
        inside = folder / "statistics" if file in counters else folder
        (inside / file).write_text(f"{value}\n")
    return folder


async def test_a_port_that_comes_back_slower_is_told_and_again_when_well(tmp_path: Path) -> None:
    machine = made_up(tmp_path)
    port(machine)
    port(machine, "eth1", speed=-1)
    (port(machine, "eth2") / "speed").unlink()
    check = built(nic_health.SPEC, sources(machine), options(nic_health.SPEC))
    report = await check.run_check()
    assert verdicts(report) == {"eth0": OK, "eth1": OK, "eth2": OK}
    assert observations(report)["eth0"].message == "100 Gbit/s"
    port(machine, speed=25000)  # the driver would say so with a new link only
    assert verdicts(await check.run_check())["eth0"] == OK
    port(machine, speed=25000, carrier_up_count=2)
    report = await check.run_check()
    assert verdicts(report)["eth0"] == (Status.DEGRADED, "slow")
    assert observations(report)["eth0"].message == "25 Gbit/s, and it was 100 Gbit/s before"
    port(machine, carrier_up_count=3)
    assert verdicts(await check.run_check())["eth0"] == OK
    port(machine, carrier_up_count=3, operstate="down")
    assert verdicts(await check.run_check())["eth0"] == OK, "nic-link's business"


async def test_errors_count_for_ten_minutes_and_a_new_driver_is_no_rate(tmp_path: Path) -> None:
    clock = HandClock()
    machine = made_up(tmp_path, clock)
    port(machine, rx_packets=10**9, rx_errors=10**6)
    check = built(nic_health.SPEC, sources(machine), options(nic_health.SPEC))
    assert verdicts(await check.run_check()) == {"eth0": OK}, "nobody knows when those were"
    clock.now += 60
    port(machine, rx_packets=10**9 + 10_000, rx_errors=10**6 + 5000)
    assert verdicts(await check.run_check()) == {"eth0": (Status.FAILED, "errors")}
    clock.now += 60
    port(machine, rx_packets=0, rx_errors=0)  # the driver was loaded anew
    assert verdicts(await check.run_check()) == {"eth0": (Status.FAILED, "errors")}
    clock.now += 600
    port(machine, rx_packets=50, rx_errors=0)
    assert verdicts(await check.run_check()) == {"eth0": OK}


class Stuck(DiskProbe):
    """A driver that hangs while eth0's speed is asked; ``seconds`` so far."""

    seconds = 10.0

    async def files(self, groups: Sequence[Sequence[str]]) -> list[Result]:
        found = await super().files(groups)
        stuck = Hung(self.seconds, "D in dev_ioctl")
        return [
            stuck if "/eth0/" in group[0] else answer
            for group, answer in zip(groups, found, strict=True)
        ]


async def test_a_driver_that_hangs_is_told_with_where_and_asked_again(tmp_path: Path) -> None:
    machine = made_up(tmp_path)
    port(machine)
    port(machine, "eth1")
    probe = Stuck(machine=machine)
    check = built(nic_health.SPEC, replace(sources(machine), disk=probe), options(nic_health.SPEC))
    report = await check.run_check()
    assert verdicts(report) == {"eth0": (Status.DEGRADED, "hung"), "eth1": OK}
    assert "D in dev_ioctl" in observations(report)["eth0"].message
    probe.seconds = 70.0
    assert verdicts(await check.run_check())["eth0"] == (Status.FAILED, "hung")


async def test_ports_that_go_and_half_a_port(tmp_path: Path) -> None:
    machine = made_up(tmp_path)
    check = built(nic_health.SPEC, sources(machine), options(nic_health.SPEC))
    assert verdicts(await check.run_check()) == {"": (Status.UNKNOWN, "no-sysfs")}
    folder = port(machine)
    assert verdicts(await check.run_check()) == {"eth0": OK}
    (folder / "statistics/rx_packets").write_text("what?")
    (folder / "speed").write_text("\x00\xff")
    assert verdicts(await check.run_check()) == {"eth0": OK}
    folder.rename(tmp_path / "moved-into-a-pod")
    assert isinstance(await check.run_check(), Off)


async def test_this_machine_survives_a_look() -> None:
    check = built(nic_health.SPEC, sources(this_machine()), options(nic_health.SPEC))
    assert isinstance(await check.run_check(), Off | list)


@pytest.mark.parametrize(
    ("lost", "carrier", "verdict"),
    [
        (2, True, OK),
        (3, True, (Status.DEGRADED, "flapping")),
        (9, False, (Status.FAILED, "link-down")),
    ],
)
def test_flapping_is_degraded_and_down_is_worse(
    *, lost: int, carrier: bool, verdict: tuple[Status, str]
) -> None:
    link = Link("eth0", enabled=True, state="up" if carrier else "down", times_up=9)
    found = nic_link.evaluate(link, seen_up=True, named=False, lost=lost)
    assert (found.status, found.reason) == verdict


async def test_a_link_that_goes_between_two_looks_is_counted(tmp_path: Path) -> None:
    clock = HandClock()
    machine = made_up(tmp_path, clock)
    port(machine, carrier_down_count=40)
    check = built(nic_link.SPEC, sources(machine), options(nic_link.SPEC))
    assert verdicts(await check.run_check()) == {"eth0": OK}
    clock.now += 10
    port(machine, carrier_down_count=43)
    report = await check.run_check()
    assert verdicts(report) == {"eth0": (Status.DEGRADED, "flapping")}
    assert "lost its link 3 times in 10 minutes" in observations(report)["eth0"].message
    clock.now += 600
    assert verdicts(await check.run_check()) == {"eth0": OK}
