"""Repairs by the node's agent: the real aggregator, the real agent, TLS, a real kube-apiserver.

nvidia-smi and the reboot command are test programs. Either process is killed in an order, and no
operation is carried out twice; tests/agent/test_repair_killed.py kills the agent at each step.
"""

import http.server
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, ClassVar

import pytest

from nodeagent.checks import gpu_common, registry
from nodeagent.version import VERSION
from tests.agent.agent_process import QUIET
from tests.agent.fake_tools import FakeTools
from tests.controlplane.api import MERGE_PATCH
from tests.controlplane.pytest_plugin import Space
from tests.e2e.conftest import Start
from tests.nvml import FakeGpus, gpu, pci_of, uuid_of
from tests.support.relay_cuts import RelayCuts
from tests.support.stack import Stack

pytestmark = pytest.mark.cluster

OPENED = "stream to the aggregator opened"
RELEASE = 150
#: The checks of a GPU are off while its driver is let go of. A release waits for their next run,
#: which by default comes a minute later.
OFTEN = "".join(
    f'[checks.{spec.name}]\ninterval = "3s"\n'
    for spec in registry.SPECS
    if spec.deadline == gpu_common.DEADLINE and spec.name.startswith("gpu-")
)
TWO = [gpu(0), gpu(1)]
REPAIR: dict[str, Any] = {
    "repair": {
        "mode": "repair",
        "clear_within": "60s",
        "test_pause": "1s",
        "repairers": [
            {"kind": "gpu-reset", "agent": {}, "timeout": "60s"},
            {"kind": "reboot", "agent": {}, "timeout": "10m"},
        ],
    }
}
#: The same with a test before the release, by a profile of the node's own.
TESTED = {
    "repair": {
        **REPAIR["repair"],
        "verify": "own",
        "test_pause": "1s",
        "test_attempts": 2,
        "repairers": [
            *REPAIR["repair"]["repairers"],
            {"kind": "test", "agent": {}, "timeout": "5m"},
        ],
    }
}
KEY = "sickbay.dev/untested"
#: New nodes have to pass the same profile.
NEW_NODES = {
    "repair": {
        "mode": "repair",
        "test_pause": "1s",
        "new_nodes": {"taint": KEY, "profile": "own", "attempts": 2},
        "repairers": [{"kind": "test", "agent": {}, "timeout": "5m"}],
    }
}
PROFILE = """\
purpose = "Asks the test program of the site."
requires = []

[[step]]
name = "site"
command = ["site-check"]
limit = "2m"
output = "exit"
required = true
exits = { "77" = "inconclusive" }
"""


class RepairedNode:
    """One node whose agent obeys orders, and what was done to the machine.

    While ``hold`` is there the program that has reached that step waits.
    """

    def __init__(
        self,
        space: Space,
        stack: Stack,
        monkeypatch: pytest.MonkeyPatch,
        allow: str,
        before: "Callable[[RepairedNode], None]" = lambda _node: None,
    ) -> None:
        [self.name] = space.create_nodes(1)
        self.plane, self.stack = space.plane, stack
        agent = self.agent = stack.agent(self.name, start=False)
        self.folder = agent.folder
        self.tools = FakeTools(self.folder / "tools", TWO)
        for name, value in FakeGpus(self.folder, TWO).env.items():
            monkeypatch.setenv(name, value)
        agent.more = (
            f"[repair]\nallow = [{allow}]\n"
            f'nvidia_smi = "{self.tools.smi}"\n'
            f'reboot_command = ["{self.tools.folder}/reboot-now"]\n'
            f'tool_path = ["{self.tools.folder}", "/usr/bin", "/bin"]\n'
            f'reboot_limit = "2s"\ninsecure_own_pid_namespace = true\ninsecure_loopback = true\n'
            f'profiles = "{self.folder}/profiles"\n{QUIET}{OFTEN}'
        )
        (self.folder / "profiles").mkdir()
        (self.folder / "profiles" / "own.toml").write_text(PROFILE)
        self.site_check("exit 0")
        proc = self.folder / "proc"
        agent.top = f'proc = "{proc}"\n[expect]\ngpus = 2\n'
        agent.address = pci_of(1)
        self._boot_file = proc / "sys/kernel/random/boot_id"
        self._boot_file.parent.mkdir(parents=True)
        self._boot_file.write_text(self._boot())
        query = self.folder / "query.hook"
        query.touch()
        smi = self.tools.smi
        smi.write_text(smi.read_text().replace("[ -e ", f". {query}; [ -e ", 1))
        self._query = query
        before(self)
        self.start_agent()
        # It greets anew as soon as NVML has named the GPUs, which may be before a stream is open.
        self.stack.until(self._has_greeted_anew, "the agent to stream with its GPUs")

    def _boot(self) -> str:
        return f"{self.plane.node(self.name)['status']['nodeInfo']['bootID']}\n"

    def _has_greeted_anew(self) -> bool:
        results = self.agent.results()
        uplink = results["agent"]["uplink"] if results is not None else {"attempts": 0}
        return bool(uplink["attempts"] > 1 and uplink["state"] == "streaming")

    def start_agent(self) -> None:
        opened = self.agent.log().count(OPENED)
        self.agent.start()
        self.stack.until(lambda: self.agent.log().count(OPENED) > opened, "the agent to stream")

    def holds_at(self, step: str) -> Path:
        """The order stops at this step until the file is removed."""
        hold = self.folder / "hold"
        hold.touch()
        script = f"touch {self.folder}/at-{step}\nwhile [ -e {hold} ]; do sleep 0.1; done\n"
        if step == "accepted":
            self._query.write_text(script)
        elif step == "act":
            self.tools.hook("reset", script)
        else:
            hold.unlink()
        return hold

    def reached(self, step: str) -> bool:
        if step == "ended":
            return "an order is succeeded" in self.agent.log()
        return (self.folder / f"at-{step}").exists()

    def site_check(self, then: str) -> None:
        """The test's program notes each run, and goes on so."""
        program = self.tools.folder / "site-check"
        fresh = program.with_suffix(".new")
        fresh.write_text(f"#!/bin/sh\necho ran >> {self.tools.folder}/tests\n{then}\n")
        fresh.chmod(0o755)
        fresh.rename(program)

    def tests(self) -> int:
        path = self.tools.folder / "tests"
        return len(path.read_text().splitlines()) if path.exists() else 0

    def reboot(self) -> None:
        """The machine goes down and comes up in another boot, and its kubelet says so."""
        self.agent.kill()
        self.plane.reboot_node(self.name)
        self._boot_file.write_text(self._boot())
        self.start_agent()

    @property
    def attempts(self) -> list[dict[str, Any]]:
        return self.stack.attempts(self.name)

    def states(self) -> list[tuple[str, str]]:
        return [(one["repair"], one["state"]) for one in self.attempts]

    def resets(self) -> list[str]:
        path = self.tools.folder / "resets"
        return path.read_text().splitlines() if path.exists() else []

    def operations(self) -> dict[str, Any]:
        """The agent's journal."""
        path = self.agent.state_dir / "repair/operations.json"
        return {one["operation_id"]: one for one in _operations(json.loads(path.read_text()))}

    def is_released(self) -> bool:
        return self.stack.quarantine(self.name) is None and self.stack.taint(self.name) is None


def _operations(document: Any) -> list[dict[str, Any]]:
    found = document["operations"]
    return list(found.values()) if isinstance(found, dict) else found


@pytest.fixture
def node_of(
    cluster_space: Space, stack_of: Start, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., RepairedNode]:
    def make(allow: str = '"gpu-reset", "reboot"') -> RepairedNode:
        return RepairedNode(cluster_space, stack_of(REPAIR), monkeypatch, allow)

    return make


@pytest.fixture
def tested_node(
    cluster_space: Space, stack_of: Start, monkeypatch: pytest.MonkeyPatch
) -> RepairedNode:
    allow = '"gpu-reset", "reboot", "test"'
    return RepairedNode(cluster_space, stack_of(TESTED), monkeypatch, allow)


def test_a_node_that_fails_its_test_is_rebooted_and_tested_again(
    tested_node: RepairedNode,
) -> None:
    node = tested_node
    node.site_check("echo slow; exit 1")
    node.agent.xid(95)
    node.stack.until(
        lambda: node.tools.count("reboot-now"), "the reboot after the test", timeout_s=RELEASE
    )
    assert node.states()[:2] == [("gpu-reset", "Succeeded"), ("test", "Failed")]
    assert node.attempts[1]["profile"] == "own"
    assert "site" in node.attempts[1]["message"]
    node.site_check("exit 0")
    node.reboot()
    node.stack.until(node.is_released, "the release", timeout_s=RELEASE)
    assert node.tests() == 2
    assert node.tools.count("reboot-now") == 1


@pytest.fixture
def new_node(
    cluster_space: Space, stack_of: Start, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], RepairedNode]:
    """A node that is registered with the startup taint; its test goes on so."""

    def make(then: str) -> RepairedNode:
        def registers(node: RepairedNode) -> None:
            body = {"spec": {"taints": [{"key": KEY, "effect": "NoSchedule"}]}}
            node.plane.call("PATCH", f"/api/v1/nodes/{node.name}", body, MERGE_PATCH)
            node.site_check(then.format(folder=node.folder))

        return RepairedNode(cluster_space, stack_of(NEW_NODES), monkeypatch, '"test"', registers)

    return make


def is_open(node: RepairedNode) -> bool:
    return not node.plane.node(node.name)["spec"].get("taints")


def result_of(node: RepairedNode) -> str:
    found = node.plane.node(node.name)["status"]["conditions"]
    return next((one["status"] for one in found if one["type"] == "SickbayTestPassed"), "")


def test_a_new_node_is_opened_after_the_agent_has_tested_it(
    new_node: Callable[[str], RepairedNode],
) -> None:
    """kill -9 of the aggregator during the test loses no verdict, and begins no second test."""
    node = new_node("touch {folder}/hold-test; while [ -e {folder}/hold-test ]; do sleep 0.1; done")
    node.stack.until(node.tests, "the test", timeout_s=RELEASE)
    assert not is_open(node)
    # The line of its begin comes before the step's own file.
    node.stack.until((node.folder / "hold-test").exists, "the step", timeout_s=RELEASE)
    node.stack.aggregator.kill()
    (node.folder / "hold-test").unlink()
    node.stack.aggregator.start().ready()
    node.stack.until(lambda: is_open(node), "the taint to go", timeout_s=RELEASE)
    node.stack.until(lambda: result_of(node) == "True", "the condition")
    assert node.tests() == 1
    node.stack.aggregator.wait_for_log("test own of the new node passed")


def test_a_new_node_that_fails_stays_closed_until_another_boot_passes(
    new_node: Callable[[str], RepairedNode],
) -> None:
    node = new_node("echo slow; exit 1")
    node.stack.until(lambda: result_of(node) == "False", "the failure", timeout_s=RELEASE)
    assert not is_open(node)
    assert node.tests() == 1
    node.site_check("exit 0")
    node.reboot()
    node.stack.until(lambda: is_open(node), "the taint to go", timeout_s=RELEASE)
    assert node.tests() == 2


def test_a_node_is_rebooted_by_its_agent_where_it_allows_no_reset(
    node_of: Callable[..., RepairedNode],
) -> None:
    node = node_of('"reboot"')
    node.agent.xid(95)
    node.stack.until(lambda: node.tools.count("reboot-now"), "the reboot", timeout_s=60)
    reset, reboot = node.attempts
    assert (reset["repair"], reset["state"]) == ("gpu-reset", "Failed")
    assert "the node's own configuration does not allow it" in reset["message"]
    assert reboot["repair"] == "reboot"
    node.reboot()
    node.stack.until(node.is_released, "the release", timeout_s=RELEASE)
    assert node.tools.count("reboot-now") == 1
    assert node.resets() == []


@pytest.mark.parametrize("step", ["act", "ended"])
def test_kill_9_of_the_aggregator_repeats_no_reset_and_loses_no_result(
    node_of: Callable[..., RepairedNode], step: str
) -> None:
    node = node_of()
    hold = node.holds_at(step)
    node.agent.xid(95)
    node.stack.until(lambda: node.reached(step), f"the order to be {step}", timeout_s=60)
    node.stack.aggregator.kill()
    # The first process may have written the end, and died before it logged it.
    [(_, known)] = node.states()
    hold.unlink(missing_ok=True)
    node.stack.until(lambda: "an order is succeeded" in node.agent.log(), "the reset's end")
    node.stack.aggregator.start().ready()
    node.stack.until(node.is_released, "the release", timeout_s=RELEASE)
    assert (node.resets(), node.tools.count("reboot-now")) == ([f"--gpu-reset -i {uuid_of(1)}"], 0)
    [operation] = node.operations().values()
    assert operation["state"] == "succeeded"
    node.stack.until(
        lambda: all(one["acknowledged"] for one in node.operations().values()),
        "the agent's results to be acknowledged",
    )
    if known != "Succeeded":
        node.stack.aggregator.wait_for_log("gpu-reset succeeded")


def test_kill_9_of_the_agent_in_a_reset_leaves_the_node_to_a_person_and_repeats_nothing(
    node_of: Callable[..., RepairedNode],
) -> None:
    node = node_of()
    hold = node.holds_at("act")
    node.agent.xid(95)
    node.stack.until(lambda: node.reached("act"), "the reset", timeout_s=60)
    node.agent.kill()
    hold.unlink()
    node.start_agent()
    node.stack.until(
        lambda: node.states()[:1] == [("gpu-reset", "Unknown")], "its end", timeout_s=120
    )
    node.stack.until(lambda: "is not known" in _repair(node)["exhausted"], "a person to be asked")
    assert (len(node.resets()), node.tools.count("reboot-now")) == (1, 0)


def test_an_order_whose_quarantine_is_deleted_while_its_agent_is_cut_off_is_not_begun(
    cluster_space: Space, stack_of: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cancellation is lost with the connection, and the next stream brings none."""
    stack, cuts = stack_of(REPAIR), RelayCuts(dict)

    def goes_by_the_proxy(node: RepairedNode) -> None:
        host, _, port = node.agent.aggregator.rpartition(":")
        node.agent.aggregator = f"{host}:{cuts.before(host, int(port))}"

    with closing(cuts):
        node = RepairedNode(
            cluster_space, stack, monkeypatch, '"gpu-reset", "reboot"', goes_by_the_proxy
        )
        hold = node.holds_at("accepted")
        node.agent.xid(95)
        node.stack.until(lambda: node.reached("accepted"), "the order", timeout_s=60)
        opened = node.agent.log().count(OPENED)
        cuts.cut([""])
        node.plane.request("DELETE", f"/apis/sickbay.dev/v1alpha1/quarantines/{node.name}")
        node.stack.until(node.is_released, "a person's release", timeout_s=60)
        cuts.heal()
        node.stack.until(
            lambda: node.agent.log().count(OPENED) > opened, "the agent's return", timeout_s=60
        )
        hold.unlink()
        node.stack.until(lambda: "an order is refused" in node.agent.log(), "its refusal")
        [operation] = node.operations().values()
        assert operation["reason"] == "not-permitted", operation
        assert operation["message"].endswith(
            ("the node is released", "no quarantine and no test of the node has this order")
        )
        assert not operation["began"]
        assert node.resets() == []
        node.stack.aggregator.wait_for_log("an agent may not begin")


def _repair(node: RepairedNode) -> dict[str, Any]:
    status = (node.stack.quarantine(node.name) or {}).get("status", {})
    repair: dict[str, Any] = {"exhausted": "", **status.get("repair", {})}
    return repair


class TicketSystem(http.server.BaseHTTPRequestHandler):
    """Takes each ticket, and keeps it."""

    tickets: ClassVar[list[dict[str, Any]]] = []

    def do_POST(self) -> None:
        self.tickets.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def ticket_system() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    tickets: list[dict[str, Any]] = []
    handler = type("Handler", (TicketSystem,), {"tickets": tickets})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/", tickets
        server.shutdown()


def test_a_ticket_after_a_failed_reset_has_what_the_agent_collected_before_it(
    cluster_space: Space,
    stack_of: Start,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    ticket_system: tuple[str, list[dict[str, Any]]],
) -> None:
    url, tickets = ticket_system
    secret = tmp_path / "ticket-secret"
    secret.write_text("hush")
    webhook = {"url": url, "secret_file": str(secret)}
    repairers = [*REPAIR["repair"]["repairers"][:1], {"kind": "ticket", "webhook": webhook}]
    more = {"repair": {**REPAIR["repair"], "repairers": repairers}}
    node = RepairedNode(cluster_space, stack_of(more), monkeypatch, '"gpu-reset"')
    node.tools.set_answer("reset", "Unknown Error\n", code=255)
    node.agent.xid(95)
    node.stack.until(lambda: tickets, "the ticket", timeout_s=RELEASE)
    ticket = tickets[0]
    assert (ticket["repair"], ticket["node"]) == ("ticket", node.name)
    [told] = ticket["evidence"]["agent"]
    assert told["operation"].endswith("-1-gpu-reset")
    collected = told["collected"]
    assert collected["node"] == node.name
    assert [one["serial"] for one in collected["gpus"]] == ["165000", "165001"]
    assert [one["code"] for one in collected["faults"]] == ["xid:95"]
    assert collected["kernel_log"]  # in a test it is a FIFO, and this says so
    assert collected["agent"] == VERSION
    [first, *_] = ticket["evidence"]["attempts"]
    assert (first["repair"], first["state"]) == ("gpu-reset", "Failed")
