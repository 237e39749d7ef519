"""Any content from the kernel: garbage in procfs and sysfs, and files that vanish.

A check may say that it does not know. It may not raise: the scheduler would say "check-error", and
what else it could have seen would be lost with it.
"""

import asyncio
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nodeagent.checks import registry
from nodeagent.checks.base import CheckSpec
from nodeagent.sources.host import HostRoots
from tests.agent.damage import REFUSED, fill
from tests.agent.kernel_log import GPU, HandClock
from tests.agent.machines import options, sources
from tests.support.folders import fresh_folder

#: Checks that read procfs and sysfs alone: no device, no network and no other process is asked.
FILE_CHECKS = [
    spec
    for spec in registry.SPECS
    if spec.name
    in {
        *("disk-ext4", "disk-md", "disk-readonly", "infiniband", "memory", "nic-health"),
        *("net-tables", "nic-link", "pressure", "processes", "reboot"),
    }
]

#: Every file that they read.
FILES = (
    *("proc/meminfo", "proc/mdstat", "proc/self/mountinfo", "proc/uptime", "proc/loadavg"),
    *("proc/pressure/cpu", "proc/pressure/io", "proc/pressure/memory", "proc/17/stat"),
    *("proc/17/status", "proc/17/wchan", "proc/net/dev", "proc/net/route"),
    *(f"sys/class/net/eth0/{name}" for name in ("carrier", "operstate", "speed", "flags")),
    *(f"sys/class/net/eth0/{name}" for name in ("carrier_changes", "carrier_down_count", "type")),
    *(f"sys/class/net/eth0/statistics/{name}" for name in ("rx_errors", "tx_errors")),
    *("sys/class/net/eth0/device/vendor", "sys/dev/block/8:1/partition", "sys/dev/block/8:1/size"),
    *("sys/fs/ext4/sda1/errors_count", "sys/block/md0/md/array_state", "sys/block/md0/md/degraded"),
    *(f"sys/class/infiniband/mlx5_0/ports/1/{name}" for name in ("state", "phys_state", "rate")),
    *(f"sys/class/infiniband/mlx5_0/ports/1/counters/{name}" for name in ("link_downed",)),
    *(f"sys/bus/pci/devices/{GPU}.0/{name}" for name in ("vendor", "class")),
    *("proc/net/stat/arp_cache", "proc/net/stat/ndisc_cache", "proc/net/stat/nf_conntrack"),
    *(f"proc/sys/net/{family}/neigh/default/gc_thresh3" for family in ("ipv4", "ipv6")),
    *(f"proc/sys/net/netfilter/nf_conntrack_{name}" for name in ("count", "max")),
    *(f"sys/fs/ext4/sda1/last_error_{name}" for name in ("time", "func")),
    *(f"sys/block/md0/md/{name}" for name in ("level", "raid_disks", "sync_completed")),
    "sys/fs/pstore/dmesg-efi-1",
)

#: Starts that get past a reader's first look.
STARTS = (
    *(
        b"",
        b"0",
        b"-1",
        b"MemTotal:  ",
        b"some avg10=",
        b"1 0 8:1 / /data rw - ext4 /dev/sda1 rw\n",
    ),
    *(b"17 (a) b) D 1 ", b"4: ACTIVE", b"md0 : active raid1 sda1[0] sdb1[1](F)\n", b"99" * 40),
)

content = st.one_of(
    st.tuples(st.sampled_from(STARTS), st.binary(max_size=80)).map(b"".join),
    # With None there is no file. "refused": a real file of sysfs whose every read is EINVAL.
    # "gone": listed and no longer there when it is opened. "folder": a read of it is EISDIR.
    st.sampled_from([None, "refused", "gone", "folder"]),
)


def a_machine(root: Path, files: dict[str, bytes | str | None]) -> HostRoots:
    for name in ("proc/self", "sys"):
        (root / name).mkdir(parents=True, exist_ok=True)
    fill(root, files)
    return HostRoots(clock=HandClock(), proc=root / "proc", sys=root / "sys")


def test_a_refused_file_is_one() -> None:
    with pytest.raises(OSError, match="Invalid argument"):
        REFUSED.read_text()


@pytest.mark.parametrize("spec", FILE_CHECKS, ids=lambda spec: str(spec.name))
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(files=st.fixed_dictionaries(dict.fromkeys(FILES, content)))
def test_no_file_breaks_a_check(
    tmp_path_factory: pytest.TempPathFactory, spec: CheckSpec, files: dict[str, bytes | str | None]
) -> None:
    machine = a_machine(fresh_folder(tmp_path_factory, "machine"), files)
    check = spec.build(sources(machine), options(spec))

    async def looks() -> None:
        # Twice: counters and baselines matter from the second look on.
        for _ in range(2):
            await check.run_check()  # type: ignore[union-attr]  # it has an interval, so it is a Check

    asyncio.run(looks())
