"""Edits of a manifest's text that keep its comments: values, conditions, insertions, by key path.

A path is a tuple of keys, positions in a sequence, and ``("name", "VALUE")`` for the item of a
sequence with that name. The manifests are written in block style with sequences indented below
their key, so that the lines of an entry are those that are indented more than its key.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import yaml

from tests.support.present import of_type

Step = str | int | tuple[str, str]
Path = tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class Lines:
    """The lines of an entry, zero-based and half-open, and the column of its first character.

    ``lead`` is the first of the comment lines that stand directly above it.
    """

    lead: int
    start: int
    end: int
    column: int


@dataclass
class ManifestText:
    """One document of a YAML file, whose edits are collected and then made at once."""

    text: str
    _edits: list[tuple[int, int, int, list[str]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._lines = self.text.splitlines()
        root = of_type(yaml.compose(self.text), yaml.MappingNode)
        self._root = root

    def set_value(self, path: Path, expression: str) -> None:
        """The entry at ``path`` gets ``expression`` as its value, on one line."""
        at = self._find(path)
        head = self._lines[at.start].partition(":")[0]
        self._replace(at.start, at.end, [f"{head}: {expression}"])

    def set_block(self, path: Path, lines: Sequence[str], *, marker: str = "") -> None:
        """The entry at ``path`` gets these lines as its value, and ``marker`` behind its colon."""
        at = self._find(path)
        head = self._lines[at.start].partition(":")[0]
        self._replace(at.start, at.end, [f"{head}:{f' {marker}' if marker else ''}", *lines])

    def set_items(self, path: Path, expression: str) -> None:
        """The sequence at ``path`` is what ``expression`` renders to, indented like its items."""
        at = self._find(path)
        self.set_block(path, [f"{' ' * (at.column + 2)}{{{{- {expression} }}}}"])

    def guard(self, path: Path, condition: str, otherwise: Sequence[str] = ()) -> None:
        """The entry at ``path``, with its comments, is there if ``condition`` holds.

        ``otherwise`` are the lines that stand in its place.
        """
        at = self._find(path) if path else Lines(0, 0, len(self._lines), 0)
        rest = ["{{- else }}", *otherwise] if otherwise else []
        self._insert(at.lead, [f"{{{{- if {condition} }}}}"], order=0)
        self._insert(at.end, [*rest, "{{- end }}"], order=3 * at.column + 2)

    def insert_after(self, path: Path, lines: Sequence[str]) -> None:
        """These lines follow the entry at ``path``; they are indented as its parent's entries."""
        at = self._find(path)
        self._insert(at.end, [" " * at.column + line for line in lines], order=3 * at.column + 1)

    def edited(self) -> str:
        """The text with all edits."""
        lines = list(self._lines)
        for start, end, _, new in sorted(self._edits, key=lambda edit: edit[:3], reverse=True):
            lines[start:end] = new
        return "\n".join(lines) + "\n"

    def _replace(self, start: int, end: int, new: list[str]) -> None:
        self._edits.append((start, end, 1, new))

    def _insert(self, line: int, new: list[str], *, order: int) -> None:
        # At one line, ends of entries come before beginnings, and the innermost end first.
        self._edits.append((line, line, -order, new))

    def _find(self, path: Path) -> Lines:
        node: yaml.Node = self._root
        mark = node.start_mark
        for step in path:
            node, mark = _child(node, step, path)
        column = mark.column
        start = mark.line
        if isinstance(path[-1], (int, tuple)):
            column -= 2  # the item begins at its hyphen
        end = start + 1
        while end < len(self._lines) and _belongs(self._lines[end], column):
            end += 1
        while not self._lines[end - 1].strip():
            end -= 1
        lead = start
        while lead and self._lines[lead - 1].startswith(" " * column + "# "):
            lead -= 1
        return Lines(lead, start, end, column)


def _belongs(line: str, column: int) -> bool:
    return not line.strip() or len(line) - len(line.lstrip()) > column


def _child(node: yaml.Node, step: Step, path: Path) -> tuple[yaml.Node, yaml.Mark]:
    if isinstance(node, yaml.MappingNode) and isinstance(step, str):
        for key, value in node.value:
            if key.value == step:
                return value, key.start_mark
    if isinstance(node, yaml.SequenceNode):
        if isinstance(step, int) and step < len(node.value):
            return node.value[step], node.value[step].start_mark
        if isinstance(step, tuple):
            for item in node.value:
                if any((key.value, value.value) == step for key, value in item.value):
                    return item, item.start_mark
    raise LookupError(f"{path}: there is no {step!r}")
