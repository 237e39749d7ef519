"""The difference between a page's present text and the text that its reader has.

A page changes by a few lines at a time, and hundreds of people may watch it during an incident. A
text is known by its tag, a hash of it; the texts that readers were sent last are remembered.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Sequence

from aggregator.runtime.recent import Recent
from aggregator.runtime.text import common_start

#: Texts are remembered up to this number of characters in all; a reader of a forgotten one gets the
#: whole page.
MOST_CHARACTERS = 16 * 2**20
#: Lines that differ, from the first to the last: a comparison of this number takes some
#: milliseconds of the event loop.
_MOST_LINES = 1500
#: Differences that are remembered: all readers of a page wait for the same one.
_MOST_DELTAS = 64

#: Old lines that a new line is compared with begin with the same characters: rows of one table.
_ALIKE = 24
#: A line is sent as an edit of another where that saves this number of characters.
_SAVES = 20

#: A range of lines of the known text (from, until); a line made of one (its number, how many of its
#: first characters, how many of its last, and the text in between); or new lines.
Part = tuple[int, int] | tuple[int, int, int, str] | str


def tag_of(text: str) -> str:
    """A short name of the text, by its content."""
    return hashlib.blake2s(text.encode(errors="surrogatepass"), digest_size=8).hexdigest()


class PageDeltas:
    """Remembers texts, and makes each difference once."""

    def __init__(self, most_characters: int = MOST_CHARACTERS) -> None:
        self._most = most_characters
        self._texts: OrderedDict[str, str] = OrderedDict()
        self._characters = 0
        self._deltas: Recent[tuple[str, str], list[Part] | None] = Recent(_MOST_DELTAS)

    def remember(self, text: str) -> str:
        """Keep the text; the tag that it is known by."""
        tag = tag_of(text)
        if tag in self._texts:
            self._texts.move_to_end(tag)
            return tag
        self._texts[tag] = text
        self._characters += len(text)
        while self._characters > self._most and len(self._texts) > 1:
            self._characters -= len(self._texts.popitem(last=False)[1])
        return tag

    def between(self, base: str, tag: str) -> list[Part] | None:
        """The parts, joined by line breaks, that make the text ``tag`` from the text ``base``.

        None where one of them is not known, or where the whole text is the better answer.
        """
        if base not in self._texts or tag not in self._texts:
            return None
        key = base, tag
        if key not in self._deltas:
            self._deltas[key] = difference(self._texts[base], self._texts[tag])
        return self._deltas[key]


def difference(before: str, after: str) -> list[Part] | None:
    """As `PageDeltas.between`, of two texts."""
    old, new = before.split("\n"), after.split("\n")
    head = common_start(old, new)
    tail = common_start(old[head:][::-1], new[head:][::-1])
    end = len(old) - tail
    changed = new[head : len(new) - tail]
    if max(end - head, len(changed)) > _MOST_LINES:
        return None
    parts: list[Part] = [(0, head)] if head else []
    _add_lines(parts, changed, old, range(head, end))
    if tail:
        parts.append((len(old) - tail, len(old)))
    sent = sum(len(part) if isinstance(part, str) else 10 + len(str(part[-1])) for part in parts)
    return parts if sent < len(after) / 2 else None


def _add_lines(parts: list[Part], lines: Sequence[str], old: Sequence[str], among: range) -> None:
    """Add new lines: each is the old line after the one used last, where these are equal, else any
    equal one. ``among``: the numbers of the old lines that may be used.

    The time grows with the number of lines alone. A search for the longest common part takes
    seconds where every row of a table has changed, because rows share lines such as "</tr>".
    """
    equal = {old[number]: number for number in reversed(among)}
    alike = {line[:_ALIKE]: number for number, line in enumerate(old)}
    after = among.start
    for line in lines:
        found = after if after in among and old[after] == line else equal.get(line)
        if found is not None:
            _add_equal(parts, found)
        else:
            _add_line(
                parts, line, old, (after if after in among else -1, alike.get(line[:_ALIKE], -1))
            )
            edit = parts[-1]
            found = after if isinstance(edit, str) else edit[0]
        after = found + 1


def _add_equal(parts: list[Part], number: int) -> None:
    """Add an old line as it is."""
    last = parts[-1] if parts else ""
    if not isinstance(last, str) and len(last) == 2 and last[1] == number:
        parts[-1] = (last[0], number + 1)
    else:
        parts.append((number, number + 1))


def _add_line(
    parts: list[Part], line: str, old: Sequence[str], candidates: tuple[int, ...]
) -> None:
    """Add a new line, as an edit of the best candidate (numbers of old lines, -1 for none)."""
    edits = [_edit(line, number, old[number]) for number in candidates if number >= 0]
    best = min(edits, key=lambda edit: len(edit[3]), default=None)
    if best is not None and len(best[3]) <= len(line) - _SAVES:
        parts.append(best)
    elif parts and isinstance(parts[-1], str):
        parts[-1] += f"\n{line}"
    else:
        parts.append(line)


def _edit(line: str, number: int, old: str) -> tuple[int, int, int, str]:
    if not old.isascii():
        return number, 0, 0, line  # a browser counts other characters differently
    first = common_start(line, old)
    last = common_start(line[first:][::-1], old[first:][::-1])
    return number, first, last, line[first : len(line) - last]
