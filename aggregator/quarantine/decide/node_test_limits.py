"""The reservation of a node's test in the admission record. Pure.

The record is changed by compare-and-set, so its limits hold for any interleaving of replicas.
"""

from dataclasses import replace

from aggregator.quarantine.decide.admission import Held, settling, stopped
from aggregator.quarantine.decide.admission_record import Record, RunningRepair
from aggregator.quarantine.decide.idle_nodes import IdleNodeRules, no_room_for_idle
from aggregator.quarantine.decide.new_nodes import NewNodeRules, no_room


def other_tests(record: Record, node: str) -> dict[str, RunningRepair]:
    """The tests under way on other nodes."""
    return {name: one for name, one in record.node_tests.items() if name != node}


def reserve_test(
    record: Record,
    wanted: RunningRepair,
    rules: NewNodeRules | IdleNodeRules,
    nodes: int,
    *,
    now: float,
    stop: str = "",
) -> tuple[Record, Held | None]:
    """The record with the test under way, or why it may not begin now. Idempotent.

    ``rules`` are those of its kind, of new or of idle nodes. ``nodes``: those of the fleet.
    """
    if stop:
        return record, stopped(stop)
    known = record.node_tests.get(wanted.node)
    if known is not None and known.operation == wanted.operation:
        return record, None
    settles = settling(record, now)
    if settles is not None:
        return record, settles
    others = other_tests(record, wanted.node)
    if isinstance(rules, IdleNodeRules):
        running = record.repairs.values()
        held = no_room_for_idle(others.values(), running, wanted.domains, rules, nodes)
    else:
        held = no_room(others.values(), rules.concurrent)
    if held is not None:
        return record, held
    return replace(record, node_tests={**others, wanted.node: wanted}), None
