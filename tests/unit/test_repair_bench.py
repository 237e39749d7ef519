"""The lost and the double orders that bench-repair counts."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import Mock, call

import pytest

from aggregator.quarantine.decide.admission_record import Record
from tests.bench.repair import gates
from tests.bench.repair_fences import BREACHES, OTHER, figure_of
from tests.bench.repair_kills import Kills, _evaluate, _has_ended, _until_all_ended
from tests.bench.repair_receiver import Carried

Attempts = Sequence[Mapping[str, str]]


class Shop:
    """The operations that the repairers carried out."""

    resent = 0

    def __init__(self, carried: Sequence[str], calls: Sequence[str]) -> None:
        self.carried = [
            Carried(one, one.partition("-")[0], "n1", "gpu-reset", 0.0) for one in carried
        ]
        self._calls = calls

    def commands(self) -> list[tuple[str, str, str]]:
        return [(one, one.partition("-")[0], "n1") for one in self._calls]


def attempt(operation: str, state: str) -> dict[str, str]:
    return {"operation": operation, "repair": operation.rpartition("-")[2], "state": state}


def evaluated(attempts: Attempts, carried: Sequence[str] = (), calls: Sequence[str] = ()) -> Kills:
    status: dict[str, Any] = {"uid": "q1", "repair": {"attempts": attempts}}
    shop: Any = Shop(carried, calls)
    return _evaluate({"n1": status}, shop, 1, 0, Record())


def test_an_attempt_that_reached_its_repairer_or_ended_without_is_not_lost() -> None:
    made = [attempt("q1-1-reset", "Succeeded"), attempt("q1-2-external", "Unknown")]
    found = evaluated([*made, attempt("q1-3-ticket", "Failed")], carried=["q1-1-reset"])
    assert (found.lost, found.double) == ((), ())


@pytest.mark.parametrize("state", ["Ordering", "Ordered", "Succeeded"])
def test_an_attempt_without_an_end_or_that_never_arrived_is_lost(state: str) -> None:
    assert evaluated([attempt("q1-1-reset", state)]).lost == (f"n1 q1-1-reset {state}",)


def test_a_due_repair_without_an_attempt_is_lost() -> None:
    shop: Any = Shop((), ())
    assert _evaluate({"n1": {"uid": "q1"}}, shop, 1, 0, Record()).lost == ("n1",)


def test_an_operation_that_was_carried_out_twice_is_double() -> None:
    made = [attempt("q1-1-external", "Succeeded")]
    assert evaluated(made, calls=["q1-1-external"] * 2).double == ("q1-1-external 2 times",)


def test_two_operations_of_one_rung_are_double_and_so_is_one_without_an_attempt() -> None:
    made = [attempt("q1-1-reset", "Failed"), attempt("q1-2-reset", "Failed")]
    assert evaluated(made, carried=["q1-1-reset", "q1-2-reset"]).double == ("q1 gpu-reset",)
    assert evaluated(made, carried=["q1-9-reset"]).double == ("q1-9-reset without an attempt",)


@pytest.mark.parametrize(
    ("repair", "ended"),
    [
        ({}, False),
        ({"attempts": [attempt("a", "Ordered")]}, False),
        ({"attempts": [attempt("a", "Failed")]}, False),
        ({"attempts": [attempt("a", "Succeeded")]}, True),
        ({"attempts": [attempt("a", "Unknown")], "exhausted": "it is not known"}, True),
    ],
)
def test_a_ladder_has_ended_with_a_success_or_where_a_person_has_to_go_on(
    *, repair: dict[str, Any], ended: bool
) -> None:
    assert _has_ended({"repair": repair}) is ended


def test_attempts_are_counted_when_none_can_begin_any_more() -> None:
    done = {"repair": {"attempts": [attempt("q1-1-reset", "Succeeded")]}}
    next_one = {"repair": {"attempts": [attempt("q1-2-ticket", "Ordering")]}}
    last = {"repair": {"attempts": [attempt("q1-2-ticket", "Failed")], "exhausted": "no rung"}}
    reads = iter(({"n1": done}, {"n1": next_one}, {"n1": last}, {"n1": last}))
    aggregator: Any = Mock()
    found = _until_all_ended(aggregator, lambda: next(reads), 1)
    assert found == {"n1": last}
    assert aggregator.mock_calls == [call.start(), call.kill(), call.start(), call.kill()]


def test_a_gate_fails_above_its_bound() -> None:
    fine = {"decide_to_order_p99_ms": 100.0, "bisection_rounds_1024": 22}
    rest = ("lost_orders", "double_orders", "reservations_left", "bisection_wrong")
    links = ("bisection_link_rounds_1024", "bisection_links_missed")
    zero = (*rest, *links, *BREACHES.values(), OTHER)
    figures: dict[str, float | int | str] = {**fine, **dict.fromkeys(zero, 0)}
    assert gates(figures) == []
    figures |= {"lost_orders": 1, "decide_to_order_p99_ms": 100.1}
    assert [one.split()[0] for one in gates(figures)] == ["decide_to_order_p99_ms", "lost_orders"]


@pytest.mark.parametrize(
    ("wrong", "figure"),
    [
        ("9.50 the_sender_holds_its_place: repair of n1 was sent", "orders_after_lost_place"),
        ("9.50 limits_hold: 3 repairs are reserved", "cap_exceeded"),
        ("9.50: ['r0', 'r1'] may act", "fence_breaches_other"),
        ("in the end n1 is None and not Drained", "fence_breaches_other"),
    ],
)
def test_each_breach_is_counted_by_its_figure(wrong: str, figure: str) -> None:
    assert figure_of(wrong) == figure


def test_the_command_of_the_bench_records_each_call(tmp_path: Path) -> None:
    import subprocess

    from tests.bench.repair_receiver import RepairReceiver, at_once

    with RepairReceiver(tmp_path, at_once) as shop:
        for node, code in (("kill-00001", 0), ("kill-00002", 1)):
            done = subprocess.run([shop.command, "op", "q1", node], check=False)
            assert done.returncode == code
        assert shop.commands() == [("op", "q1", "kill-00001"), ("op", "q1", "kill-00002")]
