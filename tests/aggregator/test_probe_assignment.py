"""The assignment of probe targets: the graph's shape, and that agents are told of it."""

import asyncio
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aggregator.health.model import Hello
from aggregator.ingest.probe_assignment import DEGREE, ProbeRings, address_of
from aggregator.ingest.stream_table import LINGER, PEERS_EVERY
from tests.support import evidence as said
from tests.support.agent_calls import BelievedStreams, Call
from tests.support.intake import RecordingIntake
from tests.support.waiting import until


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        ("ipv4:10.0.0.5:43512", "10.0.0.5"),
        ("ipv6:%5Bfd00::5%5D:43512", "fd00::5"),
        ("ipv6:[fd00::5]:43512", "fd00::5"),
        ("ipv6:%5B::ffff:10.0.0.5%5D:43512", "10.0.0.5"),  # a server that listens on [::]
        ("ipv4:127.0.0.1:43512", ""),
        ("ipv6:%5B::1%5D:43512", ""),
        ("ipv6:%5Bfe80::1%25eth0%5D:43512", ""),
        ("unix:/run/x.sock", ""),
        ("ipv4:what?:1", ""),
        ("", ""),
    ],
)
def test_where_an_agent_comes_from(peer: str, address: str) -> None:
    assert address_of(peer) == address


def fleet(count: int) -> ProbeRings:
    ring = ProbeRings()
    for number in range(count):
        ring.put(f"n{number}", f"10.0.{number // 250}.{number % 250}")
    return ring


def test_a_fleet_probes_itself_evenly() -> None:
    ring = fleet(1000)
    probed: dict[str, int] = {}
    for number in range(1000):
        peers = ring.peers(f"n{number}")
        assert DEGREE - 2 <= len(peers) <= DEGREE  # two rings may agree
        assert f"10.0.{number // 250}.{number % 250}" not in peers
        for peer in peers:
            probed[peer] = probed.get(peer, 0) + 1
    assert len(probed) == 1000
    assert min(probed.values()) >= DEGREE - 2
    assert max(probed.values()) <= DEGREE


def test_a_node_that_goes_changes_few_others() -> None:
    ring = fleet(500)
    before = {f"n{number}": ring.peers(f"n{number}") for number in range(500)}
    ring.remove("n7")
    changed = [n for n, peers in before.items() if n != "n7" and ring.peers(n) != peers]
    assert 0 < len(changed) <= DEGREE
    assert all("10.0.0.7" in before[node] for node in changed)
    assert not any("10.0.0.7" in ring.peers(node) for node in before)


def test_few_nodes_probe_each_other() -> None:
    assert fleet(2).peers("n0") == ("10.0.0.1",)
    assert fleet(1).peers("n0") == ()
    assert ProbeRings().peers("n0") == ()


def test_a_node_that_cannot_be_probed_probes_others() -> None:
    probe_rings = fleet(50)
    probe_rings.put("behind-a-proxy", "")
    assert len(probe_rings.peers("behind-a-proxy")) >= DEGREE - 2


def test_an_address_that_hides_several_nodes_is_nobodys_peer() -> None:
    ring = fleet(3)
    ring.put("n9", "10.0.0.1")
    assert ring.peers("n0") == ("10.0.0.2",)
    ring.remove("n9")
    assert "10.0.0.1" in ring.peers("n2") + ring.peers("n0")


def test_a_node_that_comes_from_elsewhere_probes_the_same_nodes() -> None:
    """Otherwise it could try addresses until it is asked to probe a node of its choice."""
    probe_rings = fleet(200)
    before = probe_rings.peers("n7")
    for number in range(20):
        probe_rings.put("n7", f"10.9.0.{number}")
        assert probe_rings.peers("n7") == before
    probe_rings.put("n7", "")
    assert probe_rings.peers("n7") == before


def test_who_probes_whom_hangs_on_the_secret() -> None:
    fleets = [ProbeRings(key) for key in (b"one", b"one", b"another")]
    for probe_rings in fleets:
        for number in range(100):
            probe_rings.put(f"n{number}", f"10.0.0.{number}")
    peers = [[probe_rings.peers(f"n{number}") for number in range(100)] for probe_rings in fleets]
    assert peers[0] == peers[1]
    same = sum(len(set(a) & set(b)) for a, b in zip(peers[0], peers[2], strict=True))
    assert same < 200, "of some 800; 64 by chance"


@given(
    st.lists(
        st.tuples(
            st.sampled_from("abcdef"), st.sampled_from(["", "10.0.0.1", "10.0.0.2", "10.0.0.3"])
        ),
        max_size=40,
    )
)
def test_what_happened_before_does_not_matter(steps: list[tuple[str, str]]) -> None:
    ring, anew = ProbeRings(), ProbeRings()
    last: dict[str, str] = {}
    for node, address in steps:
        ring.put(node, address)
        last[node] = address
    for node, address in sorted(last.items()):
        anew.put(node, address)
    for node in "abcdef":
        assert ring.peers(node) == anew.peers(node)


# -- the streams -------------------------------------------------------------------------------


class Bench(BelievedStreams):
    """A clock that the test moves, and other replicas as it says."""

    def __init__(self) -> None:
        self.now = 0.0
        self.among_others = ""
        self.intake = RecordingIntake()
        super().__init__(self.intake, lambda: self.now, among_others=lambda: self.among_others)

    async def attach(self, node: str, address: str) -> Call:
        call = Call(address)
        self.serve(call)
        hello = Hello(node, "boot-1", "epoch-1", "0.1.0", 1, instance=f"i-{node}")
        call.incoming.put_nowait(said.hello(hello))
        await until(lambda: call.sent)
        return call


@pytest.fixture
def bench() -> Iterator[Bench]:
    found = Bench()
    yield found
    for task in found.tasks:
        task.cancel()


async def test_agents_are_told_of_their_peers_and_again_when_they_change(bench: Bench) -> None:
    first = await bench.attach("n1", "10.0.0.1")
    second = await bench.attach("n2", "10.0.0.2")
    assert (first.peers(), second.peers()) == ([[]], [["10.0.0.1"]])
    bench.table.tick()
    assert first.peers() == [[]], "not at once: at a failover all come within a minute"
    bench.now += PEERS_EVERY
    bench.table.tick()
    await until(lambda: len(first.peers()) == 2)
    assert first.peers() == [[], ["10.0.0.2"]]
    assert bench.intake.assignments == {"n1": ("10.0.0.2",), "n2": ("10.0.0.1",)}
    bench.now += PEERS_EVERY
    bench.table.tick()
    await asyncio.sleep(0)
    assert (len(first.peers()), len(second.peers())) == (2, 1), "what is known is not told again"
    bench.table.close_all("the test is over")


async def test_agents_are_promised_answers_once_there_are_others_and_told_no_more(
    bench: Bench,
) -> None:
    def promises(call: Call) -> list[tuple[int, str]]:
        told = [message.welcome for message in call.sent]
        return [(welcome.answer_within_ms, welcome.address) for welcome in told]

    first = await bench.attach("n1", "10.0.0.1")
    bench.among_others = "replica-0:1"
    second = await bench.attach("n2", "10.0.0.1")
    bench.now += PEERS_EVERY
    bench.table.tick()
    await until(lambda: len(first.sent) == 2)
    nothing, promise = (0, ""), (12_000, "replica-0:1")
    assert (promises(first), promises(second)) == ([nothing, promise], [promise])
    bench.among_others = ""  # one of two is restarted
    bench.now += PEERS_EVERY
    bench.table.tick()
    await asyncio.sleep(0)
    assert (len(first.sent), len(second.sent)) == (2, 1)
    bench.table.close_all("the test is over")


async def test_a_node_whose_stream_has_ended_is_looked_for_a_while(bench: Bench) -> None:
    await bench.attach("n1", "10.0.0.1")
    second = await bench.attach("n2", "10.0.0.2")
    assert bench.intake.places == {"n1": "10.0.0.1", "n2": "10.0.0.2"}
    bench.tasks[0].cancel()
    await until(lambda: ("detached", "n1") in {event[:2] for event in bench.intake.events})
    bench.now += LINGER - 1
    bench.table.tick()
    await asyncio.sleep(0)
    assert second.peers() == [["10.0.0.1"]], "who does not answer now is asked on"
    assert bench.intake.places["n1"] == "10.0.0.1"
    bench.now += 1 + PEERS_EVERY
    bench.table.tick()
    await until(lambda: second.peers() == [["10.0.0.1"], []])
    assert bench.intake.places["n1"] == ""
    assert bench.intake.assignments == {"n1": (), "n2": ()}
    bench.table.close_all("the test is over")


async def test_who_takes_the_address_of_a_node_that_has_left_is_looked_for_there(
    bench: Bench,
) -> None:
    await bench.attach("n1", "10.0.0.1")
    bench.tasks[0].cancel()
    await until(lambda: ("detached", "n1") in {event[:2] for event in bench.intake.events})
    await bench.attach("n1-replaced", "10.0.0.1")
    assert bench.intake.places == {"n1": "", "n1-replaced": "10.0.0.1"}
    second = await bench.attach("n2", "10.0.0.2")
    assert second.peers() == [["10.0.0.1"]]
    bench.table.close_all("the test is over")
