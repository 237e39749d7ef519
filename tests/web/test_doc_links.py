"""Each document that the page names is a link, exists, and has the named section."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aggregator import advice
from aggregator.quarantine.state.fleet import FleetState
from aggregator.web.doc_links import pieces
from tests.unit.test_documentation import anchors
from tests.web.support import Hands, incident_of, record_common_cause, serving, small_fleet

ROOT = Path(__file__).parents[2]
SITE = "https://docs.example/sickbay/1.0"
NAMED = re.compile(r"docs/[a-z0-9-]+\.md(?:#[a-z0-9-]+)?")
SOURCES = [*sorted((ROOT / "aggregator/web/templates").glob("*.html")), Path(advice.__file__)]


def loud_fleet(hands: Hands) -> FleetState:
    """Every notice, hold and common cause that names a document."""
    fleet = small_fleet(hands)
    fleet.clock_doubt = "why"
    record_common_cause(fleet, hands.now)
    return fleet


def test_a_text_is_whole_and_its_documents_are_found() -> None:
    text = "See docs/holds.md#stop, or docs/limits.md. Not docs/../x.md, adocs/x.md, docs/X.md."
    assert "".join(piece for piece, _ in pieces(text)) == text
    assert [piece for piece, kind in pieces(text) if kind == "document"] == [
        "docs/holds.md#stop",
        "docs/limits.md",
    ]


@given(st.text(max_size=60))
def test_no_text_is_changed_by_the_search(text: str) -> None:
    assert "".join(piece for piece, _ in pieces(text)) == text.replace("`", "") or "`" in text


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (
            "To do: sickbay unpin gpu-1.a to let it go, or sickbay release gpu-1.a",
            ["sickbay unpin gpu-1.a", "sickbay release gpu-1.a"],
        ),
        (
            'By hand: sickbay quarantine n1 --action cordon --reason "..." --url http://x:80. Or',
            ['sickbay quarantine n1 --action cordon --reason "..." --url http://x:80'],
        ),
        (
            "run kubectl get quarantine NODE -o yaml: a repair",
            ["kubectl get quarantine NODE -o yaml"],
        ),
        (
            "(sickbay quarantines). Names of `kubectl get nodes`",
            ["sickbay quarantines", "kubectl get nodes"],
        ),
        ("sickbay repairs it no further, the version of sickbay that wrote sickbay-record", []),
    ],
)
def test_commands_are_found_without_the_words_around_them(text: str, found: list[str]) -> None:
    assert [piece for piece, kind in pieces(text) if kind == "command"] == found


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.name)
def test_each_named_document_and_section_exists(source: Path) -> None:
    for name in NAMED.findall(source.read_text("utf-8")):
        path, _, section = name.partition("#")
        assert (ROOT / path).is_file(), name
        assert not section or section in anchors(ROOT / path), name


@pytest.mark.parametrize("path", ["/", "/nodes/node-2", "/nodes/node-3"])
async def test_each_named_document_is_a_link_where_the_address_is_set(path: str) -> None:
    hands = Hands()
    fleet = loud_fleet(hands)
    async with serving(fleet, hands.clocks()) as served:
        plain = await served.text(path)
        assert NAMED.findall(plain)
        assert "Documentation</a>" not in plain
        assert 'href="docs/' not in plain
    fleet.documentation_url = SITE + "/"
    async with serving(fleet, hands.clocks()) as served:
        served.untold.append("no route")
        linked = await served.text(path)
        rest = re.sub(rf'<a[^>]* href="{SITE}/docs/[^"]+">[^<]*</a>', "", linked)
        assert NAMED.findall(rest) == []
        assert linked.count(f'href="{SITE}/docs/') >= len(set(NAMED.findall(plain)))


async def test_a_hostile_text_with_a_document_stays_text() -> None:
    hands = Hands()
    fleet = loud_fleet(hands)
    fleet.documentation_url = SITE
    evil = 'docs/x.md"><script>alert(1)</script>'
    incident_of(fleet.node_summaries["node-1"], hands.now, summary=evil, message=evil)
    async with serving(fleet, hands.clocks()) as served:
        assert "<script>alert" not in await served.text("/")
