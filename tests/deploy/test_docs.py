"""The promises of the user pages: complete tables, and commands that work."""

import os
import re
import shutil
import subprocess
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from aggregator import documentation
from aggregator.alerts.alert import SEVERITY
from aggregator.cluster.port import (
    Action,
    Node,
    Quarantine,
    QuarantineSpec,
    QuarantineStatus,
    Taint,
)
from aggregator.config.settings import LimitsConfig as ConfigLimits
from aggregator.quarantine.decide import node_marks
from aggregator.quarantine.decide.admission import AdmissionBatch, FleetSize, Limits, Proposal
from aggregator.quarantine.decide.admission_record import Entry, Record
from aggregator.quarantine.decide.common_cause import CommonCauses, CommonLimits
from aggregator.quarantine.decide.gpu_operands import DEPLOY, PAUSED
from aggregator.quarantine.decide.node_marks import KEEPING, MarkRules
from aggregator.quarantine.decide.symptoms import NVLINK, Symptom
from tests.controlplane.api import MERGE_PATCH
from tests.controlplane.pytest_plugin import Space
from tests.deploy.manifests import ROOT

DOCS = ROOT / "docs"


def page(name: str) -> str:
    return (DOCS / name).read_text("utf-8")


def test_the_runbook_begins_with_each_alert_that_pages_by_default() -> None:
    assert "](alert-kinds.md)" in page("runbook.md")
    table = page("runbook.md").partition("## You were paged for X")[2].partition("\n## ")[0]
    paging = {kind.value for kind, severity in SEVERITY.items() if severity != "info"}
    assert len(paging) > 20
    assert set(re.findall(r"^\| \[`([a-z._]+)`\]", table, re.MULTILINE)) == paging


def holds() -> Iterator[str]:
    """Every hold that admission can give, by provoking it."""
    proposals = [Proposal("n", "i", "p", (frozenset({"cause"}),))]
    full = Limits(concurrent=0), FleetSize(10, 10), ""
    share = Limits(concurrent=5, concurrent_percent=1), FleetSize(100, 100), ""
    pool = (
        Limits(concurrent_percent=100, pool_label="x", pool_percent=1),
        FleetSize(9, 9, {"p": 0}),
        "",
    )
    early = Limits(), FleetSize(10, 0), ""
    stopped = Limits(), FleetSize(10, 10), "why"
    for limits, size, stop in (full, share, pool, early, stopped):
        record = Record()
        if limits.concurrent_percent == 1:
            first = [Proposal("m", "j", "p")]
            record = AdmissionBatch(record, limits, size, now=0).admit(first).record
        outcome = AdmissionBatch(record, limits, size, now=0, stop=stop).admit(proposals)
        yield outcome.held["n"].limit
    wide = Limits(concurrent=9, concurrent_percent=100, new_per_window=1)
    narrow = Limits(concurrent=9, concurrent_percent=100, new_per_window_percent=1)
    for limits in (wide, narrow):
        record = Record().enter([Entry("m", "j", "p", 0)])
        for _ in range(2):
            batch = AdmissionBatch(record, limits, FleetSize(10, 10), now=0)
            outcome = batch.admit(proposals)
            record = outcome.record
            yield outcome.held["n"].limit
    fresh = [Proposal("n", "i", "p", unsettled="its version has just changed")]
    unsettled = AdmissionBatch(Record(), wide, FleetSize(9, 9), now=0).admit(fresh)
    yield unsettled.held["n"].limit
    yield from common_causes()


def common_causes() -> Iterator[str]:
    """The holds of common causes, by provoking these."""
    for nodes, label, what in (
        (10, "x", "check:a"),
        (1_000, "x", "check:a"),
        (200, "rack", "check:a"),
        (200, "clique", NVLINK),
    ):
        limits = CommonLimits(domain_labels=("rack",), clique_label="clique")
        causes = CommonCauses(limits, SimpleNamespace(observers=lambda check, components: {}))
        ill = 12 if label != "x" else nodes
        for number in range(nodes):
            signs = {Symptom(what, "", 0.0, acting=True)} if number < ill else set()
            groups = ((label, str(number // 18)),)
            causes.set_symptoms(f"n{number}", frozenset(signs), groups, frozenset())
        causes.find_causes(0.0)
        yield from (cause.limit for cause in causes.open.values())


def test_each_hold_has_a_section_of_a_page_that_the_runbook_names() -> None:
    provoked = set(holds())
    assert len(provoked) == 13
    assert "](holds.md)" in page("runbook.md")
    for hold in provoked:
        assert hold in documentation.HOLDS
        assert f"\n## {hold}\n" in page("holds.md"), hold
        assert f"`{hold.removeprefix('limits.')}`" in page("limits.md"), hold


def test_the_page_of_limits_has_every_one_with_its_default() -> None:
    told = page("limits.md")
    for key in fields(ConfigLimits):
        name = key.name
        assert f"`{name}`" in told or name == "silent_drain_after", name
        if isinstance(key.default, int):
            rows = [row for row in told.splitlines() if row.startswith("|") and f"`{name}`" in row]
            assert any(re.search(rf"\b{key.default}\b", row) for row in rows), name


PAGES = sorted(path.relative_to(ROOT) for path in (*ROOT.glob("*.md"), *DOCS.rglob("*.md")))


def test_the_list_of_pages_has_every_page() -> None:
    listed = set(re.findall(r"^\| \[[^]]+\]\(([a-z-]+\.md)\)", page("README.md"), re.MULTILINE))
    assert listed == {path.name for path in DOCS.glob("*.md")} - {"README.md"}


def test_decisions_are_numbered_without_a_gap_or_a_double() -> None:
    numbers = [int(path.name[:4]) for path in sorted(DOCS.glob("decisions/[0-9]*.md"))]
    assert numbers == list(range(1, len(numbers) + 1))


def test_every_dependency_has_its_line() -> None:
    told = page("decisions/0004-dependencies.md").lower()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = project["optional-dependencies"]
    wanted_by_extras = {one for extra in extras.values() for one in extra} - {"sickbay[cli]"}
    for wanted in (*project["dependencies"], *wanted_by_extras):
        assert re.match(r"[\w-]+", wanted)[0].lower() in told, wanted  # type: ignore[index]  # a name


_SERVICE = "sickbay-aggregator.sickbay.svc"


@pytest.mark.parametrize(
    ("name", "certificates"),
    [
        (
            "certificates.md",
            [("ca", _SERVICE, "tls"), ("ca", f"sickbay-aggregator-0.{_SERVICE}", "tls")],
        ),
        ("local.md", [("ca", "head", "head"), ("nodes-ca", "gpu-1", "gpu-1")]),
    ],
)
def test_the_certificate_recipes_with_openssl_make_some_that_verify(
    name: str, certificates: Sequence[tuple[str, str, str]], tmp_path: Path
) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("no openssl on the path")
    recipe = re.search(r"With openssl[^\n]*:\n```sh\n(.*?)```", page(name), re.DOTALL)
    assert recipe is not None
    done = subprocess.run(
        ["sh", "-euc", recipe[1]], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    for authority, host, file in certificates:
        options = ["-CAfile", f"{authority}.crt", "-verify_hostname", host, f"{file}.crt"]
        verify = ["openssl", "verify", *options]
        verified = subprocess.run(verify, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert verified.stdout == f"{file}.crt: OK\n", verified.stdout + verified.stderr


# -- undoing by hand, after an uninstall -----------------------------------------------------------


def mark(space: Space, name: str) -> None:
    """Cordon the node as the aggregator does, with the aggregator's own patch."""
    seen = space.plane.node(name)
    taints = [
        Taint(t["key"], t.get("value", ""), t["effect"]) for t in seen["spec"].get("taints", [])
    ]
    node = Node(
        name=name,
        uid=seen["metadata"]["uid"],
        version=seen["metadata"]["resourceVersion"],
        boot_id="",
        unschedulable=seen["spec"].get("unschedulable", False),
        taints=tuple(taints),
        labels={},
        annotations={},
    )
    spec = QuarantineSpec(
        Action.DRAIN, kind="gpu", reason="xid:79", requester="sickbay", incident="i"
    )
    quarantine = Quarantine(name, "uid-1", "1", spec, QuarantineStatus())
    change = node_marks.cordon_change(node, quarantine, off_balancers=True, rules=MarkRules())
    patch: dict[str, Any] = {
        "metadata": {"labels": change.labels, "annotations": change.annotations},
        "spec": {
            "unschedulable": change.unschedulable,
            "taints": [
                {"key": taint.key, "value": taint.value, "effect": taint.effect}
                for taint in change.taints or ()
            ],
        },
    }
    space.plane.call("PATCH", f"/api/v1/nodes/{name}", patch, MERGE_PATCH)


def test_the_commands_for_undoing_by_hand_undo_ours_and_leave_what_is_others(
    cluster_space: Space, tmp_path: Path
) -> None:
    if shutil.which("kubectl") is None:
        pytest.skip("no kubectl on the path")
    plane = cluster_space.plane
    ours, theirs, untouched = cluster_space.create_nodes(3)
    other = {"spec": {"unschedulable": True, "taints": [{"key": "x", "effect": "NoSchedule"}]}}
    for name in (theirs, untouched):
        plane.call("PATCH", f"/api/v1/nodes/{name}", other, MERGE_PATCH)
    for name in (ours, theirs):
        mark(cluster_space, name)
    assert "sickbay.dev/quarantine" in {t["key"] for t in plane.node(theirs)["spec"]["taints"]}
    operands = {f"{DEPLOY}device-plugin": PAUSED, f"{DEPLOY}dcgm-exporter": "false"}
    plane.call("PATCH", f"/api/v1/nodes/{ours}", {"metadata": {"labels": operands}}, MERGE_PATCH)

    recipe = re.search(
        r"<!-- tests/deploy runs this -->\n```sh\n(.*?)```", page("install.md"), re.DOTALL
    )
    assert recipe is not None
    done = subprocess.run(
        ["sh", "-euc", recipe[1]],
        cwd=tmp_path,
        env={
            "KUBECONFIG": str(plane.kubeconfig),
            "HOME": str(tmp_path),  # kubectl keeps a cache there
            "PATH": os.environ["PATH"],
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr

    for name in (ours, theirs, untouched):
        metadata = plane.node(name)["metadata"]
        everything = {**metadata.get("labels", {}), **metadata.get("annotations", {})}
        assert not [key for key in everything if key.startswith("sickbay.dev/")], name
        assert not set(KEEPING) & everything.keys(), "autoscalers could never remove it"
        assert node_marks.OFF_BALANCERS not in everything, "it would get no traffic"
    left = plane.node(ours)["metadata"]["labels"]
    assert left[f"{DEPLOY}device-plugin"] == "true"
    assert left[f"{DEPLOY}dcgm-exporter"] == "false"
    assert not plane.node(ours)["spec"].get("unschedulable", False)
    assert "sickbay.dev/quarantine" not in str(plane.node(ours)["spec"].get("taints", []))
    for name in (theirs, untouched):
        spec = plane.node(name)["spec"]
        assert spec["unschedulable"] is True
        assert [taint["key"] for taint in spec["taints"] if "/" not in taint["key"]] == ["x"]
        assert "sickbay" not in str(spec["taints"])
