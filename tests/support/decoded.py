"""Messages as evidence, in one step. Without ``dropped`` the first wrong entry is raised."""

from typing import TypeVar

from aggregator.health.model import Delta, Hello, Snapshot
from aggregator.ingest import codec
from aggregator.ingest.codec import Dropped
from sickbay.v1 import sickbay_pb2 as pb

T = TypeVar("T")


def snapshot(message: pb.Snapshot, *, at: float, dropped: Dropped | None = None) -> Snapshot:
    collected = Dropped() if dropped is None else dropped
    return _whole(codec.snapshot_in_steps(message, at=at, dropped=collected), collected, dropped)


def delta(message: pb.Delta, *, at: float, dropped: Dropped | None = None) -> Delta:
    collected = Dropped() if dropped is None else dropped
    return _whole(codec.delta_in_steps(message, at=at, dropped=collected), collected, dropped)


def hello(message: pb.Hello) -> Hello:
    collected = Dropped()
    found = codec.hello(message, collected)
    _raise_first(collected)
    return found


def _whole(steps: codec.Steps[T], collected: Dropped, given: Dropped | None) -> T:
    while True:
        try:
            next(steps)
        except StopIteration as done:
            if given is None:
                _raise_first(collected)
            found: T = done.value
            return found


def _raise_first(dropped: Dropped) -> None:
    if dropped.entries:
        field, _, what = dropped.reason.partition(": ")
        raise codec.InvalidMessage(field, what)
