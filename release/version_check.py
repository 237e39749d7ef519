"""Holds every place of the tree that names the version to pyproject.toml's."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

#: File and pattern; each match's group is a version. The first file is the authority.
_PLACES = (
    ("pyproject.toml", r'^version = "([^"]+)"$'),
    ("aggregator/version.py", r'^VERSION = "([^"]+)"$'),
    ("nodeagent/version.py", r'^VERSION = "([^"]+)"$'),
    ("deploy/helm/sickbay/Chart.yaml", r"^version: (\S+)$"),
    ("deploy/helm/sickbay/Chart.yaml", r'^appVersion: "?([^"\s]+)"?$'),
    ("deploy/kubernetes/agent.yaml", r"image: sickbay-agent:(\S+)$"),
    ("deploy/kubernetes/aggregator.yaml", r"image: sickbay-aggregator:(\S+)$"),
    ("deploy/kubernetes/kustomization.yaml", r'newTag: "([^"]+)"$'),
    ("deploy/profiles/pod-network/pod-prober.yaml", r"image: sickbay-agent:(\S+)$"),
)
_CHANGELOG = "CHANGELOG.md"


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing to fix before a release."""

    file: str
    text: str

    def __str__(self) -> str:
        return f"{self.file}: {self.text}"


def problems(tree: Path, version: str) -> list[Problem]:
    """Why the tree is not the release ``version``; empty when it is."""
    return [*_versions(tree, version), *_changelog(tree, version)]


def _versions(tree: Path, version: str) -> Iterator[Problem]:
    for name, pattern in _PLACES:
        path = tree / name
        if not path.is_file():
            yield Problem(name, f"missing; expected one that names version {version}")
            continue
        found = re.findall(pattern, path.read_text("utf-8"), re.MULTILINE)
        if not found:
            yield Problem(name, f"names no version; expected {version}")
        for other in sorted(set(found) - {version}):
            yield Problem(name, f"is of version {other}; expected {version}")


def _changelog(tree: Path, version: str) -> Iterator[Problem]:
    text = (tree / _CHANGELOG).read_text("utf-8")
    heads = re.findall(r"^## \[([^]]+)\](?: - (\S+))?$", text, re.MULTILINE)
    dates = [date for name, date in heads if name == version]
    if len(dates) != 1:
        yield Problem(_CHANGELOG, f"has {len(dates)} sections [{version}]; expected one")
    elif re.fullmatch(r"\d{4}-\d{2}-\d{2}", dates[0]) is None:
        yield Problem(_CHANGELOG, f"[{version}] - {dates[0]}; expected the release's date")
    if re.search(r"^## \[Unreleased\]\n\s*(?!## )\S", text, re.MULTILINE):
        yield Problem(_CHANGELOG, f"[Unreleased] has entries; expected them under [{version}]")
