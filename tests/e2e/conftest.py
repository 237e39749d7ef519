"""A whole sickbay on the real kube-apiserver, ended after its test or its file."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.controlplane.plane import ControlPlane
from tests.controlplane.pytest_plugin import Space
from tests.support.stack import Stack, remove_quarantines

#: Starts a stack, with additions to its configuration.
Start = Callable[..., Stack]
_QUARANTINES = "/apis/sickbay.dev/v1alpha1/quarantines"


class StackOfTheFile:
    """The stack that serves the tests of a file, one after the other.

    Its aggregator is a new one only where a test configures it in another way than the test before:
    a start takes 1.4 s of a processor.
    """

    def __init__(self, plane: ControlPlane, new_folder: Callable[[], Path]) -> None:
        self._plane = plane
        self._new_folder = new_folder
        self._more: Mapping[str, Any] | None = None
        self._stack: Stack | None = None

    def configured(self, more: Mapping[str, Any] | None) -> Stack:
        """The stack with these additions to its configuration; its aggregator runs."""
        if self._stack is None or self._more != more:
            self.close()
            self._stack, self._more = Stack(self._plane, self._new_folder(), more=more), more
        self._stack.aggregator.begin_log()
        if not self._stack.aggregator.running:
            self._stack.aggregator.start().ready()
        return self._stack

    def close(self) -> None:
        """End the aggregator; it leaves no trace in the cluster."""
        if self._stack is not None:
            self._stack.__exit__(None, None, None)
            remove_quarantines(self._plane, "")
            self._stack = None


@pytest.fixture(scope="module")
def stack_of_the_file(
    control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[StackOfTheFile]:
    shared = StackOfTheFile(control_plane, lambda: tmp_path_factory.mktemp("stack"))
    yield shared
    shared.close()


@pytest.fixture
def stack_of(
    stack_of_the_file: StackOfTheFile, cluster_space: Space, request: pytest.FixtureRequest
) -> Start:
    """Gives the file's stack, configured as the test wants it.

    The test's nodes are released as by a person, so that the next one finds no trace of it.
    """
    plane = cluster_space.plane

    def start(more: Mapping[str, Any] | None = None) -> Stack:
        stack = stack_of_the_file.configured(more)
        request.addfinalizer(lambda: end(stack))
        return stack

    def end(stack: Stack) -> None:
        stack.end_agents()
        names = own()
        if names and not stack.aggregator.running:
            stack.aggregator.start().ready()
        for name in names:
            plane.request("DELETE", f"{_QUARANTINES}/{name}")
        stack.until(lambda: not own(), "the release of the test's nodes")

    def own() -> list[str]:
        names = [item["metadata"]["name"] for item in plane.call("GET", _QUARANTINES)["items"]]
        return [name for name in names if name.startswith(cluster_space.node_prefix)]

    return start


@pytest.fixture
def stack(stack_of: Start) -> Stack:
    """The file's stack as it is without a test's own configuration."""
    return stack_of()
