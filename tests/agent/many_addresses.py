"""Run in a network and mount namespace of its own: many connections to names with many addresses.

Says on standard output, as JSON and per name, how often each address was connected to and how
long the third slowest took.
"""

import asyncio
import json
import socket
import subprocess
import time
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

from nodeagent.config.settings import UplinkConfig
from nodeagent.uplink.dialer import Dialer
from sickbay.v1 import sickbay_pb2 as pb
from sickbay.v1 import sickbay_pb2_grpc as rpc
from tests.support.fake_aggregator import FakeAggregator
from tests.support.nameserver import NameServer
from tests.support.text_files import text_file

PORT = 8443
LIVE = ["127.0.0.2", "127.0.0.3", "127.0.0.4"]
#: No server listens there: refused at once.
REFUSES = "127.0.0.9"
#: A process that is stopped: its kernel takes connections, and no process answers.
STOPPED = "127.0.0.8"
#: A machine that is gone: packets to it vanish.
VANISHES = "10.9.0.9"

NAMES = {
    "all.test": LIVE,
    "refuses.test": [*LIVE[:2], REFUSES],
    "stopped.test": [*LIVE[:2], STOPPED],
    "vanishes.test": [*LIVE[:2], VANISHES],
}
CONNECTIONS = {"all.test": 300, "refuses.test": 60, "stopped.test": 16, "vanishes.test": 16}


def _network(resolver: str, folder: Path) -> None:
    """Loopback, a network whose neighbours are not there, and our name server for all names."""
    conf = text_file(folder / "resolv.conf", f"nameserver {resolver}\n")
    neighbour = f"neigh add {VANISHES} lladdr 02:00:00:00:00:01 dev gone"
    for line in (
        "ip link set lo up",
        "ip link add gone type veth peer name nobody",
        "ip link set nobody up",
        "ip addr add 10.9.0.1/24 dev gone",
        "ip link set gone up",
        f"ip {neighbour}",
        f"mount --bind {conf} {Path('/etc/resolv.conf').resolve()}",
    ):
        subprocess.run(line.split(), check=True)


async def _connect(name: str, aggregators: dict[str, FakeAggregator]) -> tuple[str, float]:
    dialer = Dialer(UplinkConfig(insecure_plaintext=True))
    before = {address: len(aggregator.streams) for address, aggregator in aggregators.items()}
    began = time.monotonic()
    async with dialer.open(f"{name}:{PORT}") as channel:
        call = rpc.AgentGatewayStub(channel).Connect()
        await call.write(pb.AgentMessage(hello=pb.Hello(node="n")))
        greeting = await call.read()
        took = time.monotonic() - began
        assert isinstance(greeting, pb.AggregatorMessage), await call.details()
        call.cancel()
    [to] = [
        address
        for address, aggregator in aggregators.items()
        if len(aggregator.streams) > before[address]
    ]
    return to, took


async def main() -> None:
    server = NameServer(NAMES)
    with TemporaryDirectory() as folder:
        _network(server.address, Path(folder))
        aggregators = {
            address: await FakeAggregator().start(f"{address}:{PORT}") for address in LIVE
        }
        found = {}
        async with server:
            stopped = socket.create_server((STOPPED, PORT))
            for name, times in CONNECTIONS.items():
                made = [await _connect(name, aggregators) for _ in range(times)]
                went = Counter(to for to, _ in made)
                # The others may be this machine's; a third of them meet the dead address first.
                third = sorted(took for _, took in made)[-3]
                found[name] = {"went": went, "third_slowest": third}
        stopped.close()
        print(json.dumps(found))
        for aggregator in aggregators.values():
            await aggregator.stop()


if __name__ == "__main__":
    asyncio.run(main())
