r"""The entries of a cloud's log in YAML, as ``gcloud logging read`` prints them without a format.

Documents are between lines of three hyphens. Only the fields that an entry needs are read.
"""

import re
from collections.abc import Iterable, Iterator

BEGINNING = b"---"
_FIELD = re.compile(
    rb"( *)(MESSAGE|message|textPayload|_TRANSPORT|SYSLOG_FACILITY|SYSLOG_IDENTIFIER): (.*)"
)
#: The most bytes of a text that is folded over several lines.
_LONGEST = 8192

Numbered = tuple[int, bytes]


def yaml_values(lines: Iterable[Numbered]) -> Iterator[tuple[int, dict[str, str]]]:
    """Each document's fields, with the number of the line of its text."""
    fields: dict[str, str] = {}
    name, depth, at = "", 0, 0
    for number, line in lines:
        field = _FIELD.fullmatch(line)
        if line == BEGINNING:
            yield from _whole(at, fields)
            fields, name, at = {}, "", 0
        elif field is not None:
            name, depth = field[2].decode(), len(field[1])
            fields[name] = field[3].decode("utf-8", "replace")
            at = number if not name.startswith(("_", "SYSLOG")) else at
        elif name and len(line) - len(line.lstrip()) > depth and len(fields[name]) < _LONGEST:
            fields[name] += " " + line.strip().decode("utf-8", "replace")
        else:
            name = ""
    yield from _whole(at, fields)


def _whole(at: int, fields: dict[str, str]) -> Iterator[tuple[int, dict[str, str]]]:
    if at:
        yield at, {name: _scalar(text) for name, text in fields.items()}


def _scalar(text: str) -> str:
    """The text of a plain scalar, of one in quotes, or of a block."""
    if text[:1] == text[-1:] == "'" and len(text) > 1:
        return text[1:-1].replace("''", "'")
    if text[:1] == text[-1:] == '"' and len(text) > 1:
        return text[1:-1].replace('\\"', '"').replace("\\\\", "\\")
    return re.sub(r"^[|>][+-]? ", "", text)
