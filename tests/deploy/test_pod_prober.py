"""The pod network's prober in the container that its DaemonSet asks for, asked from the host."""

import os
import stat
import sys
from pathlib import Path

import pytest

from nodeagent.sources.pod_network import NoProber, query
from tests.controlplane.waiting import wait_until
from tests.deploy import pod
from tests.deploy.manifests import PROFILES, container, documents
from tests.deploy.pod import Container

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(bool(pod.missing()), reason=pod.missing() or "-"),
]


async def test_it_needs_no_capability_and_answers_across_the_network_namespace(
    tmp_path: Path,
) -> None:
    [daemon_set] = documents(PROFILES / "pod-network" / "pod-prober.yaml")
    spec = daemon_set["spec"]["template"]["spec"]
    folder = tmp_path / "socket"
    folder.mkdir()
    with Container(
        spec,
        [sys.executable, "-m", "nodeagent.cli", *container(spec)["args"]],
        volumes={"socket": folder},
        folder=tmp_path,
        environ={"PATH": os.defpath, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONOPTIMIZE": "2"},
    ) as prober:
        path = folder / "prober.sock"
        wait_until(lambda: path.exists() or prober.ended(), what="its socket", timeout_s=30)
        assert path.exists(), prober.log.read_text()
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        answers = await query(path, ["localhost"], ["192.0.2.1:80"], deadline=20)
        assert answers.names["localhost"][0] == ""
        # Its network is not the host's: there is no way out of it here.
        assert answers.targets["192.0.2.1:80"][0] == "unreachable"
        prober.signal("TERM")
        assert prober.wait(300) == 0
    with pytest.raises(NoProber):
        await query(path, [], [], deadline=5)
