"""Neighbours and connections: files as Linux 6.18 and 4.18 have them, and the real table."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.checks import net_tables
from nodeagent.checks.base import Off
from nodeagent.model import Status
from nodeagent.sources.host import HostRoots
from nodeagent.sources.net_tables import neighbours, parse_stat
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
from tests.agent.real_disks import run
from tests.support.present import present

OK, FULL = (Status.OK, ""), (Status.FAILED, "full")
FILLING = (Status.DEGRADED, "filling")
ARP = """\
entries  allocs   destroys hash_grows lookups  hits     res_failed table_fulls
{0:08x} 0000007d 0000008f 00000000   000002ae 0000013e 00000014   {1:08x}
{0:08x} 00000086 00000072 00000000   00000323 00000152 00000016   00000000
"""
CONNTRACK = """\
entries  clashres found new invalid ignore delete chainlength insert insert_failed drop early_drop
{0:08x}  00000000 00000000 00000000 00000a2e 0 00000000 00000000 00000000 00000000 {1:08x} 00000000
"""


def filled(
    machine: HostRoots, arp: int = 0, fulls: int = 0, tracked: int = 0, drop: int = 0
) -> None:
    files = {
        "net/stat/arp_cache": ARP.format(arp, fulls),
        "net/stat/nf_conntrack": CONNTRACK.format(tracked, drop),
        "sys/net/ipv4/neigh/default/gc_thresh3": "1024\n",
        "sys/net/netfilter/nf_conntrack_count": f"{tracked}\n",
        "sys/net/netfilter/nf_conntrack_max": "262144\n",
    }
    for name, text in files.items():
        path = machine.proc / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


async def test_tables_fill_overflow_and_recover(tmp_path: Path) -> None:
    clock = HandClock()
    machine = made_up(tmp_path, clock)
    check = built(net_tables.SPEC, sources(machine), options(net_tables.SPEC))
    assert isinstance(await check.run_check(), Off)
    filled(machine, arp=100, fulls=7, tracked=1000, drop=3)
    assert verdicts(await check.run_check()) == {"neighbours-ipv4": OK, "conntrack": OK}
    clock.now += 60
    filled(machine, arp=900, fulls=7, tracked=262144, drop=3)
    assert verdicts(await check.run_check()) == {"neighbours-ipv4": FILLING, "conntrack": FULL}
    clock.now += 60
    filled(machine, arp=900, fulls=0x17, tracked=10, drop=3)
    report = await check.run_check()
    assert verdicts(report) == {"neighbours-ipv4": FULL, "conntrack": OK}
    assert observations(report)["neighbours-ipv4"].message == (
        "900 of 1024 entries, 88 %; 16 found no place in 10 minutes"
    )
    clock.now += 600
    filled(machine, arp=100, fulls=0x17)
    assert verdicts(await check.run_check()) == {"neighbours-ipv4": OK, "conntrack": OK}
    shutil.rmtree(machine.proc / "sys/net/netfilter")  # the module was unloaded
    assert verdicts(await check.run_check()) == {"neighbours-ipv4": OK}


@given(st.text())
def test_garbage_is_no_table(text: str) -> None:
    for column in parse_stat(text).values():
        assert column


def test_lines_that_do_not_fit_are_no_table() -> None:
    assert parse_stat("entries drop\n1 2\n3\n") == {}
    assert parse_stat("entries drop\n1 what?\n") == {}
    assert parse_stat("entries drop\na 2\n1 10\n") == {"entries": [10, 1], "drop": [2, 16]}


async def test_this_machine_has_a_table_of_neighbours() -> None:
    if neighbours(this_machine(), "ipv4") is None:
        pytest.skip("not in the host's network namespace")
    check = built(net_tables.SPEC, sources(this_machine()), options(net_tables.SPEC))
    assert "neighbours-ipv4" in verdicts(await check.run_check())


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("ip") is None, reason="needs root and ip")
def test_real_neighbours_are_counted_whatever_their_namespace() -> None:
    if (before := neighbours(this_machine(), "ipv4")) is None:
        pytest.skip("not in the host's network namespace")
    name = f"sickbay-t{os.getpid()}"
    run("ip", "netns", "add", name)
    try:
        inside = ("ip", "-netns", name)
        run(*inside, "link", "add", "nic", "type", "veth", "peer", "name", "port")
        run(*inside, "link", "set", "nic", "up")
        lines = "".join(
            f"neigh add 10.77.1.{host} lladdr 02:00:00:00:00:01 dev nic nud permanent\n"
            for host in range(1, 201)
        )
        subprocess.run([*inside, "-batch", "-"], input=lines, text=True, check=True)
        after = present(neighbours(this_machine(), "ipv4"))
        assert after.entries >= before.entries + 150  # others come and go
    finally:
        run("ip", "netns", "delete", name)
