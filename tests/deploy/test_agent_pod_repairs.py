"""Orders to the real agent in the container that its DaemonSet asks for, by runc.

The host is this machine. Its nvidia-smi, its command to reboot and its tool of a test lie on a
filesystem that is mounted below the host's root before the container starts, as /run is on a node:
the container sees them only below /host.
"""

import asyncio
import itertools
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from sickbay.v1 import sickbay_pb2 as pb
from tests.agent.fake_tools import FakeTools
from tests.agent.repair_node import REBOOT, RESET, TEST, TWO, Aggregator, attached, order_of
from tests.controlplane.pki import Authority
from tests.deploy import pod
from tests.deploy.manifests import PROFILES, container, documents, find, pod_spec
from tests.deploy.pod import Container
from tests.deploy.test_agent_pod import restricted
from tests.nvml import FakeGpus, uuid_of
from tests.support.fake_aggregator import Attended
from tests.support.waiting import until

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(bool(pod.missing()), reason=pod.missing() or "-"),
]

AGENT = [sys.executable, "-m", "nodeagent.cli", "run", "--config", "/etc/sickbay/agent.toml"]
FIO = Path("/usr/bin/fio")
#: A site's own: the shipped profile "disk" with a megabyte, without a minute of load.
DISK = """
purpose = "Whether the node's disk takes data and gives them back."

[[step]]
name = "fio"
command = [
  "fio", "--name=sickbay", "--directory={scratch}", "--rw=randrw", "--bs=64k", "--size=1m",
  "--verify=crc32c", "--output-format=json",
]
limit = "60s"
output = "fio"
required = true
"""
TOOL = """
[[step]]
name = "tool"
command = ["site-tool"]
limit = "60s"
required = true
"""


class Site:
    """The node's files, over all containers of its agent. ``folder`` is on a host's own mount."""

    def __init__(self, folder: Path, aggregator: Aggregator, authority: Authority) -> None:
        self.folder = folder
        self.aggregator = aggregator
        self.host = folder / "host"
        self.host.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "a-disk", self.host], check=True)
        self.tools = FakeTools(self.host / "tools", TWO)
        self.gpus = FakeGpus(self.host / "gpus", TWO)
        self.profiles = self.host / "profiles"
        self.profiles.mkdir()
        self.volumes = {name: folder / name for name in ("config", "token", "run", "state")}
        for each in self.volumes.values():
            each.mkdir()
        (self.volumes["config"] / "ca.crt").write_bytes(authority.certificate.read_bytes())
        (self.volumes["token"] / "token").write_text("a.b.c")
        self.agent: Container | None = None
        self._numbers = itertools.count(1)

    def close(self) -> None:
        subprocess.run(["umount", "--lazy", self.host], check=True)

    def seen(self, path: Path) -> str:
        """A path of the host as the container sees it."""
        return f"/host{path}"

    def configure(self, allow: Sequence[str], text: str, *, own_namespace: bool) -> None:
        """Write the agent.toml ``text``; with ``allow``, and where this node's programs are."""
        # The PCI bus of this machine has no GPU.
        text = f'sys = "{self.seen(self.gpus.sys)}"\n{text}'
        if allow:
            verbs = ", ".join(f'"{verb}"' for verb in allow)
            text += (
                f"\n[repair]\nallow = [{verbs}]\n"
                f'nvidia_smi = "{self.tools.smi}"\n'
                f'reboot_command = ["{self.tools.folder}/reboot-now"]\nreboot_limit = "1s"\n'
                f'tool_path = ["{self.tools.folder}", "/usr/bin", "/bin"]\n'
                f'profiles = "{self.seen(self.profiles)}"\n'
                f"insecure_own_pid_namespace = {str(own_namespace).lower()}\n"
                "insecure_loopback = true\n"
            )
        (self.volumes["config"] / "agent.toml").write_text(text)

    async def start(
        self,
        allow: Sequence[str] = ("gpu-reset", "reboot", "test"),
        spec: dict[str, Any] | None = None,
    ) -> Attended:
        """A new container of the agent; its stream, once NVML has named the GPUs."""
        text = find("ConfigMap", "sickbay-agent")["data"]["agent.toml"]
        self.configure(allow, text, own_namespace=not _first_namespace())
        await self._run(spec or pod_spec("DaemonSet", "sickbay-agent"))
        return await attached(self.aggregator, self)

    async def start_restricted(self) -> Attended:
        """The same with the profile ``restricted``, which has no NVML."""
        [config] = documents(PROFILES / "restricted" / "agent-config.yaml")
        self.configure(("reboot", "test"), config["data"]["agent.toml"], own_namespace=False)
        await self._run(restricted(pod_spec("DaemonSet", "sickbay-agent")))
        await until(lambda: "snapshot" in self.aggregator.latest.kinds(), self.log, within=30)
        return self.aggregator.latest

    async def _run(self, spec: dict[str, Any]) -> None:
        before = len(self.aggregator.streams)
        folder = self.folder / f"container-{next(self._numbers)}"
        folder.mkdir()
        environ = {
            "NODE_NAME": "gpu-1",
            "AGGREGATOR_ADDRESS": self.aggregator.address,
            "PATH": os.defpath,
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONOPTIMIZE": "2",
            **{name: self.seen(Path(value)) for name, value in self.gpus.env.items()},
        }
        self.agent = Container(
            spec,
            AGENT,
            volumes=self.volumes,
            folder=folder,
            environ=environ,
        )
        await asyncio.to_thread(self.agent.__enter__)
        await until(lambda: len(self.aggregator.streams) > before, self.log, within=60)

    async def kill(self) -> None:
        """Kill -9 of the container, as of a pod that is deleted by force."""
        if self.agent is not None:
            await asyncio.to_thread(self.agent.__exit__)
            self.agent = None

    async def ordered(self, verb: int, stream: Attended, **fields: Any) -> pb.RepairResult:
        """Give an order, with an id of its own; its end."""
        return await self.aggregator.ordered(self, self.order(verb, stream, **fields))

    def order(self, verb: int, stream: Attended, **fields: Any) -> pb.RepairOrder:
        return order_of(verb, stream, f"op-{next(self._numbers)}", **fields)

    def log(self) -> str:
        return "\n".join(log.read_text() for log in self.folder.glob("container-*/container.log"))


def _first_namespace() -> bool:
    """Whether this machine's first process shows that its PID namespace is the kernel's first."""
    try:
        return Path("/proc/1/ns/pid").readlink().name == "pid:[4026531836]"
    except OSError:
        return False


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    authority = Authority.create(tmp_path / "authority")
    pair = authority.server("aggregator", ["127.0.0.1"])
    server = Aggregator()
    await server.start(certificate=(pair.certificate, pair.key))
    node = Site(tmp_path, server, authority)
    try:
        yield node
    finally:
        await node.kill()
        await server.stop()
        node.close()


@pytest.fixture
def gpu_user() -> Iterator["subprocess.Popen[str]"]:
    """A process of the host with a GPU open, on a /dev of its own as a container has it."""
    script = "mount -t tmpfs x /dev && exec 9>/dev/nvidia0 && echo ready && exec sleep 600"
    user = subprocess.Popen(
        ["unshare", "--mount", "sh", "-c", script], stdout=subprocess.PIPE, text=True
    )
    assert user.stdout is not None
    assert user.stdout.readline() == "ready\n"
    yield user
    user.kill()
    user.communicate()


async def test_a_reset_is_done_once_by_the_hosts_program_with_evidence(site: Site) -> None:
    # The token is in the container alone: a program that sees it has not the host's root.
    where = f"[ -e /var/run/secrets/sickbay/token ] || echo host > {site.tools.folder}/where\n"
    site.tools.hook("reset", where)
    stream = await site.start()
    assert list(stream.hello.repair_verbs) == [RESET, REBOOT, TEST]
    order = site.order(RESET, stream)
    result = await site.aggregator.ordered(site, order)
    states = site.aggregator.states(order.operation_id)
    assert states == ["accepted", "running", "succeeded"], result
    assert result.message == f"reset, and they answer: {uuid_of(1)}"
    assert (site.tools.folder / "where").read_text() == "host\n"
    evidence = json.loads(site.aggregator.results(order.operation_id)[1].evidence)
    assert evidence["node"] == "gpu-1"
    assert evidence["gpus"][1]["serial"] == "165001"
    assert [each["uuid"] for each in evidence["nvml"]["gpus"]] == [uuid_of(0), uuid_of(1)]
    assert evidence["kernel_log"], "the kernel's ring is read through the host's /dev"
    assert not any("cannot be" in line for line in evidence["kernel_log"][:1])
    stream.send(repair_order=order)
    await until(lambda: len(site.aggregator.states(order.operation_id)) > 3, site.log, within=30)
    assert (site.tools.folder / "resets").read_text().splitlines() == [
        f"--gpu-reset -i {uuid_of(1)}"
    ]


async def test_a_reset_during_which_the_container_is_killed_is_unknown_and_not_repeated(
    site: Site,
) -> None:
    began, pid = site.host / "began", site.host / "pid"
    site.tools.hook("reset", f"echo $$ > {pid}\ntouch {began}\nexec sleep 600\n")
    stream = await site.start()
    order = site.order(RESET, stream)
    stream.send(repair_order=order)
    await until(began.exists, site.log, within=30)
    await site.kill()
    program = Path(f"/proc/{pid.read_text().strip()}")
    await until(lambda: not program.exists(), "the reset ends with its agent", within=30)
    stream = await site.start()
    result = await site.aggregator.final(order.operation_id)
    assert (result.state, result.reason) == (pb.REPAIR_STATE_UNKNOWN, "interrupted")
    stream.send(repair_order=order)
    await site.ordered(REBOOT, stream)
    assert site.tools.count("--gpu-reset") == 1


async def test_a_process_of_the_host_with_a_gpu_open_keeps_a_reset_and_a_reboot_away(
    site: Site, gpu_user: "subprocess.Popen[str]"
) -> None:
    stream = await site.start()
    for verb in (RESET, REBOOT):
        result = await site.ordered(verb, stream)
        assert (result.state, result.reason) == (pb.REPAIR_STATE_REFUSED, "in-use")
        assert f"pid {gpu_user.pid}" in result.message
    gpu_user.kill()
    gpu_user.wait()
    assert (await site.ordered(RESET, stream)).state == pb.REPAIR_STATE_SUCCEEDED
    assert site.tools.count("reboot-now") == 0


async def test_a_reboot_runs_the_hosts_command_once_with_the_hosts_root(site: Site) -> None:
    # systemctl ignores "reboot" where / is another inode than the root of process 1, whose root
    # this process has, too.
    root = f"stat -Lc %d:%i / /proc/{os.getpid()}/root > {site.tools.folder}/root\n"
    site.tools.hook("reboot-now", root)
    stream = await site.start()
    result = await site.ordered(REBOOT, stream)
    assert (result.state, result.reason) == (pb.REPAIR_STATE_UNKNOWN, "same-boot"), site.log()
    assert site.tools.calls.count("reboot-now ") == 1
    own, of_the_host = (site.tools.folder / "root").read_text().split()
    assert own == of_the_host


@pytest.mark.skipif(not FIO.exists(), reason="fio is not installed (tests/setup-debian.sh)")
async def test_a_test_runs_the_hosts_tools_in_a_folder_on_the_nodes_disk(site: Site) -> None:
    (site.profiles / "site-disk.toml").write_text(DISK)
    stream = await site.start()
    assert {"quick", "site-disk"} <= set(stream.hello.test_profiles)
    result = await site.ordered(TEST, stream, test_profile="site-disk")
    assert result.state == pb.REPAIR_STATE_SUCCEEDED, (result, site.log()[-3000:])
    assert {each.measure for each in result.measurements} == {
        "disk-read-bandwidth",
        "disk-write-bandwidth",
    }
    assert not (site.volumes["state"] / "scratch").exists(), "the folder is removed after the test"


@pytest.mark.skipif(not FIO.exists(), reason="fio is not installed (tests/setup-debian.sh)")
async def test_where_the_host_has_no_folder_of_the_test_there_is_no_verdict(site: Site) -> None:
    (site.profiles / "site-disk.toml").write_text(DISK)
    spec = pod_spec("DaemonSet", "sickbay-agent")
    kept = [
        each
        for each in container(spec)["volumeMounts"]
        if each["mountPath"] != "/host/var/lib/sickbay"
    ]
    stream = await site.start(
        spec=spec | {"containers": [container(spec) | {"volumeMounts": kept}]}
    )
    result = await site.ordered(TEST, stream, test_profile="site-disk")
    assert (result.state, result.reason) == (pb.REPAIR_STATE_INCONCLUSIVE, "no-scratch")
    assert "at /host/var/lib/sickbay too" in result.message


async def test_the_restricted_profile_carries_out_no_order_and_fails_no_test(site: Site) -> None:
    (site.profiles / "site-tool.toml").write_text(TOOL)
    site.tools.tool("site-tool")
    stream = await site.start_restricted()
    result = await site.ordered(REBOOT, stream)
    assert (result.state, result.reason) == (pb.REPAIR_STATE_REFUSED, "in-use")
    assert "set hostPID" in result.message
    result = await site.ordered(TEST, stream, test_profile="site-tool")
    assert (result.state, result.reason) == (pb.REPAIR_STATE_INCONCLUSIVE, "not-started")
    assert "cannot change root directory" in result.message
    assert not site.tools.calls


async def test_the_profile_quick_runs_the_hosts_dcgmi(site: Site) -> None:
    site.tools.tool("dcgmi", "", 205)
    site.tools.tool("fio", "", 1)
    stream = await site.start()
    result = await site.ordered(TEST, stream)
    assert (result.state, result.reason) == (pb.REPAIR_STATE_FAILED, "isolate")
    assert [each.name for each in result.steps] == ["dcgm-1", "fio"]
    assert site.tools.calls[-2:] == [
        "dcgmi diag -r 1 -j",
        next(call for call in site.tools.calls if call.startswith("fio ")),
    ]


async def test_as_shipped_every_order_is_refused(site: Site) -> None:
    stream = await site.start(allow=())
    assert not stream.hello.repair_verbs
    for verb in (RESET, REBOOT, TEST):
        result = await site.ordered(verb, stream)
        assert (result.state, result.reason) == (pb.REPAIR_STATE_REFUSED, "not-allowed")
    assert not (site.volumes["state"] / "repair").exists()
    assert not site.tools.calls
