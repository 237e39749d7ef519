"""A whole sickbay on the real kube-apiserver, ended after its test."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

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
