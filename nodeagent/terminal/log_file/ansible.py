r"""The result of one machine in the output of ansible-playbook, by its callbacks default and yaml.

``ok: [node17] => {"stdout_lines": [...]}``, on one line or indented to a closing bracket; or
``ok: [node17] =>`` and indented YAML, of which block texts and lists of texts are read.
"""

import re
from collections.abc import Iterator
from typing import Any

from sickbay.json_text import read_json

TASK = re.compile(
    rb"(?:ok|changed|failed|fatal): \[([A-Za-z0-9][\w.-]{0,252})(?: -> [^\]]{1,253})?\]"
    rb"(?:: [A-Z]{4,12}!)?(?: \(item=.{0,200}?\))? => ?(.*)"
)
#: Bytes of a result; a longer one is not decoded.
_LONGEST = 8 << 20
_ITEM = re.compile(rb" *- (\'(?:[^\']|\'\')*\'|\"(?:[^\"\\]|\\.)*\"|.*)")

Numbered = tuple[int, bytes]


def result_lines(first: bytes, lines: Iterator[Numbered]) -> Iterator[bytes]:
    """The lines of a command's output in a result in JSON, which begins with ``first``."""
    text = first
    if text.strip() == b"{":
        for _, line in lines:
            text += line
            if line.rstrip() == b"}" or len(text) > _LONGEST:
                break
    try:
        value = read_json(text)
    except ValueError:
        yield text
        return
    for each in _texts(value):
        yield from each.encode("utf-8", "replace").splitlines()


def _texts(value: Any) -> list[str]:
    """Ansible repeats a text as a list of its lines, which is left out."""
    if not isinstance(value, dict):
        return []
    names = {name.rpartition(".")[2]: each for name, each in value.items()}
    for name in ("stdout_lines", "stdout", "msg"):
        found = names.get(name)
        if isinstance(found, list):
            return [each for each in found if isinstance(each, str)]
        if isinstance(found, str):
            return [found]
    return []


def of_yaml(line: bytes) -> bytes:
    """The text of an indented line: of a block, or of an item in a list."""
    item = _ITEM.match(line)
    if item is None:
        return line.strip()
    quoted = item[1].startswith(b"'")
    return item[1][1:-1].replace(b"''", b"'") if quoted else item[1].strip(b'"')
