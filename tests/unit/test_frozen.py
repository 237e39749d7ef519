"""The present code reads what each released version has written (tests/frozen/VERSION)."""

import json
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest
import yaml

from aggregator.alerts.message import PendingDelivery
from aggregator.alerts.outbox import AlertOutbox, BatchWait
from aggregator.alerts.store import FileStore
from aggregator.cluster.kubernetes.quarantine_codec import (
    decode_quarantine,
    encode_spec,
    encode_status,
)
from aggregator.cluster.local.store import LocalStore
from aggregator.cluster.port import Action, Phase, QuarantineSpec
from aggregator.config.settings import ConfigError
from aggregator.config.settings import load as load_aggregator
from aggregator.events import EventKind
from aggregator.history.database import Database
from aggregator.version import VERSION
from nodeagent.config.settings import load as load_agent
from nodeagent.evidence.state import restore
from sickbay.v1 import sickbay_pb2 as pb
from tests.agent.test_store import BOOT, UUIDS, full_state
from tests.aggregator.test_alert_outbox_groups import CHAT
from tests.aggregator.test_alert_outbox_groups import NOW as ALERTED
from tests.frozen import makers
from tests.frozen.__main__ import main
from tests.support.present import of_type
from tests.support.yaml_documents import read_yaml

T = TypeVar("T")
FROZEN = Path(makers.__file__).parent
RELEASES = sorted(one.parent for one in FROZEN.glob("*/wire.json"))

pytestmark = pytest.mark.slow


@pytest.fixture(params=RELEASES, ids=lambda one: one.name)
def release(request: pytest.FixtureRequest) -> Path:
    return of_type(request.param, Path)


def content(file: Path) -> Any:
    return json.loads(file.read_text())


def in_thread(ask: Callable[[], T]) -> T:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(ask).result()


def test_there_is_a_folder_of_this_version() -> None:
    assert VERSION in {one.name for one in RELEASES}


def test_each_message_has_the_fields_that_were_written(release: Path) -> None:
    for name, frozen in content(release / "wire.json").items():
        kind, _, body = name.partition(".")
        message = getattr(pb, kind).FromString(bytes.fromhex(frozen["bytes"]))
        assert message.WhichOneof("body") == body
        assert makers.fields(message) == frozen["fields"], name


def test_each_kind_of_message_is_frozen() -> None:
    frozen = content(FROZEN / VERSION / "wire.json")
    assert frozen == makers.wire(), "fields may be added: python -m tests.frozen add"


def test_each_quarantine_is_read_whole(release: Path) -> None:
    frozen = content(release / "quarantines.json")
    assert len(frozen) >= len({one["status"]["phase"] for one in frozen}) >= 5
    for one in frozen:
        found = decode_quarantine(json.dumps(one).encode())
        assert (found.problem, found.unread) == ("", "")
        encodings = {"spec": encode_spec(found.spec), "status": encode_status(found.status)}
        for part, encoded in encodings.items():
            again = makers.bare(msgspec.to_builtins(encoded))
            assert {key: again.get(key) for key in one[part]} == one[part]


def test_the_history_is_read_whole(release: Path, tmp_path: Path) -> None:
    path = makers.restored((release / "history.sql").read_text(), tmp_path / "history.db")
    database = Database(f"sqlite:///{path}")
    found = in_thread(lambda: database.recent("n1", 0.0, 1000))
    rows = in_thread(lambda: list(database.evidence()))
    in_thread(database.close)
    text = (release / "history.sql").read_text()
    assert len(found) == text.count('INSERT INTO "transitions"')
    assert {one.details["limit"] for one in found} == {"5%"}
    assert [row["kind"] for row in rows] == ["base"]


def test_the_outbox_goes_on_with_what_waited(release: Path, tmp_path: Path) -> None:
    path = makers.restored((release / "outbox.sql").read_text(), tmp_path / "outbox.db")
    outbox = AlertOutbox(FileStore(path))
    [letter] = outbox.dead_letters(9)
    assert (letter.route, letter.because) == (CHAT, "HTTP 400")
    nodes = []
    for later in (300, 600):
        delivery = outbox.next(CHAT, ALERTED + later, BatchWait(10.0, 60.0))
        assert isinstance(delivery, PendingDelivery)
        nodes += [one["node"] for one in json.loads(delivery.alerts)]
        outbox.done(delivery)
    outbox.close()
    assert nodes == ["n2", "n3"]


def test_the_local_clusters_file_is_read_whole(release: Path, tmp_path: Path) -> None:
    path = makers.restored((release / "cluster.sql").read_text(), tmp_path / "cluster.db")
    store = LocalStore(path, wall=lambda: 0.0)
    [quarantine] = store.quarantines()
    [node] = store.nodes()
    stopped, drained_for = store.stopped(), store.drained_for("n1")
    store.close()
    assert quarantine.unread == ""
    frozen = frozen_spec(release)
    spec = json.loads(msgspec.json.encode(quarantine.spec))
    assert {key: value for key, value in spec.items() if key in frozen} == frozen
    assert quarantine.status.phase in Phase
    assert (node.unschedulable, len(node.taints), node.labels) == (
        True,
        1,
        {"sickbay.dev/quarantined": "gpu"},
    )
    assert (stopped, drained_for) == ("an outage", quarantine.uid)


def frozen_spec(release: Path) -> dict[str, Any]:
    """The spec in the file's row: its first JSON object."""
    row = (release / "cluster.sql").read_text().partition('INSERT INTO "quarantines" VALUES(')[2]
    found, _ = json.JSONDecoder().raw_decode(row[row.index("{") :])
    assert isinstance(found, dict)
    return found


def test_the_agents_state_is_restored_in_its_boot(release: Path) -> None:
    state = restore(content(release / "state.json"), boot_id=BOOT, new_epoch=None)
    whole = full_state()
    assert (state.kernel_seq, state.gpus) == (12, UUIDS)
    assert state.latch.faults.keys() == whole.latch.faults.keys()
    assert state.latch.components.keys() == whole.latch.components.keys()
    assert (state.latch.last_seq, state.latch.epoch) == (whole.latch.last_seq, "epoch-0")


def test_the_aggregators_configuration_is_taken(release: Path, tmp_path: Path) -> None:
    file = tmp_path / "aggregator.yaml"
    shutil.copy(release / "aggregator.yaml", file)
    load_aggregator(file)
    data = read_yaml(file.read_text())
    file.write_text(yaml.safe_dump(data | {"former": 1}))
    with pytest.raises(ConfigError, match="former"):
        load_aggregator(file)


def test_the_agents_configuration_is_taken(release: Path) -> None:
    load_agent(release / "agent.toml", {"NODE_NAME": "node-1"}, with_checks=False)


def test_each_public_name_is_still_there(release: Path) -> None:
    frozen = (release / "public-names.txt").read_text().splitlines()
    assert len(frozen) > 500
    missing = sorted(set(frozen) - set(makers.public_names()))
    assert missing == [], "a released version promised these names"


def test_a_missing_name_is_found() -> None:
    assert f"Event kinds: {EventKind.CORDONED}" in set(makers.public_names())


def test_no_folder_is_written_twice(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["add"]) == 2
    assert "a frozen file is never changed" in capsys.readouterr().err
    assert main([]) == 2


def test_a_changed_field_is_found(tmp_path: Path) -> None:
    """The comparisons above can fail: a spec of another form is not read."""
    [one, *_] = content(FROZEN / VERSION / "quarantines.json")
    one["spec"]["action"] = "isolate"
    assert decode_quarantine(json.dumps(one).encode()).problem
    spec = replace(makers.filled(QuarantineSpec), action=Action.CORDON)
    assert makers.bare(msgspec.to_builtins(encode_spec(spec)))["action"] == "cordon"
