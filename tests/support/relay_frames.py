"""The frames of a relay that tests write by hand."""

from typing import Any

from aggregator.health.model import Hello, Snapshot
from sickbay.v1 import relay_pb2 as frames
from sickbay.v1 import sickbay_pb2 as pb
from tests.support import evidence as said
from tests.support.relays import ISSUER


def hello(
    node: str = "node-1", *, instance: str = "i-1", boot: str = "boot-1", boottime: int = 1_000
) -> pb.AgentMessage:
    told = said.hello(
        Hello(
            node=node,
            boot_id=boot,
            spool_epoch="epoch-1",
            agent_version="0.1.0",
            contract_version=1,
            instance=instance,
        )
    )
    told.hello.boottime_ms = boottime
    return told


def opened(
    stream: int, node: str = "node-1", *, token: str | None = None, **how: Any
) -> frames.AgentFrame:
    shown = ISSUER.token(node) if token is None else token
    return frames.AgentFrame(
        stream=stream,
        opened=frames.AgentOpened(
            peer="ipv4:10.0.0.1:7",
            token=shown,
            hello=hello(node, **how).SerializeToString(),
        ),
    )


def message(stream: int, told: pb.AgentMessage) -> frames.AgentFrame:
    return frames.AgentFrame(stream=stream, message=told.SerializeToString())


def snapshot(stream: int, seq: int = 1) -> frames.AgentFrame:
    return message(stream, said.snapshot(Snapshot(components=(), faults=()), seq=seq))
