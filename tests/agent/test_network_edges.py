"""The thresholds of the network checks, on them and beside them, and what they remember."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from nodeagent.checks import dns, infiniband, net_tables, nic_health, nic_link, peers, reach
from nodeagent.checks.base import Off
from nodeagent.model import Observation, Status
from nodeagent.sources.disk_probe import DiskProbe, Result
from nodeagent.sources.dns import Reply
from nodeagent.sources.gateway import GatewayReply
from nodeagent.sources.host import HostRoots
from nodeagent.sources.http import HttpError, Response, Url
from nodeagent.sources.infiniband import Place, Port
from nodeagent.sources.net_tables import NetTable
from nodeagent.sources.network import DefaultRoute, Link, Traffic
from nodeagent.sources.tcp_probe import Connection
from tests.agent.kernel_log import HandClock
from tests.agent.machines import built, made_up, observations, options, sources, verdicts
from tests.agent.test_infiniband import device, write_counters
from tests.agent.test_nic_health import port

OK = (Status.OK, "")
DEGRADED, FAILED, UNKNOWN = Status.DEGRADED, Status.FAILED, Status.UNKNOWN


# -- nic-health -----------------------------------------------------------------------------------

LIMITS = nic_health.NicLimits(
    errors_degrade_above=1.0, errors_fail_above=10.0, drops_degrade_above=5.0, least_errors=100
)


@pytest.mark.parametrize(
    ("rose", "verdict", "message"),
    [
        (Traffic(9_900, 100, 0), None, ""),  # one per cent, and no more
        (
            Traffic(9_899, 100, 0),
            (DEGRADED, "errors"),
            "100 damaged frames in 10 minutes, 1 %",
        ),
        (Traffic(0, 99, 0), None, ""),
        (Traffic(900, 100, 0), (DEGRADED, "errors"), "100 damaged frames in 10 minutes, 10 %"),
        (Traffic(899, 100, 0), (FAILED, "errors"), "100 damaged frames in 10 minutes, 10 %"),
        (Traffic(1_900, 0, 100), None, ""),
        (Traffic(1_899, 0, 100), (DEGRADED, "drops"), "100 frames dropped in 10 minutes, 5 %"),
        (Traffic(0, 0, 99), None, ""),
        (Traffic(0, 99, 100), (DEGRADED, "drops"), "100 frames dropped in 10 minutes, 50 %"),
        (Traffic(100, 100, 100), (FAILED, "errors"), "100 damaged frames in 10 minutes, 33 %"),
    ],
)
def test_traffic_on_its_thresholds(
    rose: Traffic, verdict: tuple[Status, str] | None, message: str
) -> None:
    found = nic_health.evaluate_traffic("eth0", rose, LIMITS)
    assert (found and (found.status, found.reason)) == verdict
    if found is not None:
        assert (found.check, found.component, found.message) == ("nic-health", "eth0", message)


@pytest.mark.parametrize(
    ("speed", "wanted", "seen", "verdict", "message"),
    [
        (
            999,
            1000,
            1000,
            (FAILED, "slow"),
            "999 Mbit/s, expected 1 Gbit/s",
        ),
        (999, 0, 1000, (DEGRADED, "slow"), "999 Mbit/s, and it was 1 Gbit/s before"),
        (2500, 0, 25_000, (DEGRADED, "slow"), "2.5 Gbit/s, and it was 25 Gbit/s before"),
        (1000, 1000, 1000, None, ""),
        (1, 2, 0, (FAILED, "slow"), "1 Mbit/s, expected 2 Mbit/s"),
        (1, 0, 2, (DEGRADED, "slow"), "1 Mbit/s, and it was 2 Mbit/s before"),
        (0, 1, 1, None, ""),
        (2000, 1000, 0, None, ""),
    ],
)
def test_speeds_on_their_thresholds(
    speed: int, wanted: int, seen: int, verdict: tuple[Status, str] | None, message: str
) -> None:
    found = nic_health.evaluate_speed("eth0", speed, wanted=wanted, seen=seen)
    assert (found and (found.status, found.reason)) == verdict
    assert found is None or found.message == message


@pytest.mark.parametrize(
    ("content", "megabits"),
    [
        ("1000", 1000),
        ("0", 0),
        ("-1", 0),
        ("", 0),
        ("٣", 0),
        (22, 0),
        (str(2**31 - 1), 2**31 - 1),
        (str(2**31), 0),
        (str(2**32 - 1), 0),
    ],
)
def test_a_speed_as_the_kernel_writes_it(content: str | int, megabits: int) -> None:
    assert nic_health._megabits(content) == megabits


@pytest.mark.parametrize(
    "text",
    ["", "eth0", "=1G", "eth0=G", "eth0=²G", "eth0=-1G", "eth0=1.5G", "eth0=100", "eth0=00G"],
)
def test_a_speed_that_is_none_is_refused_with_the_words_of_the_file(text: str) -> None:
    speeds = (("eth*", 200_000), ("ib=0", 800), ("x", 1_000_000))
    assert nic_health.parse_speeds(["eth*=200G", "ib=0=800M", "x=1T"]) == speeds
    with pytest.raises(ValueError, match=f'"{text}" is no interface and speed'):
        nic_health.parse_speeds(["eth1=1G", text])


class Asked(DiskProbe):
    """Counts the interfaces that are asked for a speed."""

    names: list[str]

    async def files(self, groups: Sequence[Sequence[str]]) -> list[Result]:
        self.names = [group[0].split("/")[-2] for group in groups]
        return await super().files(groups)


def watching(machine: HostRoots, **settings: object) -> tuple[nic_health.NicHealth, Asked]:
    probe = Asked(machine=machine)
    found = replace(sources(machine), disk=probe)
    return built(nic_health.SPEC, found, options(nic_health.SPEC, **settings)), probe


async def test_a_speed_is_asked_every_ten_minutes_and_after_a_new_link(tmp_path: Path) -> None:
    clock = HandClock()
    machine = made_up(tmp_path, clock)
    port(machine)
    port(machine, "eth1", operstate="down")
    check, probe = watching(machine)
    asked = []
    for after in (0.0, 1.0, 598.9, 0.1, 599.9, 0.1):
        clock.now += after
        await check.run_check()
        asked.append(probe.names)
    assert asked == [["eth0"], [], [], ["eth0"], [], ["eth0"]]
    port(machine, carrier_up_count=2)
    await check.run_check()
    assert probe.names == ["eth0"]
    await check.run_check()
    assert probe.names == []


async def test_a_port_that_was_gone_is_a_new_one_when_it_is_back(tmp_path: Path) -> None:
    machine = made_up(tmp_path, HandClock())
    folder = port(machine, rx_packets=1000, rx_errors=0)
    port(machine, "eth1")
    check, _ = watching(machine)
    await check.run_check()
    port(machine, rx_packets=1000, rx_errors=500)
    assert verdicts(await check.run_check())["eth0"] == (FAILED, "errors")
    folder.rename(tmp_path / "away")
    assert "eth0" not in verdicts(await check.run_check())
    (tmp_path / "away").rename(folder)
    port(machine, rx_packets=1000, rx_errors=5000, speed=10_000)
    report = await check.run_check()
    assert verdicts(report)["eth0"] == OK, "neither its errors nor its speed are those of before"
    assert observations(report)["eth0"].message == "10 Gbit/s"


async def test_a_port_without_a_link_or_a_speed_says_so(tmp_path: Path) -> None:
    machine = made_up(tmp_path)
    port(machine, operstate="down")
    port(machine, "eth1", speed=-1)
    check, _ = watching(machine)
    found = observations(await check.run_check())
    assert {name: one.message for name, one in found.items()} == {"eth0": "no link", "eth1": "up"}


async def test_the_worst_of_a_port_is_told(tmp_path: Path) -> None:
    machine = made_up(tmp_path, HandClock())
    port(machine, rx_packets=10_000, rx_missed_errors=0)
    check, _ = watching(machine, speeds=("eth*=200G", "*=1G"))
    await check.run_check()
    port(machine, rx_packets=10_000, rx_missed_errors=9_000)
    assert verdicts(await check.run_check())["eth0"] == (FAILED, "slow")


# -- nic-link -------------------------------------------------------------------------------------

UP = Link("eth0", enabled=True, state="up", times_up=0)


@pytest.mark.parametrize(
    ("link", "seen_up", "named", "verdict", "message"),
    [
        (UP, False, False, OK, "up"),
        (replace(UP, enabled=False), False, False, OK, "switched off, never up"),
        (replace(UP, enabled=False), True, False, (UNKNOWN, "disabled"), "switched off"),
        (replace(UP, enabled=False, times_up=1), False, False, (UNKNOWN, "disabled"), "switched"),
        (replace(UP, enabled=False), False, True, (FAILED, "disabled"), "switched off"),
        (replace(UP, state="down"), False, False, OK, "never up since the boot: not in use"),
        (replace(UP, state="down", times_up=None), False, False, OK, "never up since the boot"),
        (replace(UP, state="down", times_up=1), False, False, (FAILED, "link-down"), "no carrier"),
        (replace(UP, state="down"), True, False, (FAILED, "link-down"), "(state down)"),
        (replace(UP, state="down"), False, True, (FAILED, "link-down"), "cable, transceiver"),
    ],
)
def test_a_link(
    *, link: Link, seen_up: bool, named: bool, verdict: tuple[Status, str], message: str
) -> None:
    found = nic_link.evaluate(link, seen_up=seen_up, named=named)
    assert (found.status, found.reason) == verdict
    assert message in found.message


async def test_excluded_ports_are_left_out_and_a_port_that_is_back_begins_anew(
    tmp_path: Path,
) -> None:
    clock = HandClock()
    machine = made_up(tmp_path, clock)
    folder = port(machine, carrier_down_count=0)
    port(machine, "eth1", operstate="down")
    check = built(nic_link.SPEC, sources(machine), options(nic_link.SPEC, exclude=("eth1",)))
    assert verdicts(await check.run_check()) == {"eth0": OK}
    folder.rename(tmp_path / "away")
    assert await check.run_check() == Off("no physical network interface")
    (tmp_path / "away").rename(folder)
    port(machine, carrier_down_count=9)
    assert verdicts(await check.run_check()) == {"eth0": OK}, "counted while nobody looked"


# -- infiniband -----------------------------------------------------------------------------------

ACTIVE = Port("ACTIVE", "LinkUp", 400, ethernet=False, counters={})


@pytest.mark.parametrize(
    ("rose", "reason", "message"),
    [
        ({}, "", "InfiniBand, 400 Gbit/s"),
        (
            {"symbol_error": 121, "local_link_integrity_errors": 1, "link_downed": 1},
            "errors",
            "121 symbol_error, 1 local_link_integrity_errors within an hour",
        ),
        (
            {"symbol_error": 120, "excessive_buffer_overrun_errors": 1},
            "errors",
            "1 excessive_buffer_overrun_errors within an hour",
        ),
        (
            {"link_downed": 2, "link_error_recovery": 3, "rnr_nak_retry_err": 1},
            "flapping",
            "within an hour the link was lost 2 times and recovered 3 times",
        ),
        (
            {"link_downed": 2},
            "flapping",
            "within an hour the link was lost 2 times and recovered 0 times",
        ),
        (
            {"link_error_recovery": 1},
            "flapping",
            "within an hour the link was lost 0 times and recovered 1 time",
        ),
        ({"port_rcv_errors": 120}, "", "InfiniBand, 400 Gbit/s"),
        (
            {"port_rcv_errors": 121, "rnr_nak_retry_err": 1},
            "receive-errors",
            "121 port_rcv_errors within an hour",
        ),
        ({"rnr_nak_retry_err": 1}, "retries", "1 rnr_nak_retry_err within an hour"),
    ],
)
def test_what_a_port_counts(rose: Mapping[str, int], reason: str, message: str) -> None:
    found = infiniband.evaluate_quality("p", ACTIVE, rose, wanted=0, seen=400, symbols=120)
    assert (found.component, found.reason, found.message) == ("p", reason, message)
    status = {"": Status.OK, "errors": FAILED}.get(reason, DEGRADED)
    assert found.status is status


def test_a_rate_on_its_thresholds() -> None:
    def evaluated(rate: float, wanted: float, seen: float, **rose: int) -> Observation:
        slow = replace(ACTIVE, rate=rate)
        return infiniband.evaluate_quality("p", slow, rose, wanted=wanted, seen=seen, symbols=120)

    assert evaluated(400, 400, 400).reason == ""
    assert evaluated(0, 400, 400).reason == "", "a driver that does not tell"
    assert evaluated(0.5, 400, 400).reason == "slow"
    assert evaluated(399, 400, 400).message == "399 Gbit/s, expected 400"
    assert evaluated(399, 400, 400).status is FAILED
    assert evaluated(399, 0, 400).message == "399 Gbit/s, and it was 400 before"
    assert evaluated(399, 0, 400).status is DEGRADED
    assert evaluated(0.5, 0, 400).reason == "slow"
    assert evaluated(399, 0, 400, rnr_nak_retry_err=1).reason == "slow"
    assert evaluated(399, 0, 400, link_downed=1).reason == "flapping"
    roce = replace(ACTIVE, ethernet=True, rate=100)
    found = infiniband.evaluate_quality("p", roce, {}, wanted=0, seen=100, symbols=120)
    assert found.message == "RoCE, 100 Gbit/s"


async def test_an_adapter_without_an_address_on_the_bus_is_not_missed(tmp_path: Path) -> None:
    machine = made_up(tmp_path)
    device(machine, "mlx5_0", "0000:3b:00.0")
    check = built(infiniband.SPEC, sources(machine), options(infiniband.SPEC))
    await check.run_check()
    check._known["soft_0/1"] = Place("soft_0", "1", "")
    assert set(verdicts(await check.run_check())) == {"mlx5_0/1"}


async def test_an_adapter_that_was_gone_is_a_new_one_when_it_is_back(tmp_path: Path) -> None:
    machine = made_up(tmp_path, HandClock())
    [port_folder] = device(machine, "mlx5_0", "0000:3b:00.0")
    check = built(infiniband.SPEC, sources(machine), options(infiniband.SPEC))
    assert verdicts(await check.run_check()) == {"mlx5_0/1": OK}
    write_counters(port_folder, symbol_error="500")
    assert verdicts(await check.run_check()) == {"mlx5_0/1": (FAILED, "errors")}
    folder = machine.sys / "class/infiniband/mlx5_0"
    folder.rename(tmp_path / "away")
    # Its driver was unloaded; the adapter is on the bus.
    assert isinstance(await check.run_check(), Off)
    (tmp_path / "away").rename(folder)
    write_counters(port_folder, symbol_error="5000", rate="100 Gb/sec (1X NDR)")
    assert verdicts(await check.run_check()) == {"mlx5_0/1": OK}, (
        "neither errors nor rate of before"
    )
    folder.rename(tmp_path / "away")
    await check.run_check()
    (tmp_path / "away").rename(folder)
    write_counters(port_folder, state="1: DOWN", phys_state="2: Polling")
    assert verdicts(await check.run_check()) == {"mlx5_0/1": OK}, "not in use since it is back"


@pytest.mark.parametrize(
    ("named", "watched"), [("mlx5_1", {"mlx5_1/1", "mlx5_1/2"}), ("mlx5_1/2", {"mlx5_1/2"})]
)
async def test_devices_that_are_named_are_all_that_is_watched(
    tmp_path: Path, named: str, watched: set[str]
) -> None:
    machine = made_up(tmp_path)
    device(machine, "mlx5_0", "0000:3b:00.0")
    device(machine, "mlx5_1", "0000:5e:00.0", ports=2)
    settings = options(infiniband.SPEC, devices=(named, "mlx5_7", "mlx5_8/1"))
    report = await built(infiniband.SPEC, sources(machine), settings).run_check()
    missing = dict.fromkeys(("mlx5_7", "mlx5_8/1"), (FAILED, "missing"))
    assert verdicts(report) == dict.fromkeys(watched, OK) | missing
    assert observations(report)["mlx5_7"].message == "named, and no such device"


@pytest.mark.parametrize("pattern", ["mlx5_1", "mlx5_1/*", "*_1"])
async def test_devices_that_are_excluded_by_name_or_port(tmp_path: Path, pattern: str) -> None:
    machine = made_up(tmp_path)
    device(machine, "mlx5_0", "0000:3b:00.0")
    device(machine, "mlx5_1", "0000:5e:00.0")
    check = built(
        infiniband.SPEC, sources(machine), options(infiniband.SPEC, exclude=("x", pattern))
    )
    assert set(verdicts(await check.run_check())) == {"mlx5_0/1"}


# -- net-tables -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("table", "refused", "verdict", "message"),
    [
        (NetTable(799, 1000, 5), 0, OK, "799 of 1000 entries, 80 %"),
        (NetTable(800, 1000, 5), 0, (DEGRADED, "filling"), "800 of 1000 entries, 80 %"),
        (NetTable(949, 1000, 5), 0, (DEGRADED, "filling"), "949 of 1000 entries, 95 %"),
        (NetTable(950, 1000, 5), 0, (FAILED, "full"), "950 of 1000 entries, 95 %"),
        (
            NetTable(10, 1000, 5),
            1,
            (FAILED, "full"),
            "10 of 1000 entries, 1 %; 1 found no place in 10 minutes",
        ),
        (NetTable(0, 0, 0), 0, (FAILED, "full"), "0 of 0 entries, 100 %"),
        (NetTable(1, 1, 0), 0, (FAILED, "full"), "1 of 1 entries, 100 %"),
        (NetTable(0, 1, 0), 0, OK, "0 of 1 entries, 0 %"),
    ],
)
def test_a_table(table: NetTable, refused: int, verdict: tuple[Status, str], message: str) -> None:
    found = net_tables.evaluate("conntrack", table, refused, net_tables.TableLimits(80.0, 95.0))
    assert (found.status, found.reason) == verdict
    assert (found.check, found.component, found.message) == ("net-tables", "conntrack", message)


# -- dns, peers, reach ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "reply", "verdict", "message"),
    [
        ("a.example", Reply("", "", 1.999, "12 ms"), OK, "12 ms"),
        ("a.example", Reply("", "noerror", 2.0, "2 s"), (DEGRADED, "slow"), "2 s"),
        ("a.example", Reply("timeout", "", 5.0, "silent"), (FAILED, "timeout"), "silent"),
        (
            "a.example",
            Reply("", "servfail", 0.1, "x"),
            (FAILED, "servfail"),
            "answers servfail for a.example",
        ),
        (
            "a.example",
            Reply("", "refused", 0.1, "x"),
            (FAILED, "refused"),
            "answers refused for a.example",
        ),
        ("a.example", Reply("", "nxdomain", 0.1, "x"), OK, "x"),
        ("", Reply("", "refused", 0.1, "x"), OK, "x"),
        ("", Reply("", "servfail", 3.0, "x"), (DEGRADED, "slow"), "x"),
    ],
)
def test_a_dns_server(name: str, reply: Reply, verdict: tuple[Status, str], message: str) -> None:
    found = dns.evaluate_server("192.0.2.1", name, reply, slow=2.0)
    assert (found.status, found.reason) == verdict
    assert (found.component, found.message) == ("dns://192.0.2.1", message)


@pytest.mark.parametrize(
    "text", ["", ".", "a..b", "a b", "http://a", "a:1", "a@b", "a\tb", "\ud800", "x" * 64 + ".y"]
)
def test_a_name_that_no_dns_knows_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no host name"):
        dns.parse_names(["ok.example", text])
    assert dns.parse_names(["b.example", "a.example", "b.example"]) == ("b.example", "a.example")


@pytest.mark.parametrize(
    ("seconds", "trouble", "answered", "verdict", "message"),
    [
        (0.0, "", False, OK, "answers an echo in 0.0 ms"),
        (0.0123, "earlier trouble", True, OK, "answers an echo in 12.3 ms"),
        (None, "", True, (FAILED, "unreachable"), "no answer to 2 echoes"),
        (None, "No route to host", True, (FAILED, "unreachable"), "No route to host"),
        (None, "", False, (UNKNOWN, "never-answered"), "no answer to 2 echoes"),
    ],
)
def test_a_peer(
    *,
    seconds: float | None,
    trouble: str,
    answered: bool,
    verdict: tuple[Status, str],
    message: str,
) -> None:
    found = peers.evaluate("192.0.2.7", seconds, trouble, answered=answered)
    assert (found.status, found.reason, found.message) == (*verdict, message)
    assert (found.check, found.component) == ("peers", "192.0.2.7")


TARGET = reach.Target("registry.example", 80, "/v2/")


@pytest.mark.parametrize(
    ("status", "verdict"),
    [
        (200, OK),
        (399, OK),
        (400, (FAILED, "http-error")),
        (401, OK),
        (402, (FAILED, "http-error")),
        (403, OK),
        (404, (FAILED, "http-error")),
        (503, (FAILED, "http-error")),
    ],
)
def test_an_http_status(status: int, verdict: tuple[Status, str]) -> None:
    found = reach.evaluate_http(TARGET, status, 0.0125)
    assert (found.status, found.reason) == verdict
    assert found.component == "http://registry.example:80/v2/"
    assert found.message == f"answers {status} in 12.5 ms"


@pytest.mark.parametrize(
    ("text", "component"),
    [
        ("registry.example:443", "tcp://registry.example:443"),
        ("tcp://filer.example:2049", "tcp://filer.example:2049"),
        ("tcp://[2001:db8::1]:443", "tcp://[2001:db8::1]:443"),
        ("http://registry.example", "http://registry.example:80/"),
        ("http://registry.example:8080", "http://registry.example:8080/"),
        ("http://registry.example/a/b?c", "http://registry.example:80/a/b?c"),
        ("http://[2001:db8::1]/a", "http://[2001:db8::1]:80/a"),
        ("http://[2001:db8::1]:81/a", "http://[2001:db8::1]:81/a"),
        ("http://r.example/!~", "http://r.example:80/!~"),
    ],
)
def test_a_target_s_component(text: str, component: str) -> None:
    assert [str(target) for target in reach.parse_targets([text, text])] == [component]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("https://r.example", "TLS is not supported"),
        ("udp://r.example:1", "only tcp:// and http:// targets are known"),
        ("http://r.example/a b", "another character that belongs in no URL"),
        ("http://r.example/\x7f", "another character that belongs in no URL"),
        ("http://r.example/ü", "another character that belongs in no URL"),
        ("http://r\x1f.example/", "another character that belongs in no URL"),
        ("tcp://:443", "has no host"),
        ("http:///a", "has no host"),
    ],
)
def test_a_target_that_is_none(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        reach.parse_targets([text])


class Gateways:
    """Answers by a script; the patience of each question is kept."""

    def __init__(self, *answers: GatewayReply) -> None:
        self.answers = list(answers)
        self.patience: list[bool] = []

    async def query(self, _route: DefaultRoute, *, patience: float) -> GatewayReply:
        self.patience.append(patience > 0)
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]

    async def query_once(self, _route: DefaultRoute) -> GatewayReply:
        return await self.query(_route, patience=0)


ROUTE = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n"
VIA_1 = "eth0\t00000000\t010000C0\t0003\t0\t0\t0\t00000000\t0\t0\t0\n"
VIA_2 = "eth0\t00000000\t020000C0\t0003\t0\t0\t0\t00000000\t0\t0\t0\n"
YES, NO = GatewayReply(True, "answers"), GatewayReply(False, "no answer")
SILENT = GatewayReply(True, "is on the link", silent=True)


def reaching(root: Path, gateways: Gateways, via: str = VIA_1) -> reach.Reach:
    machine = made_up(root)
    set_route(root, via)
    check: reach.Reach = built(reach.SPEC, sources(machine), options(reach.SPEC))
    check._probe = gateways  # type: ignore[assignment]
    return check


def set_route(root: Path, *routes: str) -> None:
    (root / "proc/net/route").write_text(ROUTE + "".join(routes))
    (root / "proc/net/ipv6_route").write_text("")


async def test_a_gateway_that_never_answers_gets_patience_three_times_then_at_each_tenth_look(
    tmp_path: Path,
) -> None:
    gateways = Gateways(NO)
    check = reaching(tmp_path, gateways)
    for _ in range(21):
        report = await check.run_check()
        assert verdicts(report) == {"gateway": (UNKNOWN, "never-answered")}
    assert [look for look, patient in enumerate(gateways.patience, 1) if patient] == [
        *(1, 2, 3, 10, 20)
    ]
    assert observations(report)["gateway"].message == "192.0.0.1 on eth0: no answer"


NONE_6 = f"{0:032x} 00"
VIA_6 = f"{NONE_6} {NONE_6} fd77{1:028x} 00000400 00000001 00000000 00000003     eth0\n"


async def test_an_ipv6_gateway_that_never_answered_is_not_shown_beside_one_of_ipv4(
    tmp_path: Path,
) -> None:
    """Addresses and routes of IPv6 that no router serves: "unknown" would stay for ever."""
    check = reaching(tmp_path, Gateways(YES, NO, YES, YES, YES, NO))
    (tmp_path / "proc/net/ipv6_route").write_text(VIA_6)
    assert verdicts(await check.run_check()) == {"gateway": OK}
    both = {"gateway": OK, "gateway-ipv6": OK}
    assert verdicts(await check.run_check()) == both
    lost = both | {"gateway-ipv6": (FAILED, "unreachable")}
    assert verdicts(await check.run_check()) == lost, "it has answered, so it is in use"


class OnlyIpv4(Gateways):
    """The gateway of IPv4 answers; the looks at that of IPv6 are kept, and the patience with it."""

    def __init__(self, *answers: GatewayReply) -> None:
        super().__init__(*answers)
        self.looks = 0
        self.asked: dict[int, bool] = {}  # with patience or without

    async def query(self, route: DefaultRoute, *, patience: float) -> GatewayReply:
        if ":" not in str(route.gateway):
            self.looks += 1
            return YES
        self.asked[self.looks] = patience > 0
        return await super().query(route, patience=patience)


async def test_an_ipv6_gateway_that_is_not_shown_is_asked_at_each_tenth_look(
    tmp_path: Path,
) -> None:
    gateways = OnlyIpv4(NO)
    check = reaching(tmp_path, gateways)
    (tmp_path / "proc/net/ipv6_route").write_text(VIA_6)
    for _ in range(240):
        assert verdicts(await check.run_check()) == {"gateway": OK}
    assert list(gateways.asked) == [1, 2, 3, *range(10, 250, 10)]
    assert [look for look, patient in gateways.asked.items() if patient] == [1, 2, 3, 120, 240]


async def test_an_ipv6_gateway_that_begins_to_answer_is_watched_at_each_look(
    tmp_path: Path,
) -> None:
    gateways = OnlyIpv4(NO, NO, NO, YES, NO)
    check = reaching(tmp_path, gateways)
    (tmp_path / "proc/net/ipv6_route").write_text(VIA_6)
    found = [verdicts(await check.run_check()) for _ in range(12)]
    both = {"gateway": OK, "gateway-ipv6": OK}
    lost = both | {"gateway-ipv6": (FAILED, "unreachable")}
    assert found == [{"gateway": OK}] * 9 + [both, lost, lost]


async def test_an_ipv6_gateway_is_asked_at_each_look_once_that_of_ipv4_is_gone(
    tmp_path: Path,
) -> None:
    gateways = OnlyIpv4(NO)
    check = reaching(tmp_path, gateways)
    (tmp_path / "proc/net/ipv6_route").write_text(VIA_6)
    for _ in range(5):
        await check.run_check()
    set_route(tmp_path)
    (tmp_path / "proc/net/ipv6_route").write_text(VIA_6)
    asked = len(gateways.patience)
    for _ in range(2):
        assert verdicts(await check.run_check())["gateway-ipv6"] == (UNKNOWN, "never-answered")
    assert len(gateways.patience) == asked + 2


async def test_the_only_gateway_of_a_node_is_shown_if_it_is_of_ipv6(tmp_path: Path) -> None:
    check = reaching(tmp_path, Gateways(NO), "")
    (tmp_path / "proc/net/ipv6_route").write_text(VIA_6)
    assert verdicts(await check.run_check()) == {"gateway-ipv6": (UNKNOWN, "never-answered")}


async def test_a_person_waits_for_no_gateway(tmp_path: Path) -> None:
    machine = made_up(tmp_path)
    set_route(tmp_path, VIA_1)
    single = replace(sources(machine), single_run=True)
    check = built(reach.SPEC, single, options(reach.SPEC))
    gateways = Gateways(NO)
    check._probe = gateways
    assert verdicts(await check.run_check()) == {"gateway": (UNKNOWN, "never-answered")}
    assert gateways.patience == [False]


async def test_a_gateway_that_answered_and_does_not_is_asked_with_patience_and_failed(
    tmp_path: Path,
) -> None:
    gateways = Gateways(YES, NO)
    check = reaching(tmp_path, gateways)
    assert verdicts(await check.run_check()) == {"gateway": OK}
    for _ in range(6):
        assert verdicts(await check.run_check()) == {"gateway": (FAILED, "unreachable")}
    assert gateways.patience == [True] * 7
    set_route(tmp_path, VIA_2)
    assert verdicts(await check.run_check()) == {"gateway": (UNKNOWN, "never-answered")}, (
        "another one"
    )
    set_route(tmp_path)
    report = await check.run_check()
    assert verdicts(report) == {"gateway": (FAILED, "no-route")}
    assert observations(report)["gateway"].message == "there was one via 192.0.0.1"


async def test_a_gateway_that_drops_echoes_is_trusted_for_three_looks(tmp_path: Path) -> None:
    gateways = Gateways(SILENT, NO, NO, NO, NO)
    check = reaching(tmp_path, gateways)
    words = []
    for _ in range(5):
        [found] = observations(await check.run_check()).values()
        words.append((found.status, found.message.partition(": ")[2]))
    lately = (Status.OK, "drops echoes, and answered on the link lately")
    assert words == [
        (Status.OK, "is on the link"),
        *[lately] * 3,
        (FAILED, "no answer"),
    ]
    assert gateways.patience == [True, False, False, False, True]


async def test_a_gateway_that_answers_echoes_again_needs_no_trust(tmp_path: Path) -> None:
    gateways = Gateways(SILENT, NO, YES, NO)
    check = reaching(tmp_path, gateways)
    found = [verdicts(await check.run_check())["gateway"][0] for _ in range(4)]
    assert found == [Status.OK, Status.OK, Status.OK, FAILED]
    assert gateways.patience == [True, False, False, True]


async def test_the_trust_in_one_gateway_is_not_another_s(tmp_path: Path) -> None:
    gateways = Gateways(SILENT, NO)
    check = reaching(tmp_path, gateways)
    assert verdicts(await check.run_check()) == {"gateway": OK}
    set_route(tmp_path, VIA_2)
    assert verdicts(await check.run_check()) == {"gateway": (UNKNOWN, "never-answered")}
    assert gateways.patience == [True, True]


async def test_a_gateway_that_never_answered_and_goes_is_gone_and_then_nothing_is_asked(
    tmp_path: Path,
) -> None:
    check = reaching(tmp_path, Gateways(NO))
    assert verdicts(await check.run_check()) == {"gateway": (UNKNOWN, "never-answered")}
    set_route(tmp_path)
    assert await check.run_check() == Off("no gateway and no targets")


@pytest.mark.parametrize("text", ["tcp://r.example:443", "http://r.example/v2/"])
async def test_an_address_at_which_nobody_answers_is_asked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    """A service may have moved: the name's address that is remembered is doubted."""

    class Resolving:
        def __init__(self) -> None:
            self.tried: list[str] = []
            self.doubted: list[str] = []

        async def addresses(self, _host: str) -> list[str]:
            return [f"192.0.2.{n}" for n in range(1, 7)]

        def doubt(self, host: str) -> None:
            self.doubted.append(host)

    async def request(url: Url, **_: object) -> Response:
        resolving.tried.append(url.host)
        if url.host != answering[0]:
            raise HttpError("refused", f"{url.host} refuses")
        return Response(200, {}, b"")

    async def connect(*_: object) -> Connection:
        return Connection("" if answering[0] else "refused", "said")

    resolving, answering = Resolving(), [""]
    monkeypatch.setattr(reach, "request", request)
    monkeypatch.setattr(reach, "connect", connect)
    check = reaching(tmp_path, Gateways(NO), via="")
    check._resolver = resolving  # type: ignore[assignment]
    [target] = check._targets = reach.parse_targets([text])
    assert verdicts(await check.run_check()) == {str(target): (FAILED, "refused")}
    assert resolving.doubted == ["r.example"]
    answering[0] = "192.0.2.3"
    assert verdicts(await check.run_check()) == {str(target): OK}
    assert resolving.doubted == ["r.example"]
    if target.path:
        assert resolving.tried == [f"192.0.2.{n}" for n in (1, 2, 3, 4, 1, 2, 3)]
