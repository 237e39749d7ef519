"""Fixtures that give tests a real control plane.

`control_plane`: one a session, shared. Never stop, pause or kill it.
`cluster_space`: a namespace and a prefix of node names in it, for one test.
`start_control_plane`: further planes for tests that break them.

Where no control plane can be had the tests skip, and the summary says loudly why; with CI=true
that is an error. Programs that are missing are built before the first test, outside its timeout.
"""

import os
import uuid
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pytest

from tests.controlplane import binaries
from tests.controlplane.plane import ControlPlane
from tests.controlplane.servers import FRUGAL
from tests.controlplane.toolchain import NoControlPlane
from tests.controlplane.versions import kubernetes_version, minor

_PROGRAMS = pytest.StashKey[dict[str, Path] | NoControlPlane]()
_OWNERS_OF_PODS = (
    "poddisruptionbudgets",
    "deployments",
    "replicasets",
    "daemonsets",
    "statefulsets",
    "jobs",
)
_BASE_FIXTURE = "control_plane_programs"


class StartControlPlane(Protocol):
    """The type of the fixture `start_control_plane`."""

    def __call__(self, **arguments: Any) -> ControlPlane:
        """Start a plane with ControlPlane's arguments; it is stopped after the test."""
        ...


@dataclass(frozen=True, slots=True)
class Space:
    """One test's part of the shared plane: its namespace, and names for its nodes."""

    plane: ControlPlane
    namespace: str
    node_prefix: str

    def create_nodes(
        self,
        n: int,
        *,
        start: int = 0,
        labels: Mapping[str, str] | None = None,
        annotations: Mapping[str, str] | None = None,
        gpus: int = 8,
        ready: bool = True,
    ) -> list[str]:
        """As ControlPlane.create_nodes, under this space's prefix."""
        return self.plane.create_nodes(
            n,
            self.node_prefix,
            start=start,
            labels=labels,
            annotations=annotations,
            gpus=gpus,
            ready=ready,
        )

    def path(self, resource: str, name: str = "") -> str:
        """The path of a core resource of this namespace: `path("pods", "a")`."""
        return f"/api/v1/namespaces/{self.namespace}/{resource}" + (f"/{name}" if name else "")

    def clear(self) -> None:
        """Delete the pods, their owners and budgets, and the quarantines and nodes of the prefix.

        An aggregator counts all quarantines of the plane against its limits, those of a test that
        has ended too. The aggregator that would remove their finalizers has gone, so that all are
        deleted in etcd. Owners go first, as they would make new pods.

        The namespace stays: its deletion takes two requests for each kind of object, 40 kinds, and
        no other test looks into it.
        """
        self.plane.delete_from_storage(*(f"{kind}/{self.namespace}/" for kind in _OWNERS_OF_PODS))
        self.plane.delete_from_storage(
            f"pods/{self.namespace}/",
            f"sickbay.dev/quarantines/{self.node_prefix}",
            f"minions/{self.node_prefix}",
        )


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what needs a plane, before -m chooses, and skip what needs a newer Kubernetes."""
    for item in items:
        needed = item.get_closest_marker("kubernetes_from")
        if needed is not None and minor(kubernetes_version()) < needed.args[0]:
            why = f"needs Kubernetes 1.{needed.args[0]}; this is {kubernetes_version()}"
            item.add_marker(pytest.mark.skip(reason=why))
        if _needs_plane(item):
            item.add_marker("cluster")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Find or build the programs before the first test that needs them: tests before it need not
    wait, and a build, which outlasts any timeout, is outside this test's.

    A wrapper, and the first: pytest-timeout starts its clock in a wrapper, which goes before all
    plain hooks.
    """
    if _PROGRAMS not in item.config.stash and _needs_plane(item):
        _find_programs(item.config)
    return (yield)


def _find_programs(config: pytest.Config) -> None:
    terminal = config.pluginmanager.get_plugin("terminalreporter")

    def progress(line: str) -> None:
        if terminal is not None:
            terminal.write_line(f"controlplane: {line}")

    try:
        config.stash[_PROGRAMS] = binaries.ensure(progress=progress)
    except NoControlPlane as missing:
        config.stash[_PROGRAMS] = missing


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Say in the summary that there was no plane, and why."""
    found = config.stash.get(_PROGRAMS, None)
    if isinstance(found, NoControlPlane):
        terminalreporter.section("NO CONTROL PLANE", sep="!", red=True, bold=True)
        terminalreporter.write_line("Every test that needs a Kubernetes API server was left out:")
        terminalreporter.write_line(found.reason)


@pytest.fixture(scope="session")
def control_plane_programs(pytestconfig: pytest.Config) -> dict[str, Path]:
    """The programs of the plane by name; skips (CI=true: fails) where they can't be had."""
    found = pytestconfig.stash[_PROGRAMS]
    if isinstance(found, NoControlPlane):
        if os.environ.get("CI", "").lower() in {"1", "true", "yes"}:
            pytest.fail(f"no control plane, and CI is set: {found.reason}", pytrace=False)
        pytest.skip(f"no control plane: {found.reason}")
    return found


@pytest.fixture(scope="session")
def control_plane(control_plane_programs: dict[str, Path]) -> Iterator[ControlPlane]:
    """The session's plane: API server, controllers except node lifecycle, scheduler, kwok.

    With SICKBAY_CONTROLPLANE_FOLDER set its logs and data stay there.
    """
    kept = os.environ.get("SICKBAY_CONTROLPLANE_FOLDER")
    with ControlPlane(folder=Path(kept) if kept else None, go=FRUGAL) as plane:
        yield plane


@pytest.fixture
def cluster_space(control_plane: ControlPlane) -> Iterator[Space]:
    """A fresh namespace and node name prefix; Space.clear says what is removed after the test."""
    own = uuid.uuid4().hex[:8]
    space = Space(control_plane, namespace=f"t-{own}", node_prefix=f"n-{own}")
    control_plane.create_namespace(space.namespace)
    yield space
    space.clear()


@pytest.fixture
def start_control_plane(control_plane_programs: dict[str, Path]) -> Iterator[StartControlPlane]:
    """Starts planes of a test's own, to break; they are stopped after it."""
    started: list[ControlPlane] = []

    def start(**arguments: Any) -> ControlPlane:
        plane = ControlPlane(**{"go": FRUGAL, **arguments})
        started.append(plane)
        return plane.start()

    yield start
    for plane in started:
        plane.stop()


def _needs_plane(item: pytest.Item) -> bool:
    return _BASE_FIXTURE in getattr(item, "fixturenames", ())
