"""Node states whose fields are named without their parts."""

import dataclasses

from aggregator.quarantine.state.fleet import NodeSummary
from aggregator.quarantine.state.node import NodeState


def summary_of(name: str, **fields: object) -> NodeSummary:
    """A node's summary with these fields, each in the part that has one of this name."""
    made = NodeSummary(name)
    set_fields(made, **fields)
    return made


def set_fields(owner: NodeState | NodeSummary, **fields: object) -> None:
    for name, value in fields.items():
        setattr(part_with(owner, name), name, value)


def part_with(owner: NodeState | NodeSummary, name: str) -> object:
    """The part of the node's state that has this field, to be read or changed."""
    summary = owner.node_summary if isinstance(owner, NodeState) else owner
    summary.own_quarantine_view()  # the shared one can't be changed
    parts = [getattr(summary, one.name) for one in dataclasses.fields(summary)]
    for part in (owner, summary, *parts):
        if any(one.name == name for one in _fields(part)):
            return part
    raise AttributeError(name)


def _fields(part: object) -> tuple["dataclasses.Field[object]", ...]:
    return dataclasses.fields(part) if dataclasses.is_dataclass(part) else ()
