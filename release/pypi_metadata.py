"""hatchling's hook for what an index shows: the README without what only a clone can show.

An index renders no mermaid, and a relative link or picture leads nowhere there. Where the source is
published is not a fact of the tree: SICKBAY_SOURCE_URL (the project's page) and SICKBAY_FILES_URL
(what precedes a file's path) give it for one build. Without them a link becomes text.

One file, because a build imports it by its path.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_MERMAID = re.compile(r"^```mermaid\n.*?^```\n\n?", re.MULTILINE | re.DOTALL)
_PICTURE = re.compile(r"^!\[[^]]*\]\((?!https?://)[^)\s]+\)\n\n?", re.MULTILINE)
_LINK = re.compile(r"\[([^]]+)\]\((?!https?://|#)([^)\s]+)\)")
_FENCE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)


def for_an_index(text: str, files_url: str) -> str:
    """The README as an index can render it. ``files_url`` ends with "/", or is empty."""
    text = _PICTURE.sub("", _MERMAID.sub("", text))

    def link(found: re.Match[str]) -> str:
        words, path = found[1], found[2]
        if files_url:
            return f"[{words}]({files_url}{path})"
        file = path.partition("#")[0]
        return words if words.rstrip("/") == file.rstrip("/") else f"{words} ({file})"

    parts = _FENCE.split(text)
    return "".join(part if part.startswith("```") else _LINK.sub(link, part) for part in parts)


def urls(environ: Mapping[str, str]) -> dict[str, str]:
    """The project's URLs, by the labels that indexes know:
    https://packaging.python.org/en/latest/specifications/well-known-project-urls/
    """
    source, files = environ.get("SICKBAY_SOURCE_URL", ""), environ.get("SICKBAY_FILES_URL", "")
    found = {"Source": source} if source else {}
    if files:
        base = _with_slash(files)
        found |= {"Documentation": f"{base}docs/README.md", "Changelog": f"{base}CHANGELOG.md"}
    return found


def _with_slash(url: str) -> str:
    return url if not url or url.endswith("/") else f"{url}/"


class IndexMetadata(MetadataHookInterface):
    """Gives `readme` and `urls`, which pyproject.toml calls dynamic."""

    def update(self, metadata: dict[str, Any]) -> None:
        text = (Path(self.root) / "README.md").read_text("utf-8")
        files = _with_slash(os.environ.get("SICKBAY_FILES_URL", ""))
        metadata["readme"] = {
            "content-type": "text/markdown",
            "text": for_an_index(text, files),
        }
        metadata["urls"] = urls(os.environ)
