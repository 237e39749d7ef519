"""The real agent in the container that its DaemonSet asks for, by runc and the real kernel.

An accepted manifest does not prove the following facts: that the mounts can be made at all, that
the kernel log can be opened with this device cgroup and not without, which paths can be written and
which cannot, and that the host's mounts come and go while the pod runs.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.controlplane.waiting import wait_until
from tests.deploy import pod
from tests.deploy.manifests import PROFILES, container, documents, find, pod_spec
from tests.deploy.pod import Container
from tests.support.present import present

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(bool(pod.missing()), reason=pod.missing() or "-"),
]

AGENT = [sys.executable, "-m", "nodeagent.cli"]
CONFIG = ["--config", "/etc/sickbay/agent.toml"]


def restricted(spec: dict[str, Any]) -> dict[str, Any]:
    """The pod as the restricted profile patches it, which the API server's own merge confirms."""
    [patch] = documents(PROFILES / "restricted" / "agent-daemonset.yaml")
    change = patch["spec"]["template"]["spec"]
    only = container(spec)
    context = only["securityContext"] | container(change)["securityContext"]
    kept = [mount for mount in only["volumeMounts"] if mount["mountPath"] != "/dev"]
    changed = only | {"securityContext": context, "volumeMounts": kept}
    return spec | {"hostPID": change["hostPID"], "containers": [changed]}


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Container]]:
    """Starts the agent's container. One a test.

    profile: "" or "restricted". host: a folder that stands for the host's root, if it is not this
    machine's.
    """
    started: list[Container] = []

    def begin(profile: str = "", host: Path | None = None) -> Container:
        volumes = {name: tmp_path / name for name in ("config", "token", "run", "state")}
        for folder in volumes.values():
            folder.mkdir()
        text = find("ConfigMap", "sickbay-agent")["data"]["agent.toml"]
        spec = pod_spec("DaemonSet", "sickbay-agent")
        if profile:
            [config] = documents(PROFILES / profile / "agent-config.yaml")
            text = config["data"]["agent.toml"]
            spec = restricted(spec)
        (volumes["config"] / "agent.toml").write_text(text)
        (volumes["config"] / "ca.crt").write_text("no certificate: no aggregator is there either\n")
        (volumes["token"] / "token").write_text("a.b.c")
        only = Container(
            spec,
            [*AGENT, "run", *CONFIG],
            volumes=volumes if host is None else volumes | {"host": host},
            folder=tmp_path,
            environ={
                "NODE_NAME": "gpu-1",
                "AGGREGATOR_ADDRESS": "sickbay-aggregator.sickbay.svc:8443",
                "PATH": os.defpath,
                "PYTHONDONTWRITEBYTECODE": "1",
                "PYTHONOPTIMIZE": "2",
            },
        )
        only.__enter__()
        started.append(only)
        socket = volumes["run"] / "agent.sock"
        wait_until(lambda: socket.exists() or only.ended(), what="its socket", timeout_s=30)
        assert socket.exists(), only.log.read_text()
        return only

    yield begin
    for each in started:
        each.__exit__()


def check_output(agent: Container) -> dict[str, Any]:
    """The output of `kubectl exec POD -- sickbay-agent check -o json`."""
    done = agent.run(*AGENT, "check", *CONFIG, "-o", "json")
    assert done.returncode in {0, 1}, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def off(agent: Container) -> dict[str, str]:
    """The checks that are off, and why."""
    done = agent.run(*AGENT, "checks", *CONFIG, "-o", "json")
    assert done.returncode == 0, done.stderr
    return {each["name"]: each["off_because"] for each in json.loads(done.stdout) if not each["on"]}


def statuses(answer: dict[str, Any], check: str) -> dict[str, tuple[str, str]]:
    """Status and reason, by component."""
    return {
        each["component"]: (each["status"], each["reason"])
        for each in answer["results"]
        if each["check"] == check
    }


def wait_for(agent: Container, check: str) -> dict[str, tuple[str, str]]:
    """The check's first results."""

    def seen() -> dict[str, tuple[str, str]] | None:
        return statuses(check_output(agent), check) or None

    return present(wait_until(seen, what=f"results of {check}", timeout_s=40))


def test_it_reads_the_kernel_log_and_the_hosts_disks(start: Callable[..., Container]) -> None:
    agent = start()
    assert wait_for(agent, "kernel-log") == {"": ("ok", "")}
    assert wait_for(agent, "disk-write") == {"/var/lib/sickbay": ("ok", "")}
    assert "/" in wait_for(agent, "disk-space")
    gpu_checks = {name: why for name, why in off(agent).items() if name.startswith("gpu-")}
    assert gpu_checks
    assert all("no GPU" in why or why == "no NVSwitch" for why in gpu_checks.values()), gpu_checks
    assert not {"xid", "sxid"} & set(off(agent))


def test_without_privileges_the_kernel_log_is_refused_and_the_checks_say_they_are_off(
    start: Callable[..., Container],
) -> None:
    agent = start("restricted")
    assert wait_for(agent, "disk-write") == {"/var/lib/sickbay": ("ok", "")}
    assert "/" in wait_for(agent, "disk-space")
    why = off(agent)
    assert "kernel_log.enabled" in why["xid"]
    assert "nvml.enabled" in why["gpu-ecc"]
    # Not for want of the file: the host's device node is there, and the device cgroup refuses it.
    refused = agent.run("head", "-c", "1", "/host/dev/kmsg")
    assert "Operation not permitted" in refused.stderr


def test_it_can_write_to_its_two_folders_and_nowhere_else(start: Callable[..., Container]) -> None:
    agent = start()
    for folder in ("/run/sickbay", "/var/lib/sickbay"):
        assert agent.run("touch", f"{folder}/x").returncode == 0
    for folder in ("/", "/etc/sickbay", "/host", "/host/etc", "/dev", "/tmp", "/usr"):
        refused = agent.run("touch", f"{folder}/sickbay-test-x")
        assert "Read-only file system" in refused.stderr, folder


@pytest.fixture
def shared_root(tmp_path: Path) -> Iterator[Path]:
    """A folder that plays the host's root, a shared mount as systemd makes that."""
    root = tmp_path / "host"
    (root / "disk").mkdir(parents=True)
    subprocess.run(["mount", "--bind", root, root], check=True)
    subprocess.run(["mount", "--make-shared", root], check=True)
    yield root
    subprocess.run(["umount", "--lazy", root], check=True)


def test_mounts_of_the_host_come_and_go_while_it_runs(
    start: Callable[..., Container], shared_root: Path
) -> None:
    agent = start(host=shared_root)
    disk = shared_root / "disk"
    subprocess.run(["mount", "-t", "tmpfs", "a-new-disk", disk], check=True)
    try:
        (disk / "file").touch()
        assert agent.run("ls", "/host/disk").stdout.split() == ["file"]
    finally:
        subprocess.run(["umount", disk], check=True)
    # A pod that kept it would keep its device busy.
    assert "a-new-disk" not in agent.run("cat", "/proc/self/mountinfo").stdout


def test_it_ends_in_order_well_within_its_grace_period(start: Callable[..., Container]) -> None:
    agent = start()
    wait_for(agent, "disk-write")
    agent.signal("TERM")
    assert agent.wait(pod_spec("DaemonSet", "sickbay-agent")["terminationGracePeriodSeconds"]) == 0
    assert '"agent is stopping"' in agent.log.read_text()
