"""Links, routes, targets: the parsers and the verdicts, and TCP on the loopback."""

import asyncio
import contextlib
import shutil
import socket
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.checks import nic_link, reach
from nodeagent.checks.base import Off
from nodeagent.clock import SystemClock
from nodeagent.model import Status
from nodeagent.sources import neighbour_child
from nodeagent.sources.network import (
    DefaultRoute,
    Link,
    PhysicalLinks,
    default_routes,
    parse_ipv4,
    parse_ipv6,
)
from nodeagent.sources.tcp_probe import ResolveError, Resolver
from tests.agent.http_server import Request, response, serving
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
from tests.support.text_files import text_file

OK = (Status.OK, "")

HEAD = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n"
BOND = "bond0\t00000000\t0101A8C0\t0003\t0\t0\t100\t00000000\t0\t0\t0\n"
WLAN = "eth9\t00000000\tFE01A8C0\t0003\t0\t0\t600\t00000000\t0\t0\t0\n"
LAN = "bond0\t0001A8C0\t00000000\t0001\t0\t0\t100\t00FFFFFF\t0\t0\t0\n"
REJECT = "*\t00000000\t00000000\t0201\t0\t0\t1\t00000000\t0\t0\t0\n"
BLACKHOLE = "*\t00000000\t00000000\t0001\t0\t0\t0\t00000000\t0\t0\t0\n"
POINT_TO_POINT = "ppp0\t00000000\t00000000\t0001\t0\t0\t0\t00000000\t0\t0\t0\n"

ZERO = "0" * 32
V6_DEFAULT = f"{ZERO} 00 {ZERO} 00 fe8{'0' * 28}1 00000400 00000001 00000000 00000003     eth0\n"
V6_NONE = f"{ZERO} 00 {ZERO} 00 {ZERO} ffffffff 00000001 00000000 00200200       lo\n"
V6_NET = f"fd{'0' * 30} 40 {ZERO} 00 {ZERO} 00000100 00000001 00000000 00000001     eth0\n"


def test_the_default_routes_of_both_families() -> None:
    assert parse_ipv4(HEAD + BLACKHOLE + BOND + WLAN + LAN + REJECT) == [
        DefaultRoute("bond0", "192.168.1.1", 100),
        DefaultRoute("eth9", "192.168.1.254", 600),
    ]
    assert parse_ipv4(HEAD + POINT_TO_POINT) == [DefaultRoute("ppp0", None, 0)]
    assert parse_ipv6(V6_NET + V6_NONE + V6_DEFAULT) == [DefaultRoute("eth0", "fe80::1", 1024)]


def test_the_smallest_metric_wins_and_a_family_may_be_absent(tmp_path: Path) -> None:
    machine = made_up(tmp_path)
    table = text_file(machine.proc / "net/route", HEAD + WLAN + BOND)
    assert default_routes(machine) == [DefaultRoute("bond0", "192.168.1.1", 100)]
    (machine.proc / "net/ipv6_route").write_text(V6_NONE + V6_DEFAULT)
    assert [route.gateway for route in default_routes(machine)] == ["192.168.1.1", "fe80::1"]
    table.write_text(HEAD + LAN)
    assert [route.gateway for route in default_routes(machine)] == ["fe80::1"]


@given(st.text())
def test_garbage_is_no_route(text: str) -> None:
    parse_ipv4(text)
    parse_ipv6(text)


@pytest.mark.parametrize(
    "text",
    [
        "host",
        "tcp://host",
        "http://user@host/",
        "http://h\u00f6st/",
        "host:0",
        "host:99999",
        "a b:1",
        "::1:80",
    ],
)
def test_bad_targets_are_refused_when_configured(text: str) -> None:
    with pytest.raises(ValueError):
        reach.parse_targets([text])


@pytest.mark.parametrize(
    ("state", "carrier"),
    [
        ("up", True),
        ("unknown", True),  # a driver that does not tell
        ("dormant", True),
        ("down", False),
        ("lowerlayerdown", False),
        ("notpresent", False),
    ],
)
def test_carrier_by_operational_state(*, state: str, carrier: bool) -> None:
    assert Link("eth0", True, state, 1).carrier is carrier
    assert not Link("eth0", False, state, 1).carrier


def test_what_the_kernel_says_of_a_neighbour() -> None:
    """Replies as Linux 6.18 gave them."""
    asked = neighbour_child.question("10.77.0.1", 5)
    assert len(asked) == int.from_bytes(asked[:4], sys.byteorder) == 36
    header = bytes.fromhex("4c000000 1c00 0000 01000000 00000000")
    reply = header + bytes.fromhex("02000000 05000000 0200 00 01 08000100 0a4d0001")
    assert neighbour_child.read_reply(reply) == "reachable"
    refused = bytes.fromhex("24000000 0200 0000 01000000 00000000 feffffff")
    assert neighbour_child.read_reply(refused) == "absent"
    with pytest.raises(OSError, match="not supported"):
        neighbour_child.read_reply(refused[:16] + (-95).to_bytes(4, sys.byteorder, signed=True))


@given(st.binary(max_size=64))
def test_a_garbled_reply_is_an_error_and_no_crash(reply: bytes) -> None:
    with contextlib.suppress(OSError):
        neighbour_child.read_reply(reply)


def nic(sys: Path, name: str, *, device: bool = True, **files: object) -> Path:
    """An interface as sysfs shows it."""
    folder = sys / "class/net" / name
    folder.mkdir(parents=True)
    if device:
        (folder / "device").mkdir()
    values = {"flags": "0x1003", "operstate": "up", "carrier_up_count": 1, "type": 1}
    for file, value in (values | files).items():
        (folder / file).write_text(f"{value}\n")
    return folder


async def test_physical_ports_are_watched_and_virtual_ones_are_not(tmp_path: Path) -> None:
    machine = made_up(tmp_path)
    eth0 = nic(machine.sys, "eth0")
    nic(machine.sys, "ib0", type=32)
    nic(machine.sys, "spare", operstate="down", carrier_up_count=0)
    nic(machine.sys, "lo", device=False, type=772)
    nic(machine.sys, "veth1", device=False)
    (nic(machine.sys, "eth0v1") / "device/physfn").mkdir()
    check = built(nic_link.SPEC, sources(machine), options(nic_link.SPEC, exclude=("nothing",)))
    assert verdicts(await check.run_check()) == {"eth0": OK, "ib0": OK, "spare": OK}
    (eth0 / "operstate").write_text("down\n")
    assert verdicts(await check.run_check())["eth0"] == (Status.FAILED, "link-down")
    eth0.rename(tmp_path / "moved-into-a-pod")
    assert "eth0" not in verdicts(await check.run_check())


def test_ports_are_neither_representors_nor_functions_nor_of_a_bmc(tmp_path: Path) -> None:
    """An adapter in switchdev mode: two ports on one function, and what is on their devices."""
    machine = made_up(tmp_path)
    card = machine.sys / "bus/pci/devices/0000:3b:00.0"
    numbers = {"p0": (3, 0), "p1": (4, 1), "vf0_rep": (7, 0), "sf9_rep": (9, 1), "ib0.8001": (8, 0)}
    for name, (index, port) in numbers.items():
        folder = nic(machine.sys, name, device=False, ifindex=index, dev_port=port)
        (folder / "device").symlink_to(card)
        (card / "net").mkdir(parents=True, exist_ok=True)
        (card / "net" / name).symlink_to(folder)
    (nic(machine.sys, "sf9", ifindex=10) / "device/sfnum").write_text("9\n")
    usb = machine.sys / "bus/usb/devices/1-14.1:2.0"
    usb.mkdir(parents=True)
    (nic(machine.sys, "bmc_redfish0", device=False) / "device").symlink_to(usb)
    (nic(machine.sys, "wlp3s0", ifindex=11) / "phy80211").mkdir()
    assert [link.name for link in PhysicalLinks(machine).read()] == ["p0", "p1"]


def test_an_interface_is_looked_at_once_for_its_device_and_another_of_its_name_again(
    tmp_path: Path,
) -> None:
    machine = made_up(tmp_path)
    eth0 = nic(machine.sys, "eth0")
    nic(machine.sys, "veth1", device=False)
    links = PhysicalLinks(machine)
    assert [link.name for link in links.read()] == ["eth0"]
    (eth0 / "device").rmdir()
    assert [link.name for link in links.read()] == ["eth0"], "sysfs gives no device back"
    eth0.rename(tmp_path / "moved-into-a-pod")
    nic(machine.sys, "eth0", device=False)
    assert links.read() == []


def test_an_interface_whose_type_could_not_be_read_is_looked_at_again(tmp_path: Path) -> None:
    machine = made_up(tmp_path)
    kind = nic(machine.sys, "eth0") / "type"
    kind.rename(kind.with_name("later"))
    links = PhysicalLinks(machine)
    assert links.read() == []
    kind.with_name("later").rename(kind)
    assert [link.name for link in links.read()] == ["eth0"]


async def test_names_that_two_ports_have_exchanged_take_no_past_along(tmp_path: Path) -> None:
    """As after a driver was loaded anew, where the kernel numbers the interfaces."""
    machine = made_up(tmp_path)
    check = built(nic_link.SPEC, sources(machine), options(nic_link.SPEC))

    def plug(**cards: int) -> None:
        shutil.rmtree(machine.sys / "class/net", ignore_errors=True)
        for name, bus in cards.items():
            card = machine.sys / f"bus/pci/devices/0000:{bus:02x}:00.0"
            card.mkdir(parents=True, exist_ok=True)
            state, count = ("up", 1) if bus == 1 else ("down", 0)
            folder = nic(
                machine.sys, name, device=False, operstate=state, carrier_up_count=count, dev_port=0
            )
            (folder / "device").symlink_to(card)

    plug(eth0=1, eth1=2)
    assert verdicts(await check.run_check()) == {"eth0": OK, "eth1": OK}
    plug(eth0=2, eth1=1)
    assert verdicts(await check.run_check()) == {"eth0": OK, "eth1": OK}
    for file, value in (("operstate", "down"), ("carrier_up_count", "0")):
        (machine.sys / "class/net/eth1" / file).write_text(f"{value}\n")
    assert verdicts(await check.run_check()) == {"eth0": OK, "eth1": (Status.FAILED, "link-down")}


async def test_a_named_port_may_be_late_after_a_boot(tmp_path: Path) -> None:
    clock = HandClock(60.0)
    machine = made_up(tmp_path, clock)
    names = options(nic_link.SPEC, interfaces=("eth0", "eth7"))
    check = built(nic_link.SPEC, sources(machine), names)
    port = nic(machine.sys, "eth0", operstate="down", carrier_up_count=0)
    late = (Status.UNKNOWN, "not-up-yet")
    assert verdicts(await check.run_check()) == {"eth0": late, "eth7": late}
    job = built(nic_link.SPEC, replace(sources(machine), single_run=True), names)
    assert verdicts(await job.run_check())["eth7"] == (Status.FAILED, "missing")
    (port / "operstate").write_text("up\n")
    assert verdicts(await check.run_check())["eth0"] == OK
    (port / "operstate").write_text("down\n")
    assert verdicts(await check.run_check()) == {"eth0": (Status.FAILED, "link-down"), "eth7": late}
    clock.now = 1201.0
    assert verdicts(await check.run_check())["eth7"] == (Status.FAILED, "missing")


async def test_a_port_may_lose_its_link_while_it_is_set_up_after_a_boot(tmp_path: Path) -> None:
    """A bond takes its members down, and fast links train for a minute; then it is a failure."""
    clock = HandClock(60.0)
    machine = made_up(tmp_path, clock)
    port = nic(machine.sys, "eth0", operstate="down", carrier_up_count=0)
    check = built(nic_link.SPEC, sources(machine), options(nic_link.SPEC))
    (port / "flags").write_text("0x1002\n")
    assert verdicts(await check.run_check()) == {"eth0": OK}, "not enabled yet"
    (port / "flags").write_text("0x1003\n")
    assert verdicts(await check.run_check()) == {"eth0": OK}, "never up"
    (port / "carrier_up_count").write_text("1\n")
    assert verdicts(await check.run_check()) == {"eth0": (Status.UNKNOWN, "not-up-yet")}
    (port / "operstate").write_text("up\n")
    assert verdicts(await check.run_check()) == {"eth0": OK}
    (port / "operstate").write_text("down\n")
    assert verdicts(await check.run_check()) == {"eth0": (Status.FAILED, "link-down")}
    clock.now = 1201.0
    again = built(nic_link.SPEC, sources(machine), options(nic_link.SPEC))
    assert verdicts(await again.run_check()) == {"eth0": (Status.FAILED, "link-down")}


async def test_a_restarted_agent_still_knows_that_the_port_was_up(tmp_path: Path) -> None:
    machine = made_up(tmp_path)
    nic(machine.sys, "eth0", operstate="down", carrier_up_count=3)
    check = built(nic_link.SPEC, sources(machine), options(nic_link.SPEC))
    assert verdicts(await check.run_check()) == {"eth0": (Status.FAILED, "link-down")}


async def test_a_port_whose_bond_has_another_link_is_degraded(tmp_path: Path) -> None:
    """A bond exists to survive a switch's upgrade, which would else cordon its whole rack."""
    machine = made_up(tmp_path)
    port = nic(machine.sys, "eth0", operstate="down", carrier_up_count=1)
    bond = nic(machine.sys, "bond0", device=False, carrier=1)
    (port / "master").symlink_to("../bond0")
    check = built(nic_link.SPEC, sources(machine), options(nic_link.SPEC))
    failed = {"eth0": (Status.FAILED, "link-down")}
    assert verdicts(await check.run_check()) == failed, "of a bridge, which has other ports"
    (bond / "bonding").mkdir()
    assert verdicts(await check.run_check()) == {"eth0": (Status.DEGRADED, "link-down")}
    named = built(nic_link.SPEC, sources(machine), options(nic_link.SPEC, interfaces=("eth0",)))
    assert verdicts(await named.run_check()) == failed
    (bond / "carrier").write_text("0\n")
    assert verdicts(await check.run_check()) == failed


async def test_a_named_interface_must_exist(tmp_path: Path) -> None:
    machine = made_up(tmp_path)
    nic(machine.sys, "veth0", device=False)
    names = ("veth0", "eth7")
    check = built(nic_link.SPEC, sources(machine), options(nic_link.SPEC, interfaces=names))
    report = await check.run_check()
    assert verdicts(report) == {"veth0": OK, "eth7": (Status.FAILED, "missing")}
    missing = "named in the configuration, and no such interface"
    assert observations(report)["eth7"].message == missing


async def test_no_port_is_off_and_no_sysfs_is_unknown(tmp_path: Path) -> None:
    machine = made_up(tmp_path)
    check = built(nic_link.SPEC, sources(machine), options(nic_link.SPEC))
    assert verdicts(await check.run_check()) == {"": (Status.UNKNOWN, "no-sysfs")}
    nic(machine.sys, "lo", device=False, type=772)
    assert isinstance(await check.run_check(), Off)


async def test_half_a_port_is_survived(tmp_path: Path) -> None:
    """Files that vanish in mid-read, or hold what they should not."""
    machine = made_up(tmp_path)
    (nic(machine.sys, "eth0", carrier_up_count="what?") / "operstate").unlink()
    (nic(machine.sys, "eth1") / "flags").unlink()
    check = built(nic_link.SPEC, sources(machine), options(nic_link.SPEC))
    assert verdicts(await check.run_check()) == {"eth0": OK}


# -- TCP on the loopback, names through the machine's resolver ---------------------------------


def no_gateway(tmp_path: Path) -> Path:
    machine = made_up(tmp_path)
    (machine.proc / "net/route").write_text(HEAD)
    return tmp_path


def reach_of(tmp_path: Path, *targets: str) -> reach.Reach:
    machine = made_up(no_gateway(tmp_path))
    check: reach.Reach = built(reach.SPEC, sources(machine), options(reach.SPEC, targets=targets))
    return check


async def test_one_failing_target_blames_the_target(
    tmp_path: Path, unused_tcp_port_factory: Callable[[], int]
) -> None:
    closed = unused_tcp_port_factory()
    server = await asyncio.start_server(lambda _, w: w.close(), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server:
        check = reach_of(tmp_path, f"127.0.0.1:{port}", f"localhost:{closed}")
        assert verdicts(await check.run_check()) == {
            f"tcp://127.0.0.1:{port}": OK,
            f"tcp://localhost:{closed}": (Status.FAILED, "refused"),
        }


async def test_a_service_that_takes_no_connection_times_out(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as server:
        port = server.getsockname()[1]
        waiting = []
        # Its queue is full when a connection no longer goes through at once.
        for _ in range(8):
            sock = socket.socket()
            sock.setblocking(False)
            sock.connect_ex(("127.0.0.1", port))
            waiting.append(sock)
        try:
            check = reach_of(tmp_path, f"127.0.0.1:{port}")
            found = verdicts(await check.run_check())
        finally:
            for sock in waiting:
                sock.close()
    assert found == {f"tcp://127.0.0.1:{port}": (Status.FAILED, "timeout")}


@pytest.mark.parametrize(
    ("answer", "verdict"),
    [
        (response("hello"), OK),
        (response("", "302 Found", Location="/elsewhere"), OK),
        (response("", "401 Unauthorized"), OK),
        (response("", "403 Forbidden"), OK),
        (response("", "404 Not Found"), (Status.FAILED, "http-error")),
        (response("", "503 Service Unavailable"), (Status.FAILED, "http-error")),
        (response(b"x" * 200_000), OK),  # the check does not read so much
        (b"SSH-2.0-OpenSSH_9.2\r\n\r\n", (Status.FAILED, "garbled")),
    ],
)
async def test_http_targets(tmp_path: Path, answer: bytes, verdict: tuple[Status, str]) -> None:
    asked: list[Request] = []

    def answering(request: Request) -> bytes:
        asked.append(request)
        return answer

    async with serving(answering) as url:
        port = url.rpartition(":")[2]
        target = f"http://localhost:{port}/ready?x=1"
        assert verdicts(await reach_of(tmp_path, target).run_check()) == {target: verdict}
    [request] = asked
    assert (request.method, request.path) == ("GET", "/ready?x=1")
    assert request.headers["host"] == f"localhost:{port}"


async def test_an_http_target_that_is_not_there(
    tmp_path: Path, unused_tcp_port_factory: Callable[[], int]
) -> None:
    target = f"http://127.0.0.1:{unused_tcp_port_factory()}/"
    found = verdicts(await reach_of(tmp_path, target).run_check())
    assert found == {target: (Status.FAILED, "refused")}


async def test_a_name_without_an_address_is_unresolved(tmp_path: Path) -> None:
    check = reach_of(tmp_path, "nothing.invalid:80")
    assert verdicts(await check.run_check()) == {
        "tcp://nothing.invalid:80": (Status.FAILED, "unresolved")
    }


async def test_nothing_to_reach_is_off(tmp_path: Path) -> None:
    assert isinstance(await reach_of(tmp_path).run_check(), Off)


async def test_no_procfs_is_unknown(tmp_path: Path) -> None:
    check = built(reach.SPEC, sources(made_up(tmp_path)), options(reach.SPEC))
    assert verdicts(await check.run_check()) == {"gateway": (Status.UNKNOWN, "no-procfs")}


class SteppedClock(SystemClock):
    """The machine's clock, put forward by hand."""

    ahead = 0.0

    def boottime(self) -> float:
        return super().boottime() + self.ahead


async def test_names_are_resolved_again_when_old_or_in_doubt_and_kept_when_that_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = SteppedClock()
    resolver = Resolver(clock, keep=300)
    first = await resolver.addresses("localhost")
    assert set(first) <= {"127.0.0.1", "::1"}
    assert first
    with monkeypatch.context() as patched:
        patched.setattr("sys.executable", "/nothing")
        assert await resolver.addresses("localhost") == first
        clock.ahead = 301  # the next look-up fails, and the old answer is used
        assert await resolver.addresses("localhost") == first
        with pytest.raises(ResolveError, match="cannot start"):
            await resolver.addresses("elsewhere")
    resolver.doubt("localhost")
    assert await resolver.addresses("localhost") == first
    assert await resolver.addresses("fd00::1") == ("fd00::1",)


async def test_this_machine_survives_a_look() -> None:
    check = built(nic_link.SPEC, sources(this_machine()), options(nic_link.SPEC))
    assert isinstance(await check.run_check(), Off | list)
