"""Evidence cut to the contract's bounds, at each bound and one beyond, and its report."""

import math
from dataclasses import replace
from typing import Any

import pytest

from nodeagent.evidence.bounds import (
    UNNAMED,
    bounded,
    bounded_details,
    component_name,
    cut,
    identifier,
)
from nodeagent.model import Clearing, FaultSighting, Gone, Loss, Observation, Status
from sickbay.v1 import limits

#: Checks of others may return values that are no text.
SEVEN: Any = 7
MANY = {str(number): "" for number in range(33)}
NAME, PLACE, TEXT = limits.MAX_NAME, limits.MAX_COMPONENT, limits.MAX_TEXT
SEEN = Observation("own", "/data", Status.FAILED, "full", "99 %")
FAULT = FaultSighting("own:1", "own", "/data", "words", "own:s", 1, 1.0, details={"a": "b"})


@pytest.mark.parametrize(
    ("text", "most", "kept"),
    [
        ("", 0, ""),
        ("abc", 3, "abc"),
        ("abcd", 3, "abc"),
        ("aü", 3, "aü"),
        ("aü", 2, "a"),  # half a letter is none
        ("a\nb", 9, "a\nb"),
        ("\udcff", 9, "\\udcff"),
    ],
)
def test_a_text_is_cut_in_bytes_between_two_letters(text: str, most: int, kept: str) -> None:
    assert cut(text, most) == kept


@pytest.mark.parametrize(("name", "most"), [(identifier, NAME), (component_name, PLACE)])
def test_a_name_of_so_many_bytes_stays_and_a_longer_one_gets_a_mark(name: Any, most: int) -> None:
    assert name("x" * most) == "x" * most
    longer = name("x" * (most + 1))
    assert len(longer) == most
    assert longer.startswith("x" * (most - 13) + "~")
    assert name("x" * (most + 2)) != longer
    wide = name("ü" * most)
    assert most - 1 <= len(wide.encode()) <= most
    assert name("ü" * (most // 2)) == "ü" * (most // 2)


def test_a_name_is_printable_and_a_component_any_characters() -> None:
    assert identifier("") == UNNAMED
    assert component_name("") == ""
    assert identifier("a\nb\x1f") == "a\\nb\\x1f"
    assert component_name("a\nb") == "a\nb"
    assert identifier("größe") == "größe"
    assert identifier(7) == "7"  # type: ignore[arg-type]  # others' checks say anything
    assert component_name(7) == "7"  # type: ignore[arg-type]
    assert len(identifier("\n" * NAME)) == NAME, "escapes count"


@pytest.mark.parametrize(
    "item",
    [
        SEEN,
        replace(SEEN, component="", reason="", message=""),
        Observation("x" * NAME, "x" * PLACE, Status.OK, "x" * NAME, "x" * TEXT),
        FAULT,
        replace(FAULT, source_seq=0, at=-5.0, component=""),
        replace(FAULT, source_seq=limits.MAX_COUNT),
        Clearing("GPU-1", "gpu-reset"),
        Clearing("", "gpu-reset", "x" * NAME),
        Loss("kmsg", 0, ""),
        Loss("kmsg", limits.MAX_COUNT, "x" * TEXT),
        Gone("own", "x" * PLACE),
    ],
)
def test_what_is_within_the_bounds_is_given_back_itself(item: Any) -> None:
    fits, trouble = bounded(item)
    assert fits is item
    assert trouble == ""


@pytest.mark.parametrize(
    ("item", "kept", "lost"),
    [
        (replace(SEEN, check=""), {"check": UNNAMED}, "check unnamed: its check"),
        (replace(SEEN, reason="r" * 200), {"reason": "r" * NAME}, "check own: its reason"),
        (replace(SEEN, message="m" * 2000), {"message": "m" * TEXT}, ""),
        (replace(SEEN, check="a\nb"), {"check": "a\\nb"}, ""),  # escaped, without a loss
        (replace(SEEN, component="ü"), {}, ""),
        (replace(SEEN, component="\udcff"), {"component": "\\udcff"}, ""),
        (replace(SEEN, component="c" * 5000), None, "check own: its component"),
        (replace(FAULT, code=""), {"code": UNNAMED}, "check own: its code"),
        (replace(FAULT, check=""), {"check": UNNAMED}, "check unnamed: its check"),
        (replace(FAULT, code="c" * 200), None, "check own: its code"),
        (replace(FAULT, check="c" * 200), None, f"check {'c' * 64}: its check"),
        (replace(FAULT, source=""), {"source": UNNAMED}, "check own: its source"),
        (replace(FAULT, component="c" * 5000), None, "check own: its component"),
        (replace(FAULT, message="m" * 2000), {"message": "m" * TEXT}, ""),
        (
            replace(FAULT, details={"": "b"}),
            {"details": {UNNAMED: "b"}},
            "check own: its details",
        ),
        (replace(SEEN, check="\n"), {"check": "\\n"}, ""),
        (replace(SEEN, check="\n" + "x" * (NAME - 1)), None, ""),
        (replace(FAULT, source="s" * 200), None, "check own: its source"),
        (replace(FAULT, details={"a": "v" * 1001}), None, "check own: its details"),
        (replace(FAULT, code="ü" * 64), {}, ""),
        (replace(FAULT, code="ü" * 65), None, "check own: its code"),
        (replace(FAULT, code="a\nb"), {"code": "a\\nb"}, ""),
        (replace(FAULT, details={"a\nb": "c\nd"}), None, "check own: its details"),
        (replace(FAULT, details={"ü" * 64: "ü" * 500}), {}, ""),
        (replace(FAULT, details={"ü" * 65: "b"}), None, "check own: its details"),
        (replace(FAULT, details={"a": "ü" * 501}), None, "check own: its details"),
        (
            replace(FAULT, details=MANY),
            None,
            "check own: its details",
        ),
        (replace(SEEN, check="ü" * 65), None, "check " + "ü" * 32 + ": its check"),
        (replace(SEEN, reason="ü" * 65), {"reason": "ü" * 64}, "check own: its reason"),
        (replace(SEEN, reason=SEVEN), {"reason": "7"}, "check own: its reason"),
        (replace(SEEN, message=SEVEN), {"message": "7"}, ""),
        (replace(FAULT, code=SEVEN), {"code": "7"}, "check own: its code"),
        (replace(FAULT, component=SEVEN), {"component": "7"}, "check own: its component"),
        (replace(FAULT, details={"a": SEVEN}), {"details": {"a": "7"}}, "check own: its details"),
        (Clearing("x", ""), {"how": UNNAMED}, "check unknown: its how"),
        (Clearing("x", "h" * 200), None, "check unknown: its how"),
        (Clearing("x", "operator", "c" * 200), None, "check unknown: its code"),
        (Clearing("c" * 5000, "operator"), None, "check unknown: its component"),
        (Loss("", 1, ""), {"source": UNNAMED}, "check unnamed: its source"),
        (Loss("own", -1, ""), {"records": 0}, "check own: its records"),
        (Loss("own", 2**64, ""), {"records": 2**64 - 1}, "check own: its records"),
        (Loss("own", 1, "m" * 2000), {"message": "m" * TEXT}, ""),
        (Gone("", "x"), {"check": UNNAMED}, "check unnamed: its check"),
        (Gone("own", "c" * 5000), None, "check own: its component"),
    ],
)
def test_what_is_beyond_a_bound_is_cut_and_the_field_that_lost_is_named(
    item: Any, kept: dict[str, Any] | None, lost: str
) -> None:
    fits, trouble = bounded(item)
    assert trouble == (f"{lost} is outside the contract's bounds and was cut" if lost else "")
    assert fits is not None
    again = bounded(fits)
    assert again == (fits, ""), "what was cut fits"
    if kept is not None:
        assert fits == replace(item, **kept)


@pytest.mark.parametrize(
    "item",
    [
        replace(FAULT, at=math.nan),
        replace(FAULT, at=math.inf),
        replace(FAULT, at=-math.inf),
        replace(FAULT, source_seq=-1),
        replace(FAULT, source_seq=limits.MAX_COUNT + 1),
    ],
)
def test_a_fault_without_a_time_or_a_number_cannot_be_told(item: FaultSighting) -> None:
    words = "a fault with an invalid time or sequence number was dropped"
    assert bounded(item) == (None, f"check own: {words}")


def test_so_many_details_are_kept_the_first_of_them() -> None:
    most = {f"k{n}": "v" for n in range(limits.MAX_DETAILS)}
    assert bounded_details(most) is most
    assert bounded_details(most | {"more": "v"}) == most
    full = {"k" * NAME: "v" * TEXT}
    assert bounded_details(full) is full
    assert bounded_details({"k": "v" * (TEXT + 1)}) == {"k": "v" * TEXT}
    [(name, value)] = bounded_details({"k" * (NAME + 1): "v"}).items()
    assert (len(name), value) == (NAME, "v")
    assert bounded_details({"k": "a\nb", "l": "c"}) == {"k": "a\nb", "l": "c"}
    assert bounded_details({"": "v"}) == {UNNAMED: "v"}
