"""The documents: every link leads somewhere."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_SKIPPED = {".venv", "build", "node_modules", ".git"}

PAGES = sorted(
    page for page in ROOT.rglob("*.md") if not _SKIPPED.intersection(page.relative_to(ROOT).parts)
)


def anchors(page: Path) -> set[str]:
    """Anchors as GitHub makes them: lower case, punctuation gone, blanks to hyphens."""
    heads = re.findall(r"^#+ +(.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        assert there.exists(), f"{target} leads nowhere"
        if anchor and there.suffix == ".md":
            assert anchor in anchors(there), f"{there.name} has no heading for #{anchor}"


def test_every_make_target_of_the_readmes_exists() -> None:
    told = (ROOT / "README.md").read_text() + (ROOT / "CONTRIBUTING.md").read_text()
    targets = set(re.findall(r"(?:^|`)make ([a-z][a-z-]*[a-z])\b(?!-)", told, re.MULTILINE))
    done = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True)
    listed = set(re.findall(r"^  make (\S+)", done.stdout, re.MULTILINE))
    assert targets - listed == set()
