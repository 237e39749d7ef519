"""Each part of a node's state is changed by the modules that are named here, and by no other."""

import ast
import dataclasses
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import get_type_hints

import pytest

from aggregator.quarantine.state.cluster_view import ClusterView
from aggregator.quarantine.state.fleet import AgentView, Decision, NodeSummary, Work
from aggregator.quarantine.state.node import NodeState
from aggregator.quarantine.state.quarantine_view import QuarantineView

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
#: A module that gets hold of a node's state imports a type from one of these.
STATE = re.compile(r"quarantine\.state\.(fleet|node|registry|\w+_view)\b")
FOLDERS = (
    "aggregator/app.py",
    "aggregator/quarantine",
    "aggregator/web",
)
#: A part, the attribute that has it, and the modules that may change it.
PARTS = (
    (
        AgentView,
        "agent",
        {
            "actions/release.py",
            "reconcile/agent_events.py",
            "reconcile/poller.py",
            "state/node.py",
        },
    ),
    (
        ClusterView,
        "cluster",
        {
            "actions/cordon.py",
            "actions/release.py",
            "reconcile/agent_events.py",
            "reconcile/cluster_events.py",
            "reconcile/poller.py",
            "repair/node_test_reports.py",
            "state/node.py",
        },
    ),
    (
        Decision,
        "decision",
        {
            "actions/release.py",
            "reconcile/cluster_events.py",
            "reconcile/work_queue.py",
            "state/node.py",
        },
    ),
    (
        QuarantineView,
        "quarantine_view",
        {
            "reconcile/admission.py",
            "actions/adoption.py",
            "actions/announcer.py",
            "actions/cordon.py",
            "actions/node_actions.py",
            "actions/object_writes.py",
            "actions/release.py",
            "drain/drainer.py",
            "reconcile/cluster_events.py",
            "reconcile/new_marks.py",
            "reconcile/node_rounds.py",
            "reconcile/poller.py",
            "reconcile/worker.py",
            "repair/before_release.py",
            "repair/quarantine_case.py",
            "repair/runner.py",
            "state/node.py",
        },
    ),
    (
        Work,
        "work",
        {
            "actions/cordon.py",
            "actions/holds.py",
            "actions/node_actions.py",
            "actions/object_writes.py",
            "drain/drainer.py",
            "reconcile/agent_events.py",
            "reconcile/cluster_events.py",
            "reconcile/work_queue.py",
            "reconcile/poller.py",
            "reconcile/release.py",
            "reconcile/worker.py",
            "state/race.py",
        },
    ),
)


@cache
def _parsed() -> Mapping[str, ast.Module]:
    """The modules by their file, parsed once for all tests."""
    modules = {}
    for folder in FOLDERS:
        found = ROOT / folder
        for path in sorted(found.rglob("*.py")) if found.is_dir() else [found]:
            text = path.read_text()
            if STATE.search(text):
                modules[str(path.relative_to(ROOT))] = ast.parse(text)
    return modules


def _modules() -> Iterator[tuple[str, ast.Module]]:
    return iter(_parsed().items())


def _is_assigned(found: ast.AST) -> bool:
    """Whether it is an attribute that is assigned or deleted."""
    return isinstance(found, ast.Attribute) and not isinstance(found.ctx, ast.Load)


def _home(part: type) -> str:
    return part.__module__.replace(".", "/") + ".py"


def _changing(part: type) -> set[str]:
    """The methods that assign a field; properties are no methods that a caller changes it with."""
    module = ast.parse((ROOT / _home(part)).read_text())
    return {
        method.name
        for found in module.body
        if isinstance(found, ast.ClassDef) and found.name == part.__name__
        for method in found.body
        if isinstance(method, ast.FunctionDef) and any(map(_is_assigned, ast.walk(method)))
        if "property" not in {ast.unparse(one) for one in method.decorator_list}
    }


def _is_self(base: ast.expr) -> bool:
    return isinstance(base, ast.Name) and base.id == "self"


def outside_changes(
    part: type, attribute: str, callers: set[str], modules: Iterator[tuple[str, ast.Module]]
) -> list[str]:
    """Assignments to the part's fields, other than to an object's own, and calls of the methods
    that change it, in other modules than the ``callers``.
    """
    changing, fields = _changing(part), {one.name for one in dataclasses.fields(part)}
    return [
        f"{name}:{found.lineno}: {ast.unparse(found)}"
        for name, module in modules
        if name.removeprefix("aggregator/quarantine/") not in callers and name != _home(part)
        for found in ast.walk(module)
        if isinstance(found, ast.Attribute)
        if (found.attr in changing and ast.unparse(found.value).rpartition(".")[2] == attribute)
        or (found.attr in fields and _is_assigned(found) and not _is_self(found.value))
    ]


@pytest.mark.parametrize(("part", "attribute", "callers"), PARTS)
def test_only_the_named_modules_change_a_part(
    part: type, attribute: str, callers: set[str]
) -> None:
    assert outside_changes(part, attribute, callers, _modules()) == []
    for caller in callers:  # the table names none in vain
        module = _parsed()[f"aggregator/quarantine/{caller}"]
        others = callers - {caller}
        assert outside_changes(part, attribute, others, iter([(caller, module)])) != []


@pytest.mark.parametrize(
    "text",
    [
        "node_state.agent.silent = True",
        "agent = node_state.agent\nagent.silent, x = True, 1",
        "node_state.agent.silent |= True",
        "del node_state.agent.silent",
        "node_state.agent.discard()",
    ],
)
def test_a_change_elsewhere_is_found(text: str) -> None:
    module = ("aggregator/quarantine/drain/drainer.py", ast.parse(text))
    assert len(outside_changes(*PARTS[0], iter([module]))) == 1


def test_a_nodes_state_has_no_field_outside_its_parts() -> None:
    """A new field belongs to a part: here it could be assigned by any module."""
    parts = {part for part, _, _ in PARTS}
    summary = get_type_hints(NodeSummary)
    assert {name for name, hint in summary.items() if hint not in parts} == {"node"}
    added = set(get_type_hints(NodeState)) - set(summary)
    assert added == {"now", "held", "others"}


def test_a_deferred_report_is_forgotten_with_the_evidence() -> None:
    decision = Decision(unreported=frozenset({"i-1", "i-2"}))
    assert decision.take_deferred("i-1")
    assert not decision.take_deferred("i-1")
    decision.forget_evidence()
    assert decision.unreported == frozenset()
