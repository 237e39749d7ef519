"""The navigation of the site is docs/README.md: each section there with its table of pages.

A code host shows that table, and no other list of pages exists: Sphinx reports a page that is in
none of these sections, which fails the build.
"""

import re

from sphinx.application import Sphinx

INDEX = "docs/README"
DECISIONS = "docs/decisions/README"
_SECTION = re.compile(r"^## (.+)$", re.MULTILINE)
_ROW = re.compile(r"^\| \[[^\]]+\]\(([^)#\s]+)\.md\)", re.MULTILINE)


def sections(index: str) -> list[tuple[str, list[str]]]:
    """Each section's title, and the pages of its table: paths without .md, relative to docs/."""
    parts = _SECTION.split(index)
    return [
        (title.strip(), _ROW.findall(body))
        for title, body in zip(parts[1::2], parts[2::2], strict=True)
    ]


def _toctree(pages: list[str], *options: str) -> str:
    return "\n".join(["", "```{toctree}", *options, "", *pages, "```", ""])


def _add(_app: Sphinx, document: str, source: list[str]) -> None:
    if document == INDEX:
        for title, pages in sections(source[0]):
            source[0] += _toctree(pages, ":hidden:", f":caption: {title}")
    elif document == DECISIONS:
        source[0] += _toctree(["0*"], ":glob:", ":maxdepth: 1")


def setup(app: Sphinx) -> dict[str, bool]:
    """Called by Sphinx."""
    app.connect("source-read", _add)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
