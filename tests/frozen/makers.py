"""The frozen files of the present code, each as text by its name."""

import dataclasses
import enum
import json
import re
import sqlite3
import types
import typing
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import yaml
from google.protobuf import json_format
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from aggregator.alerts.outbox import AlertOutbox, BatchWait
from aggregator.alerts.store import FileStore
from aggregator.cluster.kubernetes.quarantine_codec import encode_spec, encode_status
from aggregator.cluster.local.store import LocalStore
from aggregator.cluster.port import (
    Action,
    Phase,
    QuarantineSpec,
    QuarantineStatus,
    Taint,
)
from aggregator.config.settings import Config
from aggregator.events import EventKind
from aggregator.history.database import Database
from aggregator.history.row_codec import to_row
from aggregator.history.tables import evidence
from nodeagent.config.settings import keys as agent_keys
from nodeagent.evidence.state import dump
from release.reference import commands, configuration
from sickbay.v1 import sickbay_pb2 as pb
from tests.agent.test_docs_agent import AGENT, sections
from tests.agent.test_docs_agent import rows as table_rows
from tests.agent.test_store import full_state
from tests.aggregator.config_files import keys_of
from tests.aggregator.test_alert_outbox_groups import CHAT, item
from tests.aggregator.test_alert_outbox_groups import NOW as ALERTED
from tests.aggregator.test_alert_outbox_groups import happened as alerted
from tests.support.histories import happened
from tests.support.yaml_documents import read_yaml
from tests.unit.test_public_names import SECTIONS, names, rows

ROOT = Path(__file__).parents[2]
AT = 1_800_000_000.0


def files(folder: Path) -> dict[str, str]:
    """All of them. ``folder``: an empty one for databases."""
    return {
        "wire.json": as_json(wire()),
        "quarantines.json": as_json(quarantines()),
        "history.sql": sql(folder / "history.db", fill_history),
        "outbox.sql": sql(folder / "outbox.db", fill_outbox),
        "cluster.sql": sql(folder / "cluster.db", fill_cluster),
        "state.json": as_json(dump(full_state(), 1000.0)),
        "aggregator.yaml": yaml.safe_dump(aggregator_defaults()),
        "agent.toml": agent_defaults(),
        "public-names.txt": "\n".join(sorted(set(public_names()))) + "\n",
    }


def as_json(content: object) -> str:
    return json.dumps(content, indent=1, sort_keys=True) + "\n"


# -- messages --------------------------------------------------------------------------


def wire() -> dict[str, dict[str, Any]]:
    """A message of each kind of the agents' contract: its bytes, and its fields."""
    found = {}
    for kind in (pb.AgentMessage, pb.AggregatorMessage):
        for field in kind.DESCRIPTOR.oneofs_by_name["body"].fields:
            message = kind()
            fill(getattr(message, field.name))
            found[f"{kind.DESCRIPTOR.name}.{field.name}"] = {
                "bytes": message.SerializeToString(deterministic=True).hex(),
                "fields": fields(message),
            }
    return found


def fields(message: Message) -> dict[str, Any]:
    return json_format.MessageToDict(message, preserving_proto_field_name=True)


def fill(message: Message) -> None:
    """A value in each field, which differs from that of its neighbours."""
    for field in message.DESCRIPTOR.fields:
        is_map = field.message_type is not None and field.message_type.GetOptions().map_entry
        if is_map:
            getattr(message, field.name)["key"] = field.name
        elif field.message_type is not None:
            below = getattr(message, field.name)
            fill(below.add() if field.is_repeated else below)
        elif field.is_repeated:
            getattr(message, field.name).append(_value(field))
        else:
            setattr(message, field.name, _value(field))


def _value(field: Any) -> Any:
    if field.enum_type is not None:
        return field.enum_type.values[-1].number
    return {
        FieldDescriptor.CPPTYPE_STRING: field.name,
        FieldDescriptor.CPPTYPE_BOOL: True,
        FieldDescriptor.CPPTYPE_DOUBLE: field.number + 0.5,
    }.get(field.cpp_type, 100 + field.number)


# -- the Quarantine --------------------------------------------------------------------


def quarantines() -> list[dict[str, Any]]:
    """One of each phase, as the API server stores it: without what is null."""
    found = []
    for phase in Phase:
        spec = dataclasses.replace(filled(QuarantineSpec), action=Action.DRAIN)
        status = dataclasses.replace(filled(QuarantineStatus), phase=phase)
        found.append(
            {
                "metadata": {"name": f"node-{phase.value.lower()}", "uid": "u"},
                "spec": bare(msgspec.to_builtins(encode_spec(spec))),
                "status": bare(msgspec.to_builtins(encode_status(status))),
            }
        )
    return found


def bare(value: Any) -> Any:
    """Without null values, which a merge patch removes."""
    if isinstance(value, dict):
        return {key: bare(one) for key, one in value.items() if one is not None}
    return [bare(one) for one in value] if isinstance(value, list) else value


def filled(kind: Any) -> Any:
    """The dataclass with a value in each field."""
    hints = typing.get_type_hints(kind)
    return kind(**{one.name: _of(hints[one.name], one.name) for one in dataclasses.fields(kind)})


def _of(hint: Any, name: str) -> Any:
    if typing.get_origin(hint) is tuple:
        return (_of(typing.get_args(hint)[0], name),)
    if typing.get_origin(hint) in {types.UnionType, typing.Union}:
        return _of(typing.get_args(hint)[0], name)
    if dataclasses.is_dataclass(hint):
        return filled(hint)
    if issubclass(hint, enum.Enum):
        return list(hint)[-1]
    return {str: name, bool: True, int: 3, float: AT}[hint]


# -- databases -------------------------------------------------------------------------


def sql(path: Path, write: Callable[[Path], None]) -> str:
    """The file that ``write`` makes, as SQL text, with the marks of its format."""
    write(path)
    with closing(sqlite3.connect(path)) as db, db:
        marks = [
            f"PRAGMA {name}={db.execute(f'PRAGMA {name}').fetchone()[0]};"
            for name in ("application_id", "user_version")
        ]
        lines = [*marks, *db.iterdump()]
    db.close()
    return "\n".join(lines) + "\n"


def restored(text: str, path: Path) -> Path:
    """The file of such a text."""
    with closing(sqlite3.connect(path)) as db, db:
        db.executescript(text)
    db.close()
    return path


def fill_history(path: Path) -> None:
    database = Database(f"sqlite:///{path}")
    database.write(
        [
            to_row(number, happened(AT + number, "n1", kind), "replica-0")
            for number, kind in enumerate(EventKind, 1)
        ]
    )
    database.write([{"id": 1, "at": AT, "node": "n1", "kind": "base", "body": {}}], evidence)
    database.close()


def fill_outbox(path: Path) -> None:
    """An alert that waits, an open delivery, and a dead letter."""
    outbox = AlertOutbox(FileStore(path))
    wait = BatchWait(10.0, 60.0)
    outbox.accept([item(alerted("n1"))], ALERTED)
    letter = outbox.next(CHAT, ALERTED + 20, wait)
    assert letter is not None
    assert not isinstance(letter, float)
    outbox.dead_letter(letter, "HTTP 400", ALERTED + 21)
    outbox.accept([item(alerted("n2"))], ALERTED + 100)
    assert outbox.next(CHAT, ALERTED + 200, wait) is not None
    outbox.accept([item(alerted("n3"))], ALERTED + 201)
    outbox.close()


def fill_cluster(path: Path) -> None:
    store = LocalStore(path, wall=lambda: AT)
    made = store.create_quarantine("n1", filled(QuarantineSpec), finalizer=True)
    store.write_quarantine(dataclasses.replace(made, status=filled(QuarantineStatus)))
    node = store.node("n1")
    store.write_node(
        dataclasses.replace(
            node,
            unschedulable=True,
            taints=(Taint("sickbay.dev/quarantine", "NoSchedule", "gpu"),),
            labels={"sickbay.dev/quarantined": "gpu"},
            annotations={"sickbay.dev/codes": "xid:79"},
        )
    )
    store.set_drained_for("n1", made.uid)
    store.write_record("{}", store.record().version)
    store.set_stop("an outage")
    store.close()


# -- configuration and names -----------------------------------------------------------


def aggregator_defaults() -> dict[str, Any]:
    """Each key that has a default in the reference, with that default."""
    page = configuration.page()
    sections: dict[str, Any] = {"listen": {"insecure_plaintext": True}}
    for key, default in re.findall(r"^\| `([a-z_.]+)` \| `([^`]+)` \|", page, re.MULTILINE):
        *path, name = key.split(".")
        where = sections
        for part in path:
            where = where.setdefault(part, {})
        where.setdefault(name, read_yaml(default))
    return sections


def agent_defaults() -> str:
    """Each key that has a literal default in docs/agent.md and docs/checks.md, with it."""
    literal = re.compile(r'`("[^"]*"|true|false|\d+|\[.*\])`')
    tables = [("", AGENT.partition("\n## Configuration\n")[2])]
    tables += [(f"checks.{name}.", text) for name, text in sections().items()]
    lines = []
    for prefix, text in tables:
        for key, cells in table_rows(text).items():
            if value := literal.fullmatch(cells[1]):
                lines.append(f"{prefix}{key} = {value[1]}")
    return "\n".join(lines) + "\n"


def public_names() -> Iterator[str]:
    """The names that docs/public-names.md calls stable, the configuration's keys, the commands."""
    for heading in SECTIONS:
        for row in rows(heading):
            if row[-1] == "stable":
                yield from (f"{heading}: {name}" for name in names(row[0]))
    yield from (f"aggregator.yaml: {key}" for key in keys_of(Config))
    yield from (f"agent.toml: {key}" for key in agent_keys())
    section = ""
    for line in commands.page().splitlines():
        if line.startswith("##"):
            section = line.strip("# ")
        elif line.startswith("| `"):
            yield f"command: {section} {line.split('`')[1]}"
        if line.startswith("###"):
            yield f"command: {section}"
