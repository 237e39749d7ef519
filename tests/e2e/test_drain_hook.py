"""The site's hook with the real program, around kill -9. Death at any call: tests/aggregator."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.controlplane.pytest_plugin import Space
from tests.e2e.conftest import Start
from tests.support.evictions import accepted_evictions
from tests.support.stack import Stack, pods_of, start_job

pytestmark = pytest.mark.cluster

#: Records that it was asked; answers "not yet" until the site says that its jobs have ended.
HOOK = """
import pathlib, sys
folder = pathlib.Path(sys.argv[1])
with (folder / "asked").open("a") as file:
    file.write(sys.argv[2] + "\\n")
sys.exit(0 if (folder / "ended").exists() else 75)
"""


@pytest.fixture
def begin(tmp_path: Path, stack_of: Start) -> Callable[[], Stack]:
    def command(hook: str) -> dict[str, Any]:
        return {"command": [sys.executable, "-c", HOOK, str(tmp_path), hook + " {node}"]}

    (tmp_path / "asked").touch()
    more = {
        "drain": {
            "pre_evict": command("pre_evict") | {"timeout": "1h"},
            "post_release": command("post_release"),
        },
        # The evidence on the Quarantine suffices, so the drain need not wait for agents to come
        # back.
        "limits": {"silent_drain_after": "1s"},
    }
    return lambda: stack_of(more)


def test_kill_9_around_the_hook_evicts_nobody_before_it_is_done(
    cluster_space: Space, tmp_path: Path, begin: Callable[[], Stack]
) -> None:
    plane, namespace = cluster_space.plane, cluster_space.namespace
    [node] = cluster_space.create_nodes(1)
    start_job(plane, namespace, "train", node)
    mark = plane.audit_mark()
    stack = begin()

    def asked() -> list[str]:
        return (tmp_path / "asked").read_text().splitlines()

    stack.agent(node).xid(79)
    stack.until(asked, "the hook to be asked")
    assert stack.taint(node) == "gpu"
    stack.aggregator.kill()
    before = len(asked())
    assert (stack.quarantine(node) or {})["status"]["preEvict"]["state"] == "Running"
    stack.aggregator.start().ready()
    stack.until(lambda: len(asked()) > before, "the hook to be asked by the next", timeout_s=60)
    assert accepted_evictions(plane, mark, namespace) == []
    assert len(pods_of(plane, namespace, node)) == 2
    (tmp_path / "ended").touch()
    stack.until_phase(node, "Drained", timeout_s=90)
    assert (stack.quarantine(node) or {})["status"]["preEvict"]["state"] == "Done"
    assert len(accepted_evictions(plane, mark, namespace)) == 2
    done = asked()
    assert set(done) == {f"pre_evict {node}"}
    plane.request("DELETE", f"/apis/sickbay.dev/v1alpha1/quarantines/{node}")
    stack.until(lambda: stack.quarantine(node) is None, "the release", timeout_s=60)
    assert asked() == [*done, f"post_release {node}"]
    assert stack.taint(node) is None
