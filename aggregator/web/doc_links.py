"""Finds the documents and commands that a text names, so that the page can link and copy them.
Pure.
"""

import re
from typing import Literal

Kind = Literal["text", "document", "command"]

#: A document of the tree, with its section: docs/holds.md#stop.
_DOCUMENT = r"\bdocs/[a-z0-9-]+\.md(?:#[a-z0-9-]+)?"
#: Words behind a command that belong to its sentence.
_NEXT = r"(?:to|or|and|until|where|if|is|in|for|of|lists|it)\b"
_WORD = rf"(?!{_NEXT})(?:\"[^\"]*\"|'[^']*'|[A-Za-z0-9@%+=:./_{{}}-]*[A-Za-z0-9@%+=/_{{}}-])"
_OWN = (
    "alert|bisect|bundle|exempt|explain|forget|history|incidents|lemons|node|nodes|pin|quarantine|"
    "quarantines|release|repair|replicas|resume|status|stop|test|unexempt|unpin|wait|watch"
)
_KUBECTL = "annotate|apply|create|delete|describe|get|label|logs|patch|taint|uncordon|-n"
_PROGRAMS = rf"sickbay (?:{_OWN})|kubectl (?:{_KUBECTL})|scancel|sinfo -N"
_COMMAND = rf"\b(?:{_PROGRAMS})(?![A-Za-z-])(?: {_WORD})*"
_PIECE = re.compile(rf"`(?P<quoted>[^`]+)`|(?P<document>{_DOCUMENT})|(?P<command>{_COMMAND})")


def pieces(text: str) -> list[tuple[str, Kind]]:
    """The text in pieces: each document's path, each command, and the text between. Backticks
    around a command or a name are left out.
    """
    found: list[tuple[str, Kind]] = []
    end = 0
    for match in _PIECE.finditer(text):
        found.append((text[end : match.start()], "text"))
        if match["document"] is not None:
            found.append((match["document"], "document"))
        else:
            found.append((match["quoted"] or match["command"], "command"))
        end = match.end()
    return [*found, (text[end:], "text")]
