"""One simulated node with a real uplink."""

import random
from typing import TypeVar

from nodeagent.clock import SystemClock
from nodeagent.config.settings import UplinkConfig
from nodeagent.simulate.node import SimulatedNode
from nodeagent.uplink.dialer import Dialer

N = TypeVar("N", bound=SimulatedNode)


def simulated_node(address: str, kind: type[N]) -> N:
    """A node with one GPU, "node-a", whose uplink goes to ``address``."""
    draw = random.Random(7).random
    return kind(
        "node-a",
        gpus=1,
        seed=7,
        address=address,
        dialer=Dialer(UplinkConfig(address=address)),
        clock=SystemClock(),
        draw=draw,
        jitter=draw,
        on_change=lambda: None,
    )
