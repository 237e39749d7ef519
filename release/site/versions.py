"""The versions of the site beside each other: build/site/VERSION, and links between them.

All are static files. A version that was built earlier is not touched: its pages read versions.js at
the root, so that they name later versions too. The paths below a version are those of the tree: a
link to docs/limits.md leads to the page, as it does on a code host.
"""

import html
import json
import re
from pathlib import Path

LIST = "versions.js"
_RELEASE = re.compile(r"(\d+)\.(\d+)\.(\d+)(.*)")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class VersionError(Exception):
    """A version that can't be the name of a folder; the text says what is expected."""


def check(version: str) -> str:
    """The version. Raises VersionError."""
    if _NAME.fullmatch(version) is None:
        raise VersionError(
            f'VERSION is "{version}"; expected a version such as 0.1.0, or a name: '
            "letters, digits, '.', '_' and '-'"
        )
    return version


def newest_first(versions: list[str]) -> list[str]:
    """Releases before their candidates, later before earlier; names without a number come last."""

    def key(version: str) -> tuple[int, int, int, int, bool, str]:
        found = _RELEASE.fullmatch(version)
        if found is None:
            return (0, 0, 0, 0, False, version)
        return (1, int(found[1]), int(found[2]), int(found[3]), not found[4], found[4])

    return sorted(versions, key=key, reverse=True)


def publish(root: Path, start: str) -> list[str]:
    """Write the list and the redirect of the root; the versions, newest first.

    ``start``: the page of a version that the root leads to, such as "docs/README.html".
    """
    versions = newest_first(
        [folder.name for folder in root.iterdir() if (folder / start).is_file()]
    )
    (root / LIST).write_text(f"sickbayVersions({json.dumps(versions)});\n", "utf-8")
    (root / "index.html").write_text(_redirect(f"{versions[0]}/{start}"), "utf-8")
    return versions


def lead_from_sources(folder: Path, pages: list[str]) -> None:
    """For each page, such as "docs/limits": "docs/limits.md" leads to it, with the fragment kept.

    A folder of that name has the redirect, because a server gives a file its media type by its name
    and would offer text for download.
    """
    for page in pages:
        there = folder / f"{page}.md" / "index.html"
        there.parent.mkdir(parents=True, exist_ok=True)
        there.write_text(_redirect(f"../{Path(page).name}.html"), "utf-8")


def _redirect(target: str) -> str:
    """A page that leads to the target: without scripts too, and with scripts to its fragment."""
    shown = html.escape(target)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>sickbay</title>\n'
        f"<script>location.replace({json.dumps(target)} + location.hash)</script>\n"
        f'<noscript><meta http-equiv="refresh" content="0; url={shown}"></noscript></head>\n'
        f'<body><a href="{shown}">{shown}</a></body></html>\n'
    )
