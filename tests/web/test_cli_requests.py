"""Requests of the command line: quarantine, release, stop, exempt and pin, on a local cluster."""

import json
import os
import pty
import sqlite3
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from aggregator.cli.command_line import parser_for
from aggregator.cli.options import flags_of
from aggregator.cluster.local.store import LocalStore
from aggregator.cluster.port import Action, QuarantineSpec, Taint
from aggregator.quarantine.decide.operator_requests import OperatorRequests, read_operator_requests
from tests.support.present import present
from tests.support.text_files import text_file
from tests.web.cli import in_process, sickbay, start_on
from tests.web.support import NIGHT, Served
from tests.web.test_actions import orders_a_reboot

# -- acting on a local cluster ---------------------------------------------------------------


async def test_a_misspelt_name_is_forgotten_once_nothing_is_on_it(database: Path) -> None:
    where = ["--local", str(database)]

    async def refused() -> str:
        done = await in_process("forget", "nod-1", *where)
        assert (done.code, done.out) == (1, "")
        return done.err

    assert "this file has no node nod-1" in await refused()
    await in_process("quarantine", "nod-1", "--action", "cordon", "--reason", "fan", *where)
    first = f"it is not forgotten\n  First: sickbay release nod-1 --local {database}"
    assert first in await refused()
    await in_process("exempt", "nod-1", "--for", "1h", "--reason", "test", *where)
    await in_process("release", "nod-1", *where)
    assert "nod-1 is exempt: it is not forgotten\n  First: sickbay unexempt" in await refused()
    await in_process("unexempt", "nod-1", *where)
    await in_process("pin", "nod-1", "--reason", "test", *where)
    assert "nod-1 is pinned: it is not forgotten\n  First: sickbay unpin" in await refused()
    await in_process("unpin", "nod-1", *where)
    with closing(LocalStore(database, wall=lambda: NIGHT)) as store:
        taint = Taint("sickbay.dev/quarantine", "manual", "NoSchedule")
        store.write_node(replace(store.node("nod-1"), taints=(taint,)))
        assert "marked as quarantined" in await refused()
        store.write_node(replace(store.node("nod-1"), taints=()))
        done = await in_process("forget", "nod-1", *where)
        assert (done.code, done.out.splitlines()[0][:17]) == (0, "nod-1: forgotten.")
        assert store.nodes() == []
    done = await in_process("forget", "nod-1")
    assert (done.code, "expected --local DATABASE" in done.err) == (2, True)


async def test_stop_and_resume_on_a_local_cluster(database: Path) -> None:
    done = await sickbay("stop", "fabric work", "--local", str(database))
    assert done.code == 0, done.err
    assert f"sickbay resume --local {database}" in done.out
    store = LocalStore(database, wall=lambda: NIGHT)
    assert store.stopped() == "fabric work"
    again = await sickbay("stop", "--reason", "more of it", "--local", str(database))
    assert 'stopped already: "fabric work"' in again.out
    assert "it was stopped" in (await sickbay("resume", "--local", str(database))).out
    assert store.stopped() == ""
    assert "It was not stopped." in (await sickbay("resume", "--local", str(database))).out
    store.close()


async def test_what_others_wrote_is_one_line_of_printable_text(database: Path) -> None:
    where = ["--local", str(database)]
    store = LocalStore(database, wall=lambda: NIGHT)
    store.set_stop("no\n\x1b[2Jwork")
    spec = QuarantineSpec(Action.CORDON, "manual", "a\nb", "me\x1b[31m")
    store.create_quarantine("node-1", spec, finalizer=False)
    store.close()
    ask = ["quarantine", "node-1", "--action", "drain", "--reason", "fan", "--yes", *where]
    said = [
        (await in_process(*ask)).err,
        (await in_process("stop", "--reason", "fabric work", *where)).out,
    ]
    store = LocalStore(database, wall=lambda: NIGHT)
    store.set_stop("no\n\x1b[2Jwork")
    store.close()
    said.append((await in_process("resume", *where)).out)
    assert "(cordon, by me?[31m: a b)" in said[0]
    assert 'stopped already: "no ?[2Jwork"' in said[1]
    assert 'it was stopped: "no ?[2Jwork"' in said[2]


@pytest.mark.parametrize(
    "words",
    [
        ["stop"],
        ["exempt", "node-1", "--for", "1h"],
        ["pin", "node-1"],
        ["quarantine", "node-1", "--action", "cordon", "--requester", "me\x1b[2J\udcff"],
    ],
    ids=lambda words: words[0],
)
async def test_what_a_person_pastes_as_a_reason_is_taken_and_said_as_one_short_line(
    database: Path, words: list[str]
) -> None:
    reason = "see\x1b[2J\r\nDone: all\udcff is well" + "x" * 100_000
    done = await in_process(*words, "--reason", reason, "--local", str(database))
    assert done.code == 0, done.err
    assert "see?[2J Done: all? is wellxxx" in done.out
    assert "xxx… (100,026 characters)\n" in done.out
    assert done.out.replace("\n", "").isprintable()


async def test_a_terminal_that_has_not_every_letter_shows_the_rest(database: Path) -> None:
    words = ["stop", "--reason", "Lüfter…", "--local", str(database)]
    done = await sickbay(*words, PYTHONIOENCODING="ascii")
    assert (done.code, done.out.splitlines()[0]) == (0, "Stopped: L?fter?")


async def test_a_refusal_that_quotes_the_command_line_moves_no_cursor(database: Path) -> None:
    where = ["--local", f"{database}\x1b[2J\udcff"]
    done = await in_process("resume", *where)
    assert (done.code, "there is no database at" in done.err) == (2, True)
    assert done.err.replace("\n", "").isprintable()


async def test_a_quarantine_while_stopped_says_that_nothing_begins(database: Path) -> None:
    where = ["--local", str(database)]
    ask = ["--yes", "--action", "drain", "--reason", "fan 3 is dead", *where]
    await in_process("stop", "--reason", "fabric work", *where)
    done = await in_process("quarantine", "node-1", *ask)
    assert done.code == 0, done.err
    assert "BUT: sickbay is stopped: fabric work\nNo quarantine begins until the stop" in done.out
    assert f"sickbay resume --local {database}\n" in done.out
    await in_process("resume", *where)
    assert "No quarantine begins" not in (await in_process("quarantine", "node-2", *ask)).out


async def test_quarantine_and_release_on_a_local_cluster(database: Path) -> None:
    ask = ["--yes", "--action", "drain", "--reason", "fan 3 is dead", "--local", str(database)]
    done = await in_process("quarantine", "node-1", *ask, "--requester", "sickbay")
    assert done.code == 0, done.err
    store = LocalStore(database, wall=lambda: NIGHT)
    found = present(store.quarantine("node-1"))
    assert f"sickbay release node-1 --local {database}" in done.out
    assert found.spec == QuarantineSpec(Action.DRAIN, "manual", "fan 3 is dead", "a person")
    again = await in_process("quarantine", "node-1", *ask)
    assert again.code == 1
    assert "in quarantine already (drain, by a person: fan 3 is dead)" in again.err
    done = await in_process("release", "node-1", "--local", str(database), "-o", "json")
    assert json.loads(done.out)["done"]
    assert "evidence" not in done.out, "it was made by hand, and rests on none"
    assert store.quarantine("node-1") is None
    done = await in_process("release", "node-1", "--local", str(database))
    assert done.code == 1
    assert "no quarantine to release" in done.err
    store.close()


async def test_a_drain_is_confirmed_on_a_terminal_and_refused_without_one(database: Path) -> None:
    ask = ["--action", "drain", "--reason", "fan 3 is dead", "--local", str(database)]
    refused = await in_process("quarantine", "node-1", *ask)
    assert (refused.code, refused.out) == (2, "")
    assert "stdin is no terminal; add --yes, or --dry-run" in refused.err
    dry = await in_process("quarantine", "node-1", "--dry-run", *ask)
    assert dry.code == 0, dry.err
    assert dry.out.startswith("DRY RUN, nothing is written.")
    ours, theirs = pty.openpty()
    with closing(LocalStore(database, wall=lambda: NIGHT)) as store:
        assert store.quarantines() == []
        for answer, code in ((b"no\n", 1), (b"yes\n", 0)):
            os.write(ours, answer)
            process = await start_on(theirs, "quarantine", "node-1", *ask)
            _, err = await process.communicate()
            assert process.returncode == code, err
            assert b'Its reason: fan 3 is dead\nGo on? Type "yes": ' in err
            assert len(store.quarantines()) == 1 - code
    os.close(ours)
    os.close(theirs)


async def test_a_drain_by_hand_warns_where_the_mode_evicts_no_pod(
    served: Served, database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = ["--dry-run", "--action", "drain", "--reason", "x", "--local", str(database)]
    unknown = await in_process("quarantine", "node-1", *ask)
    assert "the mode is not known" in unknown.err
    monkeypatch.setenv("SICKBAY_URL", served.url)
    for mode, warns in (("observe", True), ("cordon", True), ("drain", False)):
        served.fleet.mode = mode
        done = await in_process("quarantine", "node-1", *ask)
        assert done.code == 0, done.err
        assert (f"WARNING: mode {mode}: the node is marked" in done.err) == warns
        assert "the mode is not known" not in done.err
    cordon = [*ask[:1], "--action", "cordon", *ask[3:]]
    served.fleet.mode = "observe"
    assert "WARNING" not in (await in_process("quarantine", "node-1", *cordon)).err


async def test_a_release_with_an_open_order_is_confirmed_on_a_terminal_and_refused_without_one(
    database: Path,
) -> None:
    def order() -> None:
        spec = QuarantineSpec(Action.DRAIN, "gpu", "xid:79", requester="sickbay")
        with closing(LocalStore(database, wall=lambda: NIGHT)) as store:
            store.create_quarantine("node-1", spec, finalizer=False)
            orders_a_reboot(store, "node-1")

    def stands() -> bool:
        with closing(LocalStore(database, wall=lambda: NIGHT)) as store:
            return store.quarantine("node-1") is not None

    ask = ["release", "node-1", "--local", str(database)]
    order()
    refused = await in_process(*ask)
    assert (refused.code, refused.out) == (2, "")
    assert "an order is open requires a confirmation, and stdin is no terminal" in refused.err
    dry = await in_process(*ask, "--dry-run")
    assert (dry.code, "node-1: reboot was ordered at 2027-01-15" in dry.err) == (0, True)
    assert stands()
    ours, theirs = pty.openpty()
    for answer, code in ((b"no\n", 1), (b"yes\n", 0)):
        os.write(ours, answer)
        process = await start_on(theirs, *ask)
        _, err = await process.communicate()
        assert process.returncode == code, err
        assert b"-1-reboot).\nThe release cancels it first" in err
        assert stands() is bool(code)
    os.close(ours)
    os.close(theirs)
    order()
    done = await in_process(*ask, "--yes")
    assert (done.code, "reboot was ordered" in done.err) == (0, True)
    assert not stands()


async def test_a_name_that_nobody_has_spoken_of_is_pointed_out(database: Path) -> None:
    where = ["--local", str(database)]
    ask = ["exempt", "nod-1", "--for", "8h", "--reason", "firmware test", *where]
    unknown = "this file has no node nod-1: no action and no request"
    done = await in_process("unexempt", "nod-1", *where)
    assert (done.code, done.out) == (1, "")
    assert unknown in done.err
    done = await in_process(*ask)
    assert done.code == 0, done.err
    assert f"Note: {unknown}" in done.out
    again = await in_process(*ask)
    assert "Note" not in again.out, "it is known by now"
    ask = ["--yes", "--action", "drain", "--reason", "x", *where]
    done = await in_process("quarantine", "nod-2", *ask)
    assert (done.code, "Note: this file has no node nod-2" in done.out) == (0, True)


async def test_a_node_of_a_local_cluster_is_exempted_and_pinned_and_let_go(database: Path) -> None:
    where = ["--local", str(database)]
    done = await in_process("exempt", "node-1", "--for", "8h", "--reason", "firmware test", *where)
    assert done.code == 0, done.err
    assert f"To end the exemption: sickbay unexempt node-1 --local {database}\n" in done.out
    assert (await in_process("pin", "node-1", "--reason", "RMA 12345", *where)).code == 0
    store = LocalStore(database, wall=lambda: NIGHT)
    found = read_operator_requests(store.node("node-1").annotations)
    assert found.exempt_reason == "firmware test"
    assert found.exempt_until == pytest.approx(time.time() + 8 * 3600, abs=120)
    assert (found.pinned, found.pin_reason) == (True, "RMA 12345")
    assert "no longer exempt" in (await in_process("unexempt", "node-1", *where)).out
    assert "was not exempt" in (await in_process("unexempt", "node-1", *where)).out
    assert "no longer pinned" in (await in_process("unpin", "node-1", *where)).out
    assert read_operator_requests(store.node("node-1").annotations) == OperatorRequests()
    store.close()


@pytest.mark.parametrize(
    ("ask", "name"),
    [
        (["pin"], ""),
        (["exempt", "--for", "1h"], "../x"),
        (["quarantine", "--action", "cordon"], "node-1\n"),
        (["quarantine", "--action", "cordon"], "ALL"),
    ],
)
async def test_nothing_is_asked_of_what_can_be_no_node(
    database: Path, ask: list[str], name: str
) -> None:
    done = await in_process(*ask, "--reason", "x", "--local", str(database), "--", name)
    assert done.code == 2
    assert ("expected another node's name" if name == "ALL" else "expected a node's name") in (
        done.err
    )
    store = LocalStore(database, wall=lambda: NIGHT)
    assert (store.nodes(), store.quarantines()) == ([], [])
    store.close()


@pytest.mark.parametrize("how_long", ["8", "8 hours", "0h", "400d", "-1h", "", "1w"])
async def test_an_exemption_without_a_sensible_end_is_refused(
    database: Path, how_long: str
) -> None:
    ask = ["exempt", "node-1", f"--for={how_long}", "--reason", "x", "--local", str(database)]
    done = await in_process(*ask)
    assert done.code == 2
    assert "--for" in done.err
    assert "expected" in done.err


@pytest.mark.parametrize(
    ("given", "again"),
    [
        ([], ""),
        (["--namespace", "sickbay"], ""),
        (["--namespace", "health"], " --namespace health"),
        (
            ["--context", "prod & test", "--kubeconfig", "kc", "--namespace", "health"],
            " --kubeconfig kc --context 'prod & test' --namespace health",
        ),
        (["--local", "a b.db", "--context", "prod"], " --local 'a b.db'"),
    ],
)
def test_what_takes_a_wish_back_is_told_with_what_leads_to_the_same_cluster(
    given: list[str], again: str
) -> None:
    assert flags_of(parser_for("sickbay", {}).parse_args(["resume", *given])) == again


async def test_without_a_kubeconfig_it_says_so(tmp_path: Path) -> None:
    done = await sickbay("resume", HOME=str(tmp_path), KUBECONFIG="")
    assert done.code == 2
    assert f"no kubeconfig at {tmp_path}/.kube/config" in done.err
    assert "expected --kubeconfig FILE, or without Kubernetes --url to read" in done.err
    assert "Traceback" not in done.err


@pytest.mark.parametrize("more", [[], ["--context", "nosuch"]])
async def test_a_kubeconfig_that_is_none_is_the_command_lines_mistake(
    tmp_path: Path, more: list[str]
) -> None:
    file = text_file(tmp_path / "config", "root:x:0:0:root:/root:/bin/bash\n")
    done = await in_process("resume", "--kubeconfig", str(file), *more)
    assert done.code == 2
    assert f"sickbay: the kubeconfig {file} can't be used: it has no keys; expected cl" in done.err
    assert "Another one: --kubeconfig FILE, --context NAME" in done.err
    assert "Traceback" not in done.err


@pytest.mark.parametrize("among", ["", "/gone:"])
async def test_an_empty_kubeconfig_is_said_to_be_empty(tmp_path: Path, among: str) -> None:
    file = tmp_path / "config"
    file.touch()
    done = await sickbay("resume", KUBECONFIG=f"{among}{file}")
    assert done.code == 2
    assert f"the kubeconfig {file} can't be used: it is empty; expected clusters" in done.err
    assert "Traceback" not in done.err


async def test_another_database_is_not_taken_for_the_local_cluster(tmp_path: Path) -> None:
    other = tmp_path / "history.db"
    with closing(sqlite3.connect(other)) as database:
        database.execute("CREATE TABLE transitions (at REAL)")
    noise = tmp_path / "noise.db"
    noise.write_bytes(b"no database" * 100)
    empty = tmp_path / "empty.db"
    empty.touch()
    cut = tmp_path / "cut.db"
    cut.write_bytes(local_database(tmp_path)[:20_000])
    for path in (other, noise, empty, cut):
        before = path.read_bytes()
        for dry in ((), ("--dry-run",)):
            done = await in_process("stop", "x", "--local", str(path), *dry)
            assert done.code == 2
            assert f"{path} is no local cluster's database" in done.err
        assert path.read_bytes() == before
    for path, why in ((tmp_path, "a directory"), (noise / "x", "Not a directory")):
        done = await in_process("stop", "x", "--local", str(path))
        assert (done.code, why in done.err) == (2, True)


def local_database(folder: Path) -> bytes:
    """The content of a local cluster's file with some nodes."""
    path = folder / "whole.db"
    with closing(LocalStore(path, wall=time.time)) as store:
        for number in range(300):
            store.write_node(store.node(f"node-{number}"))
    return path.read_bytes()


async def test_a_damaged_local_database_is_refused_with_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "garbled.db"
    whole = local_database(tmp_path)
    path.write_bytes(whole[:4096] + bytes(len(whole) - 4096))
    done = await in_process("exempt", "n1", "--for", "1h", "--reason", "x", "--local", str(path))
    assert done.code == 2
    assert f"--local: {path}" in done.err
    assert "stop the aggregator and move it away" in done.err


async def test_a_local_database_of_another_user_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    local_database(tmp_path)
    path = tmp_path / "whole.db"
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may read any file
    done = await in_process("stop", "x", "--local", str(path))
    assert done.code == 2
    assert f"this user may not read and write {path}; expected the aggregator's" in done.err


def names_in(folder: Path) -> list[str]:
    return [one.name for one in folder.iterdir()]


async def test_a_dry_run_needs_the_right_to_read_the_local_database_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    local_database(tmp_path)
    path = tmp_path / "whole.db"
    monkeypatch.setattr(os, "access", lambda _, mode: not mode & os.W_OK)
    where = ["--local", str(path), "--dry-run"]
    done = await in_process("stop", "the power fails", *where)
    assert (done.code, done.err) == (0, "")
    assert "DRY RUN, nothing is written" in done.out
    assert names_in(tmp_path) == ["whole.db"], "SQLite makes no file either"
    monkeypatch.setattr(os, "access", lambda *_: False)
    done = await in_process("stop", "the power fails", *where)
    assert done.code == 2
    assert f"this user may not read {path}; expected the aggregator's" in done.err
