"""The packages whose code is mutated, and the tests that may detect it."""

from pathlib import Path

ROOT = Path(__file__).parents[2]

#: Package of the report: its files, as glob patterns from the root. The first that matches counts.
PACKAGES: dict[str, tuple[str, ...]] = {
    "decide": ("aggregator/quarantine/decide/**/*.py",),
    "quarantine": ("aggregator/quarantine/**/*.py",),
    "policy": ("aggregator/policy/**/*.py",),
    "health": ("aggregator/health/*.py",),
    "leader": ("aggregator/leader/*.py",),
    "ingest_auth": tuple(
        f"aggregator/ingest/{name}.py"
        for name in ("identity", "tokens", "jwks", "checked_auth", "tls")
    ),
    "alerts": ("aggregator/alerts/*.py",),
    "evidence": ("nodeagent/evidence/*.py",),
    "checks": ("nodeagent/checks/*.py",),
}

#: Folders of tests that need no cluster, no root and no browser, except where a marker says so.
TESTS = ("tests/unit", "tests/aggregator", "tests/agent")
MARKERS = "not root and not cluster and not browser"


def files_of(package: str) -> list[str]:
    """Paths from the root, sorted."""
    paths = {path for pattern in PACKAGES[package] for path in ROOT.glob(pattern)}
    return sorted(str(path.relative_to(ROOT)) for path in paths)


def core() -> dict[str, str]:
    """Every file that is mutated: its path from the root, and its package."""
    found: dict[str, str] = {}
    for package in PACKAGES:
        for path in files_of(package):
            found.setdefault(path, package)
    return found
