"""The cluster's port is a seam: a kind of cluster is a folder, and one line of the registry."""

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import aggregator
from aggregator.cluster import registry
from aggregator.cluster.kind import ClusterKind, OpenOptions
from aggregator.cluster.local.cluster import LocalCluster
from aggregator.cluster.local.settings import Commands
from aggregator.config.settings import load, with_sections
from aggregator.configfile.section import Section

ROOT = Path(aggregator.__file__).parent
NAMES = {one.name for one in registry.ALL}
#: Each kind's own class, and the port's two.
_CLASSES = re.compile(r"\b(?:Kube|Local|Slurm|Memory|Opened|)Cluster\b")


@pytest.fixture(scope="module")
def sources() -> Mapping[str, ast.AST]:
    """Each module with a kind's name or class, by its path: to parse all takes a second."""
    texts = {path: path.read_text("utf-8") for path in sorted(ROOT.rglob("*.py"))}
    word = re.compile(rf"\b(?:{'|'.join(NAMES)})\b|{_CLASSES.pattern}")
    return {
        str(path.relative_to(ROOT)): ast.parse(text)
        for path, text in texts.items()
        if word.search(text)
    }


def _type_checks(tree: ast.AST) -> Iterator[int]:
    """Lines that distinguish clusters by their class."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id="isinstance" | "issubclass"), args=[_, which]):
                if _CLASSES.search(ast.unparse(which)):
                    yield node.lineno


def _is_name(node: ast.AST) -> bool:
    return any(isinstance(one, ast.Constant) and one.value in NAMES for one in ast.walk(node))


def _comparisons(tree: ast.AST) -> Iterator[int]:
    """Lines that compare with a kind's name, or look it up."""
    for node in ast.walk(tree):
        match node:
            case ast.Compare(left=left, comparators=others):
                if any(_is_name(one) for one in (left, *others)):
                    yield node.lineno
            case ast.MatchValue(value=value) if _is_name(value):
                yield value.lineno


def test_no_code_distinguishes_clusters_by_class_or_by_the_name_of_their_kind(
    sources: Mapping[str, ast.AST],
) -> None:
    found = [f"{name}:{line}" for name, tree in sources.items() for line in _type_checks(tree)]
    assert found == [], "isinstance of a cluster; see `Capabilities`"
    found = [f"{name}:{line}" for name, tree in sources.items() for line in _comparisons(tree)]
    assert found == [], "a comparison with a kind's name; see `ClusterKind`"


@pytest.mark.parametrize(
    "code",
    [
        'if config.cluster.kind == "local": pass',
        'if "kubernetes" != where.kind: pass',
        'if where.kind in ("local", "slurm"): pass',
        'match where.kind:\n  case "slurm": pass',
    ],
)
def test_every_form_of_comparison_is_found(code: str) -> None:
    assert list(_comparisons(ast.parse(code)))


def test_every_form_of_type_check_is_found() -> None:
    for code in ("isinstance(a, KubeCluster)", "issubclass(a, str | port.Cluster)"):
        assert list(_type_checks(ast.parse(code)))


def test_only_the_registry_names_the_kinds_of_cluster(sources: Mapping[str, ast.AST]) -> None:
    """Each folder of a kind opens its own cluster; no other module imports its class."""
    wrong = []
    for name, tree in sources.items():
        own = name.split("/")[1] if name.startswith("cluster/") else ""
        for node in ast.walk(tree):
            if not isinstance(node, ast.ImportFrom) or node.module is None:
                continue
            parts = node.module.split(".")
            if parts[:2] != ["aggregator", "cluster"] or parts[2:3] in ([], [own]):
                continue
            if parts[2] in NAMES and parts[-1] in ("cluster", "kind"):
                wrong.append(f"{name}: {node.module}")
    assert sorted(wrong) == [
        "cluster/registry.py: aggregator.cluster.kubernetes.kind",
        "cluster/registry.py: aggregator.cluster.local.kind",
        "cluster/registry.py: aggregator.cluster.slurm.kind",
        "cluster/slurm/cluster.py: aggregator.cluster.local.cluster",
    ]


class _FluxConfig(Section):
    """A kind of cluster that only this test knows."""

    database: Path = Path("/var/lib/sickbay-aggregator/flux.db")
    queue: str = ""


def test_a_new_kind_is_one_line_of_the_registry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[tuple[Any, OpenOptions]] = []

    def open_it(settings: Any, options: OpenOptions) -> LocalCluster:
        opened.append((settings, options))
        return LocalCluster(tmp_path / "flux.db", commands=Commands(), wall=options.wall)

    flux = ClusterKind("flux", open_it, section=_FluxConfig, keeps_state=True)
    kinds = (*registry.ALL, flux)
    monkeypatch.setattr(registry, "ALL", kinds)
    section = with_sections(kinds)
    made = section.model_validate({"kind": "flux", "flux": {"queue": "gpu"}})
    made.traits.open(made.settings, OpenOptions(wall=lambda: 1.0))
    assert [settings.queue for settings, _ in opened] == ["gpu"]
    assert (made.has_api_server, made.file) == (
        False,
        (("cluster", "flux", "database"), Path("/var/lib/sickbay-aggregator/flux.db")),
    )


def test_a_kind_that_lacks_something_refuses_the_settings_that_need_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The traits decide, and not the name: with the API server's traits all is accepted."""
    file = tmp_path / "aggregator.yaml"
    file.write_text(
        "cluster: {kind: local}\n"
        "identity: {kind: insecure-trust-hello}\n"
        "listen: {grpc: 127.0.0.1:8443, web: 127.0.0.1:8080}\n"
        "drain: {namespaces: [{match: jobs, policy: never}]}\n"
        "pools: [{name: a, selector: {matchLabels: {pool: a}}}]\n"
    )
    with pytest.raises(Exception, match=r"(?s)namespaces have pods.*no node of it has labels"):
        load(file)
    able = [
        replace(one, has_api_server=True, has_labels=True) if one.name == "local" else one
        for one in registry.ALL
    ]
    monkeypatch.setattr(registry, "ALL", tuple(able))
    assert load(file).cluster.has_api_server
