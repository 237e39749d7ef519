"""The replay of one node's past: episodes, the difference of two lists, and sums."""

from dataclasses import replace

import pytest

from aggregator.daemon_cli.replay import _text
from aggregator.health.model import Cleared, Component, Delta, Status
from aggregator.policy.replay import Episode, ReplayEvent, Word, compare, live, totals
from tests.support.replica import POLICY, component, fault, hello, shipped_policy, snapshot

H = 3600.0


def episode(
    began: float,
    ended: float | None,
    action: str = "cordon",
    *,
    node: str = "n1",
    kind: str = "gpu",
    codes: str = "a",
) -> Episode:
    return Episode(node, kind, action, began, ended, "", set(), set(codes))


def lived(*events: tuple[float, Word], until: float = 50_000.0) -> list[Episode]:
    return live(POLICY, "n1", [ReplayEvent(at, word) for at, word in events], until)


def times(episodes: list[Episode]) -> list[tuple[str, float, float | None]]:
    return [(one.action, one.began, one.ended) for one in episodes]


def full(status: Status, since: float) -> Component:
    return component("disk-space", "/data", status, "bytes", since=since)


FULL = (full(Status.OK, 0.0), full(Status.FAILED, 1000.0))
WELL = full(Status.OK, 2000.0)


def test_words_of_an_agent_that_never_greeted_are_no_episode() -> None:
    assert lived((1000.0, snapshot(FULL[1])), (1100.0, Delta((FULL[1],))), (1200.0, None)) == []


def test_an_episode_lasts_from_its_rules_time_until_all_has_been_well_for_its_time() -> None:
    events: list[tuple[float, Word]] = [
        (900.0, hello("n1")),
        (900.0, snapshot(FULL[0])),
        (1000.0, Delta((FULL[1],))),
        (2000.0, Delta((WELL,))),
    ]
    assert times(lived(*events)) == [("cordon", 1090.0, 2120.0)]
    assert times(lived(*events, until=2119.0)) == [("cordon", 1090.0, None)]
    assert times(lived(*events, until=2120.0)) == [("cordon", 1090.0, 2120.0)]
    assert times(lived(*events[:3], until=1089.0)) == []
    assert times(lived(*events[:3], until=1090.0)) == [("cordon", 1090.0, None)]
    (one,) = lived(*events)
    assert (one.node, one.kind, one.rules, one.codes) == (
        "n1",
        "disk",
        {"disk-full"},
        {"disk-space:bytes"},
    )
    assert one.summary == "disk-space:bytes on /data"
    # A change alone is an agent's word, too: it speaks.
    assert times(lived(events[0], *events[2:])) == [("cordon", 1090.0, 2120.0)]


@pytest.mark.parametrize("word", [None, hello("n1")])
def test_while_an_agent_is_silent_or_has_only_greeted_no_time_passes(word: Word) -> None:
    begin: list[tuple[float, Word]] = [
        (900.0, hello("n1")),
        (900.0, snapshot(FULL[0])),
        (1000.0, Delta((FULL[1],))),
    ]
    # It fell silent before its failure had lasted for its rule's 90 s.
    assert times(lived(*begin, (1010.0, word))) == []
    # And while all was well again: the time begins anew with its next word.
    recovered = [*begin, (2000.0, Delta((WELL,)))]
    silent = lived(*recovered, (2010.0, word))
    assert times(silent) == [("cordon", 1090.0, None)]
    again = lived(*recovered, (2010.0, word), (3000.0, Delta((WELL,))))
    assert times(again) == [("cordon", 1090.0, 3120.0)]


def test_a_base_says_of_what_it_does_not_name_that_it_is_well() -> None:
    ended = lived(
        (900.0, hello("n1")),
        (900.0, snapshot(FULL[0])),
        (1000.0, Delta((FULL[1],))),
        (3000.0, hello("n1")),
        (3000.0, snapshot()),
    )
    assert times(ended) == [("cordon", 1090.0, 3120.0)]
    stays = lived(
        (900.0, hello("n1")),
        (900.0, snapshot(FULL[0])),
        (1000.0, Delta((FULL[1],))),
        (3000.0, hello("n1")),
        (3000.0, snapshot(FULL[1])),
    )
    assert times(stays) == [("cordon", 1090.0, None)]


def test_an_episode_asks_for_the_most_that_its_incident_asked_for() -> None:
    person = fault("xid:54", first_at=1000.0, last_at=1000.0)
    gone = fault("xid:79", "GPU-2", first_at=1100.0, last_at=1100.0)
    episodes = lived(
        (900.0, hello("n1")),
        (900.0, snapshot()),
        (1000.0, Delta(faults=(person,))),
        (1100.0, Delta(faults=(gone,))),
        (1200.0, Delta(cleared=(Cleared("xid:79", "GPU-2", "operator"),))),
    )
    assert times(episodes) == [("drain", 1000.0, None)]
    (one,) = episodes
    assert one.summary.startswith("xid:79 ")
    assert one.codes == {"xid:54", "xid:79"}
    assert one.rules == {"gpu-person", "gpu-gone"}


def test_an_episode_keeps_the_words_of_the_first_that_asked_for_its_action() -> None:
    (one,) = lived(
        (900.0, hello("n1")),
        (900.0, snapshot(fault("xid:79"))),
        (1000.0, Delta(faults=(fault("xid:48", "GPU-2"),))),
    )
    assert one.summary == "xid:79 (GPU has fallen off the bus) on GPU-1"


def test_another_boot_ends_what_a_boot_ends() -> None:
    events: list[tuple[float, Word]] = [
        (1000.0, hello("n1")),
        (1000.0, snapshot(fault("xid:79"))),
        (2000.0, hello("n1", "boot-2")),
        (2000.0, snapshot()),
    ]
    assert times(lived(*events)) == [("drain", 990.0, 2600.0)]
    same_boot = (2000.0, hello("n1"))
    assert times(lived(*events[:2], same_boot, events[3])) == [("drain", 990.0, None)]


def test_what_was_watched_and_acts_now_is_an_episode_that_ends_and_one_that_begins() -> None:
    once = fault("xid:109", first_at=1000.0, last_at=1000.0)
    episodes = lived(
        (900.0, hello("n1")),
        (900.0, snapshot()),
        (1000.0, Delta(faults=(once,))),
        (1500.0, Delta(faults=(replace(once, count=2, last_at=1500.0),))),
    )
    assert [(one.action, one.acts, one.ended) for one in episodes] == [
        ("observe", False, 1500.0),
        ("drain", True, None),
    ]


def test_a_policy_of_a_site_is_lived_through_in_its_own_words() -> None:
    slow = shipped_policy("rules: [{name: disk-full, for: 10m, action: drain}]")
    events = [ReplayEvent(900.0, hello("n1")), ReplayEvent(1000.0, snapshot(FULL[1]))]
    assert times(live(slow, "n1", events, 5000.0)) == [("drain", 1600.0, None)]


@pytest.mark.parametrize(
    ("before", "after", "found"),
    [
        (episode(0, 10), episode(0, 10), []),
        (episode(0, 10), episode(0.9, 10.9), []),
        (episode(0, 10), episode(1, 10), [("changes", "begins 1s later")]),
        (episode(5, 10), episode(0, 10), [("changes", "begins 5s sooner")]),
        (episode(0, 10), episode(0, 11), [("changes", "ends 1s later")]),
        (episode(0, 10), episode(0, 7), [("changes", "ends 3s sooner")]),
        (episode(0, None), episode(0, None), []),
        (episode(0, None), episode(0, 7), [("changes", "ends")]),
        (episode(0, 10), episode(0, None), [("changes", "does not end any more")]),
        (episode(0, 10), episode(0, 10, "drain"), [("changes", "cordon becomes drain")]),
        (
            episode(0, 10, "observe"),
            episode(3, 20),
            [("changes", "observe becomes cordon, begins 3s later, ends 10s later")],
        ),
        (episode(0, 10), episode(10, 20), [("changes", "begins 10s later, ends 10s later")]),
        (episode(10, 20), episode(0, 10), [("changes", "begins 10s sooner, ends 10s sooner")]),
        (episode(0, 10), episode(10.5, 20), [("vanishes", ""), ("appears", "")]),
        (episode(10.5, 20), episode(0, 10), [("appears", ""), ("vanishes", "")]),
        (episode(0, 10), episode(0, 10, codes="b"), [("appears", ""), ("vanishes", "")]),
        (episode(0, 10), episode(0, 10, kind="disk"), [("appears", ""), ("vanishes", "")]),
        (episode(0, 10, codes="ab"), episode(0, 10, codes="bc"), []),
    ],
)
def test_what_differs_between_two_episodes_is_told(
    before: Episode, after: Episode, found: list[tuple[str, str]]
) -> None:
    differences = compare([before], [after])
    assert [(one.what, one.how) for one in differences] == found
    for one in differences:
        assert one.before is (None if one.what == "appears" else before)
        assert one.after is (None if one.what == "vanishes" else after)
        assert one.shown is (before if one.what == "vanishes" else after)


def test_what_acts_is_paired_with_what_acts_before_it_is_paired_with_what_is_watched() -> None:
    watched, acting = episode(0, 10, "observe"), episode(2, 10)
    assert compare([watched, acting], [acting, watched]) == []
    assert compare([acting], [watched, acting])[0].after is watched
    [only] = compare([acting], [watched, acting])
    assert only.what == "appears"
    first, second = episode(0, 10), episode(20, 30)
    assert compare([first, second], [first, second]) == []
    assert [(one.what, one.shown) for one in compare([first, second], [second])] == [
        ("vanishes", first)
    ]
    assert [one.shown.began for one in compare([], [second, first])] == [0, 20]


def test_sums_are_of_what_acts_by_action_nodes_and_hours() -> None:
    many = [
        episode(0, H),
        episode(H / 2, 2 * H, "drain"),  # of the same node
        episode(H, 3 * H, node="n2"),
        episode(2 * H, None, node="n3"),
        episode(0, 9 * H, "observe", node="n4"),
    ]
    total = totals(many, 4 * H)
    assert total.by_action == {"cordon": 3, "drain": 1}
    assert total.node_hours == 1 + 1.5 + 2 + 2
    assert total.nodes_at_once == 3, "what ends when another begins was there with it"
    assert totals([], 4 * H) == replace(total, by_action={}, nodes_at_once=0, node_hours=0.0)


@pytest.mark.parametrize(
    ("episodes", "most"),
    [
        ([(0, 10, "a")], 1),
        ([(0, 10, "a"), (5, 15, "a")], 1),
        ([(0, 10, "a"), (5, 15, "a"), (12, 20, "b")], 2),
        ([(0, 10, "a"), (5, 15, "b"), (7, 8, "c")], 3),
        ([(0, 10, "a"), (11, 15, "b")], 1),
        ([(0, None, "a"), (90, None, "b")], 2),
    ],
)
def test_the_most_nodes_at_one_time_are_counted_once_each(
    episodes: list[tuple[float, float | None, str]], most: int
) -> None:
    many = [episode(began, ended, node=node) for began, ended, node in episodes]
    assert totals(many, 100.0).nodes_at_once == most


def test_an_episode_that_would_end_before_it_began_takes_no_hours() -> None:
    assert totals([episode(10 * H, 9 * H)], 20 * H).node_hours == 0.0
    assert totals([episode(10 * H, None)], 9 * H).node_hours == 0.0
    assert totals([episode(0, 1200.0)], H).node_hours == 0.33


def test_a_name_that_a_node_gives_moves_no_cursor() -> None:
    one = replace(episode(0.0, None), summary="disk-space:bytes on /data\x1b[2J\n")
    none = totals([], 0.0)
    lines = list(_text(compare([], [one]), (none, none), 1, (POLICY, POLICY)))
    assert lines[1].endswith("cordon  disk-space:bytes on /data?[2J")
