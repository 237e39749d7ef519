"""When what holds a release is checked again."""

from aggregator.quarantine.state.node import NodeState
from aggregator.quarantine.state.quarantine_view import QuarantineView


def test_each_hastened_check_of_a_release_doubles_the_pause_before_the_next() -> None:
    view, at = QuarantineView(), 100.0
    view.delay_release_check(at, 30.0)
    assert view.release_poll == 130.0
    for pause in (1.0, 2.0, 4.0, 8.0, 16.0):
        view.hasten_release_check(at + 1.0)
        assert view.release_poll == at + pause
        view.hasten_release_check(at + 25.0)  # a later wish puts nothing off
        assert view.release_poll == at + pause
        at += pause
        view.delay_release_check(at, 30.0)
    view.hasten_release_check(at + 1.0)
    assert view.release_poll == at + 30.0
    at += 30.0
    view.delay_release_check(at, 30.0)  # it came by itself
    view.hasten_release_check(at + 1.0)
    assert view.release_poll == at + 1.0
    view.release_poll = 0.0
    assert view.release_poll <= at


def test_a_node_that_is_in_no_quarantine_notes_nothing_of_one() -> None:
    node_state = NodeState("n1", now=lambda: 100.0)
    node_state.hasten_repair()
    node_state.note_recovery()
    node_state.hasten_release_check(1.0)
    assert node_state.quarantine_view == QuarantineView()
