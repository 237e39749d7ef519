"""Node states whose fields are named without their parts."""

import dataclasses
from collections.abc import Callable

from aggregator.quarantine.state.fleet import FleetState, NodeSummary
from aggregator.quarantine.state.node import NodeState


def summary_of(name: str, **fields: object) -> NodeSummary:
    """A node's summary with these fields, each in the part that has one of this name."""
    made = NodeSummary(name)
    set_fields(made, **fields)
    return made


def state_of(name: str, now: Callable[[], float] = lambda: 0.0, **fields: object) -> NodeState:
    """A node's state with these fields. ``now`` is in monotonic seconds."""
    made = NodeState(name, now=now)
    set_fields(made, **fields)
    return made


def summary_in(fleet: FleetState, node: str) -> NodeSummary:
    """The node's summary in the fleet, made when there is none yet."""
    return fleet.node_summaries.setdefault(node, NodeSummary(node))


def set_fields(owner: NodeSummary, **fields: object) -> None:
    for name, value in fields.items():
        setattr(part_with(owner, name), name, value)


def part_with(owner: NodeSummary, name: str) -> object:
    """The part of the node's state that has this field, to be read or changed."""
    parts = [getattr(owner, one.name) for one in dataclasses.fields(owner)]
    for part in (owner, *parts):
        if any(one.name == name for one in _fields(part)):
            return part
    raise AttributeError(name)


def _fields(part: object) -> tuple["dataclasses.Field[object]", ...]:
    return dataclasses.fields(part) if dataclasses.is_dataclass(part) else ()
