"""The difference between two texts of a page leads from the one to the other."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aggregator.web.page_delta import PageDeltas, Part, difference

ROW = '      <td data-label="Node"><a href="/nodes/{0}">{0}</a></td>'
NAMES = st.text("abü\U0001f525<", max_size=4)
LINES = st.lists(
    st.one_of(st.sampled_from(["<tr>", "</tr>", "", "ü\r", "c" * 60]), NAMES.map(ROW.format)),
    max_size=40,
)


def applied(before: str, parts: list[Part]) -> str:
    """As static/live.js does it."""
    lines = before.split("\n")

    def whole(part: Part) -> str:
        if isinstance(part, str):
            return part
        if len(part) == 2:
            return "\n".join(lines[part[0] : part[1]])
        number, first, last, between = part
        line = lines[number]
        return line[:first] + between + line[len(line) - last :]

    return "\n".join(map(whole, parts))


@pytest.mark.slow
@given(LINES, LINES)
def test_the_parts_make_the_new_text_of_the_old_one(before: list[str], after: list[str]) -> None:
    old, new = "\n".join(before), "\n".join(after)
    parts = difference(old, new)
    if parts is not None:
        assert applied(old, parts) == new
        edited = {part[0] for part in parts if len(part) == 4 and not isinstance(part, str)}
        assert all(before[number].isascii() for number in edited), "JavaScript counts otherwise"


def test_one_changed_line_is_all_that_is_sent() -> None:
    old = [f"line {number}, of many" for number in range(400)]
    new = [*old[:200], "changed", *old[201:]]
    assert difference("\n".join(old), "\n".join(new)) == [(0, 200), "changed", (201, 400)]


def test_a_new_row_is_sent_as_an_edit_of_another() -> None:
    old = ["<table>", *map(ROW.format, ("gpu-1", "gpu-2", "gpu-3")), "</table>"] * 5
    new = [*old, ROW.format("gpu-9")]
    assert difference("\n".join(old), "\n".join(new)) == [(0, 25), (23, 48, 9, '9">gpu-9')]


def test_what_differs_too_much_is_sent_whole() -> None:
    assert difference("a\nb\nc", "d\ne\nf") is None
    old, new = (
        "\n".join(f"{one} {number}" for number in range(2000)) for one in ("before", "after")
    )
    assert difference(f"same\n{old}", f"same\n{new}") is None


def test_a_table_of_which_each_row_has_changed_is_compared_in_milliseconds() -> None:
    """The comparison runs on the event loop, before a heartbeat or an eviction."""
    before, after = (
        "\n".join(f"<tr>\n<td>{one} {number}</td>\n</tr>" for number in range(480))
        for one in ("silent for 3 min, by its agent", "silent for 4 min, by its agent")
    )
    began = time.process_time()
    parts = difference(before, after)
    assert time.process_time() - began < 0.5, "of this process alone: load does not count"
    assert parts is not None
    assert applied(before, parts) == after


def test_a_text_that_was_forgotten_is_no_base() -> None:
    deltas = PageDeltas(most_characters=3000)
    text = "\n".join(f"line {number}" for number in range(100))
    first, second = deltas.remember(text), deltas.remember(f"{text}\nmore")
    assert deltas.between(first, second) == [(0, 100), "more"]
    assert deltas.remember(text) == first, "the same text has the same tag"
    deltas.remember("x" * 1500)
    third = deltas.remember("y" * 1400)
    assert deltas.between(second, third) is None
    assert deltas.between("no tag", third) is None
