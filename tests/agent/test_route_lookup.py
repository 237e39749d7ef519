"""Default routes that /proc/net/route cannot express, in a network namespace of their own."""

import pytest

from tests.agent.test_network_real import Wire, pytestmark, until, wire

__all__ = ["pytestmark", "wire"]

SILENT = "fe80::99"


def only(wire: Wire, *routes: str) -> None:
    """Leave the node no address of the gateway's subnet, and these routes."""
    wire.in_node("ip", "route", "delete", "default")
    wire.in_node("ip", "address", "flush", "dev", "nic", "scope", "global")
    wire.in_node("ip", "address", "add", "192.0.2.2/32", "dev", "lo")
    for route in routes:
        wire.in_node("ip", *route.split())


@pytest.mark.parametrize(
    "routes",
    [
        ("-4 route add default via inet6 fe80::99 dev nic src 192.0.2.2",),
        ("nexthop add id 7 via fe80::99 dev nic", "route add default nhid 7"),
        (
            "nexthop add id 7 via fe80::99 dev nic",
            "nexthop add id 8 via fe80::99 dev nic onlink",
            "nexthop add id 9 group 7/8",
            "route add default nhid 9",
        ),
        (
            "-4 route add default via inet6 fe80::99 dev nic table 100",
            "rule add lookup 100 priority 500",
        ),
        (
            "-4 route add default via inet6 fe80::99 dev nic table 100",
            "rule add lookup 100 priority 500",
            "route add blackhole default",
        ),
        (
            "-4 route add default via inet6 fe80::99 dev nic table 100",
            "rule add lookup 100 priority 500",
            "nexthop add id 7 blackhole",
            "route add default nhid 7",
        ),
        ("-4 route add default via inet6 fe80::99 dev nic table 253", "route add throw default"),
    ],
    ids=["via", "nexthop", "group", "table", "blackhole", "no-nexthop", "throw"],
)
def test_the_silent_ipv6_next_hop_of_an_ipv4_route_is_the_gateway(
    wire: Wire, routes: tuple[str, ...]
) -> None:
    only(wire, *routes)
    seen = wire.looker("reach")()
    assert seen["gateway"][:2] == ["UNKNOWN", "never-answered"]
    assert f"{SILENT} on nic" in seen["gateway"][2]
    assert "gateway-ipv6" not in seen


def test_an_ipv6_next_hop_that_answers_and_is_lost_is_a_failure(wire: Wire) -> None:
    wire.in_gateway("ip", "address", "add", f"{SILENT}/64", "dev", "port", "nodad")
    only(wire, f"-4 route add default via inet6 {SILENT} dev nic src 192.0.2.2")
    run_check = wire.looker("reach")
    until(lambda: run_check()["gateway"][0] == "OK")
    assert SILENT in run_check()["gateway"][2]
    wire.in_gateway("ip", "address", "delete", f"{SILENT}/64", "dev", "port")
    until(lambda: run_check()["gateway"][:2] == ["FAILED", "unreachable"])
    wire.in_node("ip", "route", "delete", "default")
    assert run_check()["gateway"][:2] == ["FAILED", "no-route"]


def test_the_gateway_of_another_table_is_known_by_the_rules(wire: Wire) -> None:
    wire.in_node("ip", "route", "delete", "default")
    wire.in_node("ip", "route", "add", "default", "via", "10.77.0.1", "table", "100")
    wire.in_node("ip", "rule", "add", "lookup", "100", "priority", "500")
    run_check = wire.looker("reach")
    assert run_check()["gateway"][0] == "OK"
    wire.in_node("ip", "route", "flush", "table", "100")
    assert run_check()["gateway"][:2] == ["FAILED", "no-route"]


def test_an_unreachable_default_is_no_gateway(wire: Wire) -> None:
    only(wire, "route add unreachable default")
    wire.in_node("ip", "-6", "route", "flush", "default")
    assert set(wire.looker("reach", targets=["tcp://127.0.0.1:9"])()) == {"tcp://127.0.0.1:9"}


def test_a_path_whose_link_is_down_is_not_the_gateway_of_the_others(wire: Wire) -> None:
    """The file has the first path of a route alone."""
    for command in (
        "link add idle type veth peer name other",
        "address add 10.88.0.2/24 dev idle",
        "link set idle up",
        "link set other up",
        "route delete default",
        "route add default nexthop via 10.88.0.1 dev idle nexthop via 10.77.0.1 dev nic",
    ):
        wire.in_node("ip", *command.split())
    wire.in_node("ip", "link", "set", "idle", "down")
    seen = wire.looker("reach")()
    assert seen["gateway"][0] == "OK"
    assert "10.77.0.1 on nic" in seen["gateway"][2]
