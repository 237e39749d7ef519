"""The line that an error names is the line on which the key stands."""

import string
import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.configfile.toml_lines import Path, line_of

TEXT = '''\
# a comment with [brackets] and "quotes"
node = "a"   # and another
[aggregator]
address = "x:1"
"server name" = "it's"

[checks.disk_space]
paths = [
  "/",      # the root, a ] in a comment
  "/data",
]
note = """
interval = "a line inside a string"
"""
  [checks."quoted.name"]
  on = true
[checks]
reach.on = false
reach.targets = [{ name = "a", port = 1 }, { name = "b" }]
[[racks]]
name = "r1"
[[racks]]
name = "r2"
[racks.row]
number = 3
'''


@pytest.mark.parametrize(
    ("path", "line"),
    [
        (("node",), 2),
        (("aggregator",), 3),
        (("aggregator", "address"), 4),
        (("aggregator", "server name"), 5),
        (("checks", "disk_space"), 7),
        (("checks", "disk_space", "paths"), 8),
        (("checks", "disk_space", "paths", 1), 8),
        (("checks", "disk_space", "note"), 12),
        (("checks", "quoted.name"), 15),
        (("checks", "quoted.name", "on"), 16),
        (("checks", "reach", "on"), 18),
        (("checks", "reach", "targets", 1, "name"), 19),
        (("racks", 0, "name"), 21),
        (("racks", 1, "name"), 23),
        (("racks", 1, "row", "number"), 25),
    ],
)
def test_each_key_has_the_line_on_which_it_stands(path: Path, line: int) -> None:
    assert line_of(TEXT, path) == line


def test_a_key_that_is_not_there_has_the_line_of_the_table_around_it() -> None:
    text = "a = 1\n\n[checks.reach]\non = true\n"
    assert line_of(text, ("checks", "reach", "missing")) == 3
    assert line_of(text, ("nowhere",)) == 1


def test_a_long_list_is_not_parsed_again_for_each_of_its_lines(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parsed, loads = list[str](), tomllib.loads

    def counted(text: str) -> dict[str, Any]:
        parsed.append(text)
        return loads(text)

    monkeypatch.setattr(tomllib, "loads", counted)
    text = "a = [\n" + ' "host:80",\n' * 300 + "]\nb = 1\n"
    assert [line_of(text, path) for path in [("a", 200), ("b",)]] == [1, 303]
    assert len(parsed) < 20


def test_windows_line_ends_count_as_one_line_each() -> None:
    assert line_of("a = 1\r\n\r\nb = 2\r\n", ("b",)) == 3


def test_quotes_before_the_end_of_a_multi_line_string_belong_to_it() -> None:
    text = "a = \"\"\"x\n\"\"\"\"\nb = '''\ny'''''\nc = 1\n"
    assert line_of(text, ("c",)) == 5


keys = st.text(string.ascii_letters + " .\"\\#[]='é", min_size=1, max_size=6)
scalars = st.one_of(
    st.integers(-5, 5),
    st.booleans(),
    st.text(string.printable.replace("\r", ""), max_size=12),
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3),
    max_leaves=8,
)


def quoted(text: str) -> str:
    escapes = {'"': '\\"', "\\": "\\\\"}
    out = "".join(escapes.get(c) or (c if c.isprintable() else f"\\u{ord(c):04x}") for c in text)
    return f'"{out}"'


def written(value: Any, *, spread: bool) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return quoted(value)
    if isinstance(value, dict):
        inner = ", ".join(f"{quoted(k)} = {written(v, spread=False)}" for k, v in value.items())
        return "{" + inner + "}"
    if isinstance(value, list):
        gap = "\n # ] a comment\n" if spread else " "
        return "[" + "".join(f"{gap}{written(v, spread=spread)}," for v in value) + gap + "]"
    return str(value)


@given(st.dictionaries(keys, st.dictionaries(keys, values, max_size=3), max_size=4))
def test_every_key_of_any_document_is_found_on_its_own_line(
    document: dict[str, dict[str, Any]],
) -> None:
    rows: list[str] = []
    expected: dict[Path, int] = {}
    for table, content in document.items():
        rows.append(f"[{quoted(table)}]")
        expected[(table,)] = len(rows)
        for key, value in content.items():
            first = len(rows) + 1
            rows.extend(f"{quoted(key)} = {written(value, spread=True)}".split("\n"))
            expected[(table, key)] = first
    text = "\n".join(rows)
    assert tomllib.loads(text) == document
    assert {path: line_of(text, path) for path in expected} == expected
