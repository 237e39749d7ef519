"""Text, forms of output and the command line of `sickbay`, without a server."""

import argparse
import datetime as dt
import io
import json
import unicodedata
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aggregator.cli import actions, cluster_view, render, render_nodes, write_commands
from aggregator.cli.arguments import program
from aggregator.cli.client import read_answer
from aggregator.cli.command_line import parser_for
from aggregator.cli.command_words import own_words
from aggregator.cli.confirm import confirm, require_terminal
from aggregator.cli.errors import CommandFailed, UsageError
from aggregator.cli.jsonpath import PathError, Template, read_path, select
from aggregator.cli.main import main
from aggregator.cli.output import form, sort_items
from aggregator.cli.screen import Screen
from aggregator.cli.text_table import LONGEST, clean, columns, table
from aggregator.cli.tunnel import aggregator_pods
from aggregator.cluster.port import (
    Action,
    Blocker,
    EvidenceItem,
    Phase,
    Quarantine,
    QuarantineSpec,
    QuarantineStatus,
)
from aggregator.version import VERSION

NOW = dt.datetime(2026, 3, 14, 3, 14, 7, tzinfo=dt.UTC)
ITEMS: list[dict[str, Any]] = [
    {"node": "a", "phase": "Draining", "pods": 3, "labels": {"x.y/z": "1"}, "since": "T2"},
    {"node": "b", "phase": "Drained", "pods": 0, "labels": {}, "since": None},
    {"node": "c\x1b[2J", "phase": "Draining", "pods": 12, "labels": {}, "since": "T1"},
]
ANSWER: dict[str, Any] = read_answer(json.dumps({"items": ITEMS, "total": 3}))


# -- text from outside -----------------------------------------------------------------


@given(st.text() | st.characters(categories=["Cc", "Cf", "Cs", "Mn", "Zl", "Zp"]).map(str))
def test_cleaned_text_is_one_printable_line_and_stays_as_it_is_when_cleaned_again(
    text: str,
) -> None:
    shown = clean(text)
    assert shown.isprintable()
    assert clean(shown) == shown
    assert not set(map(unicodedata.category, shown)) & {"Cc", "Cf", "Cs", "Zl", "Zp"}


@pytest.mark.slow
@given(st.text(min_size=1), st.integers(LONGEST, 3_000_000))
def test_megabytes_become_a_text_of_bounded_length_that_says_how_long_it_was(
    text: str, size: int
) -> None:
    shown = clean((text + "x") * (size // (len(text) + 1) + 1))
    assert len(shown) <= LONGEST


def test_a_tower_of_marks_does_not_reach_other_lines() -> None:
    assert clean("e\u0301") == "e\u0301"
    assert clean("e" + "\u0301" * 50).count("\u0301") == 3


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\x1b[31mb\x1b]0;t\x07", "a?[31mb?]0;t?"),
        ("abc\u202etxt.exe", "abc?txt.exe"),
        ("<script>alert(1)</script>", "<script>alert(1)</script>"),
        ("a\r\n\x0b\x85\u2028b", "a b"),
        ("\x9b2J\udc80\u200b", "?2J??"),
    ],
)
def test_what_a_terminal_would_obey_is_replaced(text: str, shown: str) -> None:
    assert clean(text) == shown


@pytest.mark.slow
@given(st.lists(st.tuples(st.text(), st.text(), st.text()), max_size=4))
def test_a_table_of_any_text_has_a_line_for_each_row_and_columns_that_line_up(
    rows: list[tuple[str, str, str]],
) -> None:
    lines = table(["A", "B", "C"], rows).split("\n")
    assert len(lines) == len(rows) + 1
    assert all(line.isprintable() for line in lines)


def test_in_a_narrow_terminal_a_long_reason_has_lines_of_its_own() -> None:
    node, reason = (
        "gpu-0117." + "x" * 50,
        "xid:79 (GPU has fallen off the bus) on GPU 3 at 0000:13:00",
    )
    text = table(["NODE", "REASON"], [(node, f"{reason}; blocked by a/b"), ("n", "ok")], 80)
    assert f"\n    {reason}; blocked by a/b\n" in text
    assert all(len(line) <= 80 for line in text.split("\n"))
    assert text.endswith("ok")
    assert len(table(["NODE", "REASON"], [(node, "word " * 500)], 80).split("\n")) == 5
    assert table(["NODE", "REASON"], [(node, reason)]).count("\n") == 1


def test_wide_letters_take_two_columns() -> None:
    assert table(["A", "B"], [("節点", "x"), ("n", "y")]).split("\n")[1:] == ["節点  x", "n     y"]
    assert columns(table(["A"], [("節点" * 20,)], 20).split("\n")[1]) <= 20


def test_colour_is_only_for_a_terminal_and_of_the_cell_alone() -> None:
    rows = [("n", "held"), ("m", "\x1b[31mheld")]
    assert "\x1b" not in table(["NODE", "STATE"], rows)
    painted = table(["NODE", "STATE"], rows, colour=True)
    assert painted.split("\n")[1:] == ["n     \x1b[33mheld\x1b[0m", "m     ?[31mheld"]


# -- -o and --sort-by --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{.total}", "3"),
        ("{.items[*].node}", "a b c?[2J"),
        ("{.items[0].node} {.items[-1].pods}", "a 12"),
        ("{.items[0:2].node}", "a b"),
        ('{.items[?(@.phase=="Draining")].pods}', "3 12"),
        ("{.items[?(@.pods>2)].node}", "a c?[2J"),
        ("{.items[?(@.since)].node}", "a b c?[2J"),
        ("{.items[0].labels['x.y/z']}", "1"),
        (r"{.items[0].labels.x\.y/z}", "1"),
        ('{range .items[*]}{.node}{"\\t"}{.pods}{"\\n"}{end}', "a\t3\nb\t0\nc?[2J\t12\n"),
        ("{range .items[0:1]}{.}{end}", None),
        ("{.items[7].node}{.nothing.there}", ""),
        ("{.items[1].since}", ""),
        ("{.items[?(@.since&&@.pods>2)].node}", "a c?[2J"),
        ("{$.total} {@.total}", "3 3"),
        ("{range .items[0:1]}{@}{end}", None),
        ("{'a b'}", "a b"),
    ],
)
def test_a_template_gives_what_kubectl_would(template: str, text: str | None) -> None:
    made = Template(template).expand(ANSWER, clean)
    assert made == (text if text is not None else made)
    assert made.replace("\n", "").replace("\t", "").isprintable()


@pytest.mark.parametrize(
    "template",
    [
        "",
        "{.items[*]",
        "{range .items}{.node}",
        "{end}",
        "{.items[x]}",
        "{.items[-:1]}",
        "{..node}",
        '{.a[?(@.b=="]}',
    ],
)
def test_a_template_that_can_not_be_read_is_refused(template: str) -> None:
    with pytest.raises(PathError):
        Template(template)
    with pytest.raises(argparse.ArgumentTypeError):
        form(f"jsonpath={template}")


@given(st.text())
def test_any_text_is_a_template_or_a_plain_refusal(text: str) -> None:
    try:
        Template(text).expand(ANSWER, clean)
    except PathError:
        return


@given(st.text(alphabet="{}[].*?@()'\"=<>$\\ ab0:-", max_size=30))
def test_any_path_is_read_or_refused(text: str) -> None:
    try:
        select(ANSWER, read_path(text))
    except PathError:
        return


@pytest.mark.parametrize(
    ("path", "order"),
    [("pods", "bac"), (".pods", "bac"), ("{.since}", "cab"), (".phase", "bac"), ("", "abc")],
)
def test_items_are_sorted_by_a_field_and_those_without_it_come_last(path: str, order: str) -> None:
    found = sort_items(ANSWER["items"], path)
    assert "".join(item["node"][0] for item in found) == order


def test_numbers_in_names_are_compared_as_numbers() -> None:
    found = sort_items([{"node": f"gpu-{n}"} for n in (10, 9, 100)], ".node")
    assert [one["node"] for one in found] == ["gpu-9", "gpu-10", "gpu-100"]


def test_a_field_that_no_item_has_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(UsageError, match=r"expected one of: \.node, \.phase"):
        sort_items(ANSWER["items"], ".colour")


# -- the command line ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (["nodes", "-o", "xml"], "expected one of: table, wide, json, yaml, name, jsonpath="),
        (["resume", "-o", "name"], "expected one of: table, json"),
    ],
)
def test_a_wrong_output_is_answered_with_those_of_the_command(
    line: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        parser_for("sickbay", {}).parse_args(line)
    assert ended.value.code == 2
    assert says in capsys.readouterr().err


def test_help_has_every_command_in_a_group_and_examples(capsys: pytest.CaptureFixture[str]) -> None:
    parser = parser_for("/usr/bin/kubectl-sickbay", {})
    with pytest.raises(SystemExit):
        parser.parse_args(["--help"])
    shown = capsys.readouterr().out
    for name in parser.commands:
        assert f"\n  {name} " in shown
    for heading in ("The fleet:", "Nodes:", "Act:", "Other:", "examples:"):
        assert f"\n{heading}\n" in shown
    assert "kubectl sickbay status" in shown
    assert shown.startswith("usage: kubectl sickbay [-h] [--version] COMMAND ...\n")
    assert (program("/opt/x/kubectl-sickbay"), program("sickbay")) == ("kubectl sickbay", "sickbay")


@pytest.mark.parametrize(
    ("words", "printed"),
    [
        (["version"], f"sickbay {VERSION}\n"),
        (["version", "-ojson"], f'{{"version": "{VERSION}"}}\n'),
    ],
)
def test_the_version_is_text_or_json(
    words: list[str], printed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    options = parser_for("sickbay", {}).parse_args(own_words(words))
    options.command(options)
    assert capsys.readouterr().out == printed


@pytest.mark.parametrize(
    ("written", "known"),
    [
        ("", "--help"),
        ("help", "--help"),
        ("help explain", "explain --help"),
        ("help get nodes", "nodes --help"),
        ("-o json version", "version -o json"),
        ("get nodes -o json", "nodes -o json"),
        ("get node gpu-1", "node gpu-1"),
        ("get jobs -o json", "jobs -o json"),
        ("help version", "version --help"),
        ("get quarantines --sort-by .node", "quarantines --sort-by .node"),
        ("-o json get incidents", "incidents -o json"),
        ("-ojson nodes", "nodes -ojson"),
        ("--output=json -n nodes quarantines", "quarantines --output=json -n nodes"),
        ("-o json", "-o json"),
        ("--version", "--version"),
        ("get pods", "get pods"),
        ("stop help", "stop help"),
    ],
)
def test_words_that_users_of_kubectl_write_are_understood(written: str, known: str) -> None:
    assert own_words(written.split()) == known.split()


@pytest.mark.parametrize(
    ("words", "problem"),
    [(["get"], "no list is named"), (["-ojson", "get", "pods"], "there is no list pods")],
)
def test_a_get_that_names_no_list_is_refused_with_the_lists(
    words: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    told = capsys.readouterr().err
    assert f"get: {problem}; expected one of: incidents, jobs, lemons, nodes, quarantines" in told
    assert "forget" not in told.splitlines()[-1]


def test_without_a_word_the_help_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([])
    assert ended.value.code == 0
    assert "\nThe fleet:\n" in capsys.readouterr().out


def test_a_cell_without_a_value_is_a_dash() -> None:
    assert table(["A", "B"], [(None, 1)]).splitlines()[1].split() == ["-", "1"]


@pytest.mark.parametrize("answer", ["yes\n", "y\n", " YES\n"])
def test_a_confirmed_action_goes_on(answer: str) -> None:
    asked = io.StringIO()
    confirm("node-1: a drain\x1b[2J", stdin=io.StringIO(answer), stderr=asked)
    assert asked.getvalue() == 'node-1: a drain?[2J\nGo on? Type "yes": '


@pytest.mark.parametrize("answer", ["", "\n", "no\n", "yess\n", "node-1\n"])
def test_every_other_answer_is_a_no(answer: str) -> None:
    with pytest.raises(CommandFailed, match="nothing was written"):
        confirm("?", stdin=io.StringIO(answer), stderr=io.StringIO())


def test_a_script_is_told_what_to_add_and_not_asked() -> None:
    with pytest.raises(UsageError, match="add --yes, or --dry-run"):
        require_terminal("a drain", stdin=io.StringIO("yes\n"))


@pytest.mark.parametrize(
    ("pods", "says"),
    [
        (None, "may not list them"),
        ([], "evicts no pod"),
        (["a/b", "a/c"], "evicts 2 pods, whose work is lost: a/b, a/c\n4 pods of"),
        ([f"a/{n}" for n in range(30)], "a/9, ...\n"),
    ],
)
def test_a_preview_names_the_pods_that_a_drain_ends(pods: Sequence[str] | None, says: str) -> None:
    assert says in actions.preview("node-1", pods, 4)


def test_a_command_that_an_action_names_selects_the_actions_own_cluster() -> None:
    how = " --context x"
    spec = QuarantineSpec(Action.CORDON, "manual", "fan 3 is dead")
    for text in (
        actions.released("node-1", spec, how=how),
        actions.none_such("node-1", how=how),
        actions.resumed_in_cluster("", how=how),
        actions.stopped_by_new_switch("sickbay", "storm", how=how),
    ):
        assert text.endswith(how), text


# -- what the cluster knows while no aggregator answers -----------------------------------------


def test_a_quarantine_of_the_cluster_is_shown_as_the_aggregator_shows_it() -> None:
    spec = QuarantineSpec(
        Action.DRAIN,
        "gpu",
        "xid:79 on 1 GPU",
        "sickbay",
        evidence=(EvidenceItem("xid:79", "GPU-1", "", "reboot", "rule", "i", "fallen off\x1b"),),
    )
    blocked = (Blocker("team/job-1", "budget", 1_773_458_000.0),)
    status = QuarantineStatus(
        Phase.DRAINING, drain_started_at=1_773_458_000.0, pods_remaining=2, blockers=blocked
    )
    found = Quarantine("node-1", "u", "1", spec, status, created_at=1_773_457_000.0)
    listed = "\n".join(
        render_nodes.quarantines(cluster_view.quarantines_answer([found]), Screen(NOW, wide=True))
    )
    assert "node-1  drain   Draining  " in listed
    assert "blocked by team/job-1" in listed
    one = cluster_view.node_answer("node-1", None, found, 0.0)
    shown = "\n".join(render_nodes.node(one, Screen(NOW)))
    assert "QUARANTINE (drain, Draining): xid:79 on 1 GPU" in shown
    assert "2 pods left" in shown
    [row] = cluster_view.nodes_answer([found])["items"]
    assert (row["state"], row["why"]) == ("quarantined", "Draining: xid:79 on 1 GPU")


def test_a_node_without_a_quarantine_is_not_said_to_be_healthy() -> None:
    node = {
        "metadata": {"annotations": {"sickbay.dev/pin": "RMA 1"}},
        "spec": {"unschedulable": True},
    }
    one = cluster_view.node_answer("node-1", node, None, 0.0)
    assert (one["state"], one["foreign"]) == ("unknown", "it is cordoned")
    shown = "\n".join(render_nodes.node(one, Screen(NOW)))
    assert "its health is known to the aggregator alone" in shown
    assert "pinned: RMA 1" in shown


POD = {
    "metadata": {"name": "sickbay-aggregator-0"},
    "spec": {
        "containers": [
            {
                "ports": [{"name": "web", "containerPort": 9090}],
                "readinessProbe": {"httpGet": {"scheme": "HTTP"}},
            }
        ]
    },
    "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
}


def test_the_pod_that_is_ready_is_asked_first_on_its_own_port() -> None:
    crashed = {
        "metadata": {"name": "a"},
        "status": {
            "phase": "Running",
            "containerStatuses": [
                {"restartCount": 7, "state": {"waiting": {"reason": "CrashLoopBackOff"}}}
            ],
        },
    }
    pending = {
        "metadata": {"name": "b"},
        "status": {
            "phase": "Pending",
            "conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}],
        },
    }
    found = aggregator_pods({"items": [crashed, pending, POD]})
    assert [(pod.name, pod.port, pod.scheme, pod.why) for pod in found] == [
        ("sickbay-aggregator-0", 9090, "http", ""),
        ("a", 8080, "https", "CrashLoopBackOff"),
        ("b", 8080, "https", "Unschedulable"),
    ]
    answer = cluster_view.status_answer("no reply", "fabric\x1b[2J", found[1:], [])
    shown = "\n".join(render.cluster_status(answer, Screen(NOW)))
    assert "THE AGGREGATOR DOES NOT ANSWER: no reply\nNone is ready" in shown
    assert "STOPPED BY A PERSON: fabric?[2J" in shown
    assert "CrashLoopBackOff" in shown


@pytest.mark.parametrize("error", [KeyError("uid not found: 12345"), OSError("no username")])
def test_a_user_without_a_name_is_asked_who_asks(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def no_name() -> str:
        raise error

    monkeypatch.setattr("getpass.getuser", no_name)
    with pytest.raises(UsageError, match="--requester: this user has no name here"):
        write_commands.this_user()
