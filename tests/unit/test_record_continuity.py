"""Whether an admission record continues the one that was known, and what a rebuilt one has."""

from dataclasses import replace
from typing import Any

import pytest

from aggregator.cluster.port import Action, Phase, Quarantine, QuarantineSpec, QuarantineStatus
from aggregator.quarantine.decide.admission_record import (
    Cooldown,
    Entry,
    Known,
    Rebuilt,
    Record,
    discontinuity,
    has_begun,
    rebuild,
    takes_a_place,
)

KNOWN = Known("uid-1", "text", Record(generation=5))


@pytest.mark.parametrize(
    ("known", "uid", "text", "generation", "newest", "said"),
    [
        (None, "uid-1", "text", 0, 0, ""),
        (None, "uid-1", "text", 7, 7, ""),
        (None, "uid-1", "text", 6, 7, "is older (generation 6) than a Quarantine in force (7)"),
        (KNOWN, "uid-1", "text", 5, 5, ""),
        (KNOWN, "uid-1", "text", 5, 6, "is older (generation 5) than a Quarantine in force (6)"),
        (KNOWN, "uid-1", "other", 6, 6, ""),
        (KNOWN, "uid-1", "other", 9, 6, ""),
        (KNOWN, "uid-1", "other", 5, 0, "has another content in its generation 5"),
        (KNOWN, "uid-1", "other", 4, 0, "was rolled back from generation 5 to 4"),
        (KNOWN, "uid-1", "text", 4, 0, "was rolled back from generation 5 to 4"),
        (KNOWN, "uid-2", "text", 5, 0, "was deleted and made anew"),
        (KNOWN, "uid-2", "other", 6, 0, "was deleted and made anew"),
        (KNOWN, "", "", 0, 0, "is gone"),
        (KNOWN, "uid-2", "", 0, 0, "was deleted and made anew"),
        (KNOWN, "", "text", 5, 0, "was deleted and made anew"),
        (replace(KNOWN, record=Record()), "uid-2", "other", 0, 0, ""),
    ],
)
def test_a_record_continues_the_known_one_or_it_is_said_how_not(
    known: Known | None, uid: str, text: str, generation: int, newest: int, said: str
) -> None:
    record = Record(generation=generation)
    assert discontinuity(known, uid, text, record, newest=newest) == said


@pytest.mark.parametrize(
    ("uid", "generation", "said"),
    [
        ("uid-2", 6, ""),
        ("uid-2", 5, "was deleted and made anew"),
        ("uid-3", 6, "was deleted and made anew"),
    ],
)
def test_one_that_was_rebuilt_in_its_own_object_continues_from_the_next_generation(
    uid: str, generation: int, said: str
) -> None:
    record = Record(generation=generation, rebuilt=Rebuilt(1.0, "gone", "uid-2"))
    assert discontinuity(KNOWN, uid, "new", record) == said


def entry(node: str, at: float = 10.0, pool: str = "") -> Entry:
    return Entry(node, f"i-{node}", pool, at)


REBUILT = Rebuilt(99.0, "was deleted", "uid-2")


def test_a_rebuilt_record_has_the_entries_of_what_stands_with_their_own_times() -> None:
    known = Known(
        "uid-1",
        "",
        Record(
            {"a": entry("a", 1.0), "b": entry("b", 2.0), "gone": entry("gone", 3.0)},
            admissions=tuple((at, "") for at in (1.0, 2.0, 2.0, 3.0)),
            cooldowns={"": Cooldown(5.0, "old"), "x": Cooldown(9.0, "newer"), "k": Cooldown(1, "")},
            generation=5,
        ),
    )
    record = Record(
        {"b": entry("b", 20.0), "c": entry("c", 4.0)},
        admissions=((2.0, ""), (4.0, "")),
        cooldowns={"": Cooldown(6.0, "new"), "x": Cooldown(8.0, "older"), "y": Cooldown(2.0, "")},
        generation=3,
    )
    standing = [entry("a", 50.0), entry("b", 50.0), entry("c", 50.0), entry("new", 0.5)]
    made = rebuild(record, known, standing, rebuilt=REBUILT, newest=4)
    assert made == Record(
        {
            "a": entry("a", 1.0),
            "b": entry("b", 20.0),
            "c": entry("c", 4.0),
            "new": entry("new", 0.5),
        },
        admissions=tuple((at, "") for at in (0.5, 1.0, 2.0, 2.0, 3.0, 4.0)),
        cooldowns={
            "": Cooldown(6.0, "new"),
            "x": Cooldown(9.0, "newer"),
            "k": Cooldown(1, ""),
            "y": Cooldown(2.0, ""),
        },
        generation=5,
        rebuilt=REBUILT,
    )


@pytest.mark.parametrize(
    ("known", "generation", "newest", "made"),
    [(None, 0, 0, 0), (None, 0, 7, 7), (None, 8, 7, 8), (KNOWN, 3, 4, 5), (KNOWN, 3, 6, 6)],
)
def test_a_rebuilt_record_is_of_the_highest_generation_that_anything_tells_of(
    known: Known | None, generation: int, newest: int, made: int
) -> None:
    record = Record(generation=generation)
    found = rebuild(record, known, [], rebuilt=REBUILT, newest=newest)
    assert (found.generation, found.entries, found.admissions) == (made, {}, ())


def quarantine(phase: Phase = Phase.CORDONED, problem: str = "", **status: Any) -> Quarantine:
    spec = QuarantineSpec(Action.CORDON, "gpu", "why", incident="i-1")
    found = QuarantineStatus(phase=phase, **status)
    return Quarantine("n1", "uid", "1", spec, found, created_at=7.0, problem=problem)


@pytest.mark.parametrize("phase", list(Phase))
@pytest.mark.parametrize("problem", ["", "no such action"])
@pytest.mark.parametrize("cordoned_at", [0.0, 5.0])
def test_what_stands_takes_a_place_and_what_is_undone_keeps_it_where_it_had_begun(
    phase: Phase, problem: str, cordoned_at: float
) -> None:
    one = quarantine(phase, problem, cordoned_at=cordoned_at)
    takes = phase not in (Phase.RELEASING, Phase.INVALID) and not problem
    assert takes_a_place(one) == takes
    assert has_begun(one) == (takes or (phase is Phase.RELEASING and cordoned_at > 0))
