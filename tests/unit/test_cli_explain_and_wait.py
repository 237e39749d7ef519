"""`sickbay explain` and `sickbay wait`: their sentences and rules, without a server."""

import datetime as dt
import json
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aggregator.cli import render_nodes
from aggregator.cli.errors import CommandFailed
from aggregator.cli.explain import explanation, lines
from aggregator.cli.screen import Screen
from aggregator.cli.wait import GOALS, duration, reached, wait_for
from aggregator.web import node_view
from aggregator.web.node_view import ViewMoment
from tests.web.support import Hands, small_fleet

HANDS = Hands()
MOMENT = ViewMoment(HANDS.now, HANDS.wall)
NOW = MOMENT.when(HANDS.now)


def answer(node: str) -> dict[str, Any]:
    """The API's answer about a node of the small fleet."""
    fleet = small_fleet(HANDS)
    found = node_view.node(fleet, fleet.node_summaries[node], MOMENT)
    told: dict[str, Any] = json.loads(msgspec.json.encode(found))
    return told


def rendered(one: dict[str, Any]) -> str:
    return "\n".join(lines(explanation(one, NOW).as_json(), Screen(NOW)))


def test_a_node_whose_drain_is_blocked_is_explained_with_the_way_out() -> None:
    text = rendered(answer("node-2"))
    why, follows, to_do = text.split("\n\n")[1:]
    assert text.startswith("node-2 is quarantined.")
    assert "xid:79" in why
    assert "in force until a reboot of the node" in why
    assert "4 pods are left." in follows
    assert "training/llm-worker-17: disruption budget llm allows 0 more" in follows
    assert "It is released by itself after a reboot of the node" in follows
    assert "sickbay release node-2" in to_do


def test_a_gpu_is_named_by_index_and_address_beside_its_uuid_and_a_command_comes_once() -> None:
    one = answer("node-2")
    uuid = one["quarantine"]["evidence"][0]["component"]
    one["quarantine"]["reason"] = one["incidents"][0]["summary"] = "xid:79 on GPU 3 at 0000:1b:00"
    for found in (one["quarantine"], one["incidents"][0]):
        found["evidence"][0] |= {"device": "GPU 3 at 0000:1b:00", "component": uuid}
    text = rendered(one)
    assert text.count(": xid:79 on GPU 3 at 0000:1b:00\n") == 2
    assert f"- xid:79 GPU 3 at 0000:1b:00 ({uuid}) (rule" in text
    assert text.count("sickbay release node-2") == 1
    [line] = render_nodes.quarantines({"items": [one["quarantine"]]}, Screen(NOW))
    assert "xid:79 on GPU 3 at 0000:1b:00" in line
    assert uuid not in line


def test_a_command_that_ends_a_quarantine_selects_its_cluster() -> None:
    one = answer("node-2")
    one["quarantine"]["advice"] = "Wait."
    there = explanation(one, NOW, " --context x").to_do
    assert "To end the quarantine now: sickbay release node-2 --context x" in there
    one["quarantine"]["cluster"] = "local"
    local = explanation(one, NOW).to_do
    assert "To end the quarantine now: sickbay release node-2 --local DATABASE" in local
    assert "All that is known: sickbay node node-2" in local


def test_in_mode_observe_the_remedy_comes_first_and_a_silent_agent_has_a_next_step() -> None:
    one = answer("node-3") | {"mode": "observe"}
    assert explanation(one, NOW).to_do[0] == one["incidents"][0]["advice"]
    silent = explanation(one | {"state": "silent"}, NOW).to_do
    assert silent[0].startswith("See whether the agent runs on the node")


def test_a_remedy_that_quarantine_and_incident_share_comes_once() -> None:
    one = answer("node-2")
    one["quarantine"]["advice"] = "Reboot the node; it is released then. Sooner: sickbay release"
    one["incidents"][0]["advice"] = "Reboot the node. The node is released by itself."
    assert rendered(one).count("Reboot the node") == 1
    one["incidents"][0]["advice"] = "Replace its disk. The node is released by itself."
    assert "Replace its disk." in rendered(one)


@pytest.mark.parametrize("change", [{}, {"quarantine": None}], ids=["quarantined", "admitted"])
def test_a_failed_step_is_explained_with_its_error(change: dict[str, None]) -> None:
    one = answer("node-2") | change
    one["last_error"] = "PATCH nodes/node-2: 500: no endpoints for webhook"
    assert "tried again: PATCH nodes/node-2: 500: no endpoints for webhook" in rendered(one)


@pytest.mark.parametrize(
    ("mode", "says"),
    [("observe", "Mode observe evicts no pod"), ("drain", "Its drain begins next")],
)
def test_a_cordoned_node_is_promised_a_drain_in_mode_drain_alone(mode: str, says: str) -> None:
    one = answer("node-2") | {"mode": mode}
    one["quarantine"]["phase"] = "Cordoned"
    text = rendered(one)
    assert says in text
    assert ("Its drain begins next" in text) == (mode == "drain")


def test_a_held_node_names_the_limit_and_the_advice() -> None:
    text = rendered(answer("node-3"))
    assert "node-3 is held." in text
    assert "Held by limits.concurrent" in text
    assert answer("node-3")["hold"]["advice"] in text


def test_a_quarantine_by_hand_is_ended_by_a_person() -> None:
    one = answer("node-2")
    one["incidents"], one["quarantine"]["kind"] = [], "manual"
    assert "it stays until a person ends it" in rendered(one)
    assert "released by itself" not in rendered(one)


@pytest.mark.parametrize(
    ("state", "needs_person", "waits", "follows"),
    [
        ("", False, "its agent has not reported", "Its test waits: its agent has not"),
        ("", False, "", "Its test begins next."),
        ("Ordered", False, "", "Test quick of it is under way."),
        ("Failed", True, "it failed", "No test of it begins by itself any more: it failed"),
    ],
)
def test_a_new_node_is_explained_by_its_test(
    state: str, waits: str, follows: str, *, needs_person: bool
) -> None:
    test = {"state": state, "profile": "quick"} if state else None
    new = {"taint": "k", "tainted": True, "test": test, "waits": waits, "passed": False}
    new |= {"removes_taint": True}
    one = answer("node-1") | {"new_node": new | {"needs_person": needs_person}}
    text = rendered(one)
    assert "keeps its taint k until it has passed its test." in text
    assert follows in text
    assert "No step of sickbay follows" not in text
    assert ("kubectl taint nodes node-1 k-" in text) == needs_person


@pytest.mark.parametrize(
    ("passed", "why", "follows"),
    [
        (False, "until it has passed its test, and another controller removes it then, by", ""),
        (True, "it has passed its test, and its taint k is left to another", "Another controller"),
    ],
)
def test_a_new_node_whose_taint_another_controller_removes_says_so(
    why: str, follows: str, *, passed: bool
) -> None:
    test = {"state": "Succeeded" if passed else "Failed", "profile": "quick", "message": ""}
    new = {"taint": "k", "tainted": True, "test": test | {"operation": "o"}, "waits": ""}
    new |= {"removes_taint": False, "passed": passed, "needs_person": not passed}
    text = rendered(answer("node-1") | {"new_node": new})
    assert why in text
    assert "by the condition SickbayTestPassed" in text
    assert follows in text
    assert ("kubectl taint nodes node-1 k- (the controller that removes it by the" in text) == (
        not passed
    )
    [head, *_] = list(render_nodes.new_node("node-1", new))
    assert why in head


@pytest.mark.parametrize(
    ("state", "requested", "waits", "expected"),
    [
        ("Failed", "r1", "the node is cordoned", "test of it (r1): it waits, as the node is"),
        ("Failed", "r1", "", "A person has requested a test of it (r1)."),
        ("Ordered", "", "", "Test quick of it is under way; work that comes ends it."),
        ("Failed", "", "", "No step of sickbay follows."),
    ],
)
def test_a_test_by_hand_of_a_node_in_service_is_what_follows(
    state: str, requested: str, waits: str, expected: str
) -> None:
    new = {"taint": "", "tainted": False, "test": {"state": state, "profile": "quick"}}
    new |= {"waits": waits, "needs_person": False, "requested": requested, "passed": False}
    assert expected in rendered(answer("node-1") | {"new_node": new})


@pytest.mark.parametrize("node", sorted(small_fleet(HANDS).node_summaries))
def test_every_node_of_a_fleet_has_an_explanation(node: str) -> None:
    one = answer(node)
    made = explanation(one, NOW)
    assert made.why or one["state"] == "ok"
    assert made.follows
    assert all(line.isprintable() for line in rendered(one).split("\n"))


def test_hostile_text_stays_on_its_line() -> None:
    one = answer("node-2")
    one["quarantine"]["reason"] = "\x1b[2J\nWHAT FOLLOWS\nnothing\u202e"
    text = rendered(one)
    assert "?[2J WHAT FOLLOWS nothing?" in text
    assert text.count("\nWHAT FOLLOWS\n") == 1


# -- wait --------------------------------------------------------------------------------------


def quarantine(phase: str, action: str = "drain") -> dict[str, Any]:
    return {
        "phase": phase,
        "action": action,
        "message": "",
        "released_because": "recovered",
        "pods_remaining": 3,
        "blockers": [{"pod": "a/b", "reason": "budget"}],
    }


class Played:
    """A clock, and looks that follow each other; the last one stays."""

    def __init__(self, *looks: dict[str, Any] | CommandFailed | None) -> None:
        self.looks: Sequence[dict[str, Any] | CommandFailed | None] = looks
        self.now = 0.0
        self.asked = 0

    def read_next(self) -> dict[str, Any] | None:
        found = self.looks[min(self.asked, len(self.looks) - 1)]
        self.asked += 1
        if isinstance(found, CommandFailed):
            raise found
        return found

    def sleep(self, seconds: float) -> None:
        assert seconds >= 0
        self.now += max(seconds, 0.01)

    def wait(self, goal: str, timeout: float = 60.0) -> dict[str, Any] | None:
        clock: Callable[[], float] = lambda: self.now  # noqa: E731 - the clock of this play
        return wait_for(goal, self.read_next, timeout=timeout, clock=clock, sleep=self.sleep)


def test_a_drain_is_waited_for_through_all_of_its_phases() -> None:
    phases = [quarantine(name) for name in ("Admitted", "Cordoned", "Draining", "Drained")]
    played = Played(None, *phases)
    found = played.wait("drained")
    assert (found, played.asked) == (phases[-1], 5)


@pytest.mark.parametrize("phase", ["Cordoned", "Draining", "Drained"])
def test_a_marked_node_is_quarantined(phase: str) -> None:
    assert Played(quarantine("Admitted"), quarantine(phase)).wait("quarantined")


def test_a_node_without_a_quarantine_is_released_at_once() -> None:
    assert Played(None).wait("released") is None
    assert Played(quarantine("Drained"), quarantine("Releasing"), None).wait("released") is None


@pytest.mark.parametrize(
    ("goal", "looks", "says"),
    [
        ("drained", (quarantine("Draining"), None), "its quarantine has ended"),
        ("drained", (quarantine("Cordoned", "cordon"),), "is cordon"),
        ("drained", (quarantine("Releasing"),), "is Releasing: .* recovered"),
        ("quarantined", (quarantine("Invalid"),), "is Invalid"),
        (
            "drained",
            (quarantine("Draining"),),
            r"not drained within 60 s: Draining, 3 pods left, blocked by a/b: budget",
        ),
        (
            "quarantined",
            (quarantine("Admitted") | {"blockers": [], "last_error": "close exited with 3"},),
            "within 60 s: Admitted, 3 pods left, its last step failed .*: close exited with 3",
        ),
        ("quarantined", (None,), "within 60 s: it is not in quarantine; sickbay explain"),
        ("released", (CommandFailed("no kubeconfig"),), "no kubeconfig"),
    ],
)
def test_what_is_not_reached_is_told(goal: str, looks: tuple[Any, ...], says: str) -> None:
    with pytest.raises(CommandFailed, match=says):
        Played(*looks).wait(goal)


def test_a_connection_that_is_lost_for_a_time_does_not_end_the_wait(
    capsys: pytest.CaptureFixture[str],
) -> None:
    away = CommandFailed("the API server is out of reach")
    played = Played(quarantine("Drained"), away, away, away, None)
    assert played.wait("released") is None
    assert capsys.readouterr().err.count("trying again") == 1


@pytest.mark.slow
@given(
    st.sampled_from(GOALS),
    st.lists(
        st.none()
        | st.sampled_from(["Admitted", "Cordoned", "Draining", "Drained", "Releasing", "Invalid"]),
        min_size=1,
        max_size=6,
    ),
)
def test_a_wait_ends_in_its_time_and_only_says_what_is_so(
    goal: str, phases: list[str | None]
) -> None:
    played = Played(*(quarantine(phase) if phase else None for phase in phases))
    try:
        found = played.wait(goal, timeout=10.0)
    except CommandFailed:
        assert played.now <= 10.5
        return
    assert (found is None) is (goal == "released")
    assert reached(goal, found, was_there=True)


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("10m", 600), ("2h", 7200)])
def test_durations(text: str, seconds: float) -> None:
    assert duration(text) == seconds


@pytest.mark.parametrize("text", ["", "0s", "10", "1d", "-3m", "1h30m"])
def test_other_texts_are_no_durations(text: str) -> None:
    with pytest.raises(Exception, match="expected a time such as"):
        duration(text)


def test_explanations_know_the_phases_of_a_quarantine() -> None:
    one = answer("node-2")
    for phase in ("Admitted", "Cordoned", "Draining", "Drained", "Releasing", "Invalid"):
        one["quarantine"]["phase"] = phase
        assert explanation(one, dt.datetime.now(dt.UTC)).follows
