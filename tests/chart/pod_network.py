"""Gives each pod a network of its own on one bridge, so that several pods have the same ports.

It is made inside the network of `python -m tests.chart.own_network`, and reaches nothing else.
"""

import subprocess
import uuid
from pathlib import Path
from typing import Self

#: The bridge's own address: what listens on every address of this network is reached there.
GATEWAY = "198.51.100.1"
_PREFIX = "198.51.100"
_BRIDGE = "pods"


class PodNetwork:
    """The bridge, while the block lasts. A pod of one name always has the same address."""

    def __init__(self) -> None:
        self._tag = uuid.uuid4().hex[:6]
        self._addresses: dict[str, str] = {}
        self._made: set[str] = set()

    def __enter__(self) -> Self:
        _do(f"ip link add {_BRIDGE} type bridge")
        _do(f"ip address add {GATEWAY}/24 dev {_BRIDGE}")
        _do(f"ip link set {_BRIDGE} up")
        return self

    def __exit__(self, *_: object) -> None:
        for name in list(self._made):
            self.remove(name)
        _do(f"ip link delete {_BRIDGE}")

    def address(self, pod: str) -> str:
        """The address of the pod of this name, also before it runs."""
        return self._addresses.setdefault(pod, f"{_PREFIX}.{len(self._addresses) + 10}")

    def add(self, pod: str) -> Path:
        """Make the pod's network; the path by which a container joins it."""
        own = self._namespace(pod)
        outer = f"v{self.address(pod).rpartition('.')[2]}-{self._tag}"
        _do(f"ip netns add {own}")
        self._made.add(pod)
        _do(f"ip link add {outer} type veth peer name eth0 netns {own}")
        _do(f"ip link set {outer} master {_BRIDGE} up")
        _do(f"ip -n {own} link set lo up")
        _do(f"ip -n {own} address add {self.address(pod)}/24 dev eth0")
        _do(f"ip -n {own} link set eth0 up")
        return Path("/run/netns") / own

    def remove(self, pod: str) -> None:
        """The pod has ended: its pair of interfaces goes with its network."""
        if pod in self._made:
            _do(f"ip netns delete {self._namespace(pod)}")
            self._made.discard(pod)

    def _namespace(self, pod: str) -> str:
        return f"sickbay-{self._tag}-{pod}"


def _do(line: str) -> None:
    done = subprocess.run(line.split(), check=False, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, f"{line}: {done.stderr}"
