"""The README as an index shows it: no diagram's source, no link that leads nowhere."""

import re
from pathlib import Path

import pytest

from release.pypi_metadata import for_an_index, urls

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text("utf-8")
FILES = "https://source.example.test/files/"


@pytest.mark.parametrize("files", ["", FILES])
def test_the_readme_of_this_tree_keeps_no_relative_link_picture_or_diagram(files: str) -> None:
    shown = for_an_index(README, files)
    assert "mermaid" not in shown
    assert "![" not in shown
    links = re.findall(r"\]\(([^)]+)\)", shown)
    assert all(link.startswith("https://") for link in links)
    assert bool(links) == bool(files)
    # Every heading and every table is still there.
    for line in README.splitlines():
        if line.startswith(("#", "| figure", "make ")):
            assert line in shown.splitlines()


@pytest.mark.parametrize(
    ("text", "plain", "linked"),
    [
        ("[docs/a.md](docs/a.md)", "docs/a.md", f"[docs/a.md]({FILES}docs/a.md)"),
        ("[limits](docs/a.md#b)", "limits (docs/a.md)", f"[limits]({FILES}docs/a.md#b)"),
        ("[docs/](docs/README.md)", "docs/ (docs/README.md)", f"[docs/]({FILES}docs/README.md)"),
        ("[x](https://x.test/)", "[x](https://x.test/)", "[x](https://x.test/)"),
        ("```\n[x](y)\n```\n", "```\n[x](y)\n```\n", "```\n[x](y)\n```\n"),
        ("a\n\n![p](p.png)\n\nb", "a\n\nb", "a\n\nb"),
        ("a\n\n```mermaid\nx --> y\n```\n\nb", "a\n\nb", "a\n\nb"),
    ],
)
def test_a_relative_link_becomes_text_or_leads_to_the_source(
    text: str, plain: str, linked: str
) -> None:
    assert for_an_index(text, "") == plain
    assert for_an_index(text, FILES) == linked


def test_urls_are_those_of_the_build_and_none_is_invented() -> None:
    assert urls({}) == {}
    given = {"SICKBAY_SOURCE_URL": "https://s.test", "SICKBAY_FILES_URL": "https://s.test/files"}
    assert urls(given) == {
        "Source": "https://s.test",
        "Documentation": "https://s.test/files/docs/README.md",
        "Changelog": "https://s.test/files/CHANGELOG.md",
    }
