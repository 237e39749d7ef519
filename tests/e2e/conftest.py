"""A whole sickbay on the real kube-apiserver, ended after its test or its file."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.controlplane.plane import ControlPlane
from tests.controlplane.pytest_plugin import Space
from tests.support.stack import Stack, remove_quarantines

#: Starts a stack, with additions to its configuration and options of `Stack`.
Start = Callable[..., Stack]


@pytest.fixture
def stack_of(cluster_space: Space, tmp_path: Path, request: pytest.FixtureRequest) -> Start:
    """Start a stack whose aggregator runs; it is ended after the test."""

    def start(more: Mapping[str, Any] | None = None, **options: Any) -> Stack:
        stack = Stack(cluster_space.plane, tmp_path, more=more, **options)

        def end() -> None:
            stack.__exit__(None, None, None)
            remove_quarantines(cluster_space.plane, cluster_space.node_prefix)

        request.addfinalizer(end)
        stack.aggregator.start().ready()
        return stack

    return start


@pytest.fixture(scope="module")
def stack_of_the_file(
    control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stack]:
    """One whose aggregator serves all tests of a file: its start takes seconds of a processor."""
    with Stack(control_plane, tmp_path_factory.mktemp("stack")) as stack:
        yield stack
    remove_quarantines(control_plane, "")


@pytest.fixture
def stack(stack_of_the_file: Stack, cluster_space: Space) -> Iterator[Stack]:
    """The file's stack, for a test that leaves its aggregator as it is.

    The test's nodes are released as by a person, so that the next one finds no trace of it.
    """
    stack, plane = stack_of_the_file, cluster_space.plane
    if not stack.aggregator.running:
        stack.aggregator.start().ready()
    yield stack
    stack.end_agents()
    path = "/apis/sickbay.dev/v1alpha1/quarantines"

    def own() -> list[str]:
        names = [item["metadata"]["name"] for item in plane.call("GET", path)["items"]]
        return [name for name in names if name.startswith(cluster_space.node_prefix)]

    for name in own():
        plane.request("DELETE", f"{path}/{name}")
    stack.until(lambda: not own(), "the release of the test's nodes")
