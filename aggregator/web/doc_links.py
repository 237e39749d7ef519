"""Finds the documents that a text names, so that the page can link them. Pure."""

import re

#: A document of the tree, with its section: docs/holds.md#stop.
_DOCUMENT = re.compile(r"\bdocs/[a-z0-9-]+\.md(?:#[a-z0-9-]+)?")


def pieces(text: str) -> list[tuple[str, bool]]:
    """The text in pieces, and whether each is a document's path."""
    found: list[tuple[str, bool]] = []
    end = 0
    for match in _DOCUMENT.finditer(text):
        found += [(text[end : match.start()], False), (match[0], True)]
        end = match.end()
    return [*found, (text[end:], False)]
