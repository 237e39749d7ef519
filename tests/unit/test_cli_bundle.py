"""The archive of `sickbay bundle`: its content, and that no secret gets into it."""

import datetime as dt
import io
import json
import tarfile
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aggregator.cli import bundle
from aggregator.cli.secret_patterns import scrubbed, without_secrets
from tests.support.present import present

AT = dt.datetime(2026, 3, 14, 3, 14, 7, tzinfo=dt.UTC)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("proxy http://me:hunter2@proxy:3128/ refused", "proxy http://***@proxy:3128/ refused"),
        ("https://tok3n@host/x", "https://***@host/x"),
        ("Authorization: Bearer abcdefghijkl.x-y_z", "Authorization: Bearer ***"),
        ("password=hunter2; next", "password=***; next"),
        ('{"api_key": "sk-12345"}', '{"api_key": ***}'),
        ("DB_PASSWORD='p w'", "DB_PASSWORD=***"),
        ("client-secret: s3cr3t", "client-secret: ***"),
        (f"eyJhbGciOiJSUzI1NiJ9.{'a' * 20}.sig-1", "***"),
        ("AKIAABCDEFGHIJKLMNOP used", "*** used"),
        ("xoxb-123456789012-abc", "***"),
        (
            "-----BEGIN RSA PRIVATE KEY-----\nMIIE\nabc\n-----END RSA PRIVATE KEY----- after",
            "*** after",
        ),
        ("-----BEGIN PRIVATE KEY-----\nMIIE cut", "***"),
    ],
)
def test_what_looks_like_a_secret_is_taken_out(text: str, shown: str) -> None:
    assert without_secrets(text) == shown


@pytest.mark.parametrize(
    "text",
    [
        "NVRM: Xid (PCI:0000:3b:00): 79, pid=3172, name=python, GPU has fallen off the bus.",
        "pids of the tokenizer job are 12 and 13",
        "basic health: the secretariat is in hall 2, bearer plate 3",
        "https://example.org/path?x=1 and mail@example.org",
        "GPU-4397df1a-c34e-5935-8979-0242ac130003 on 0000:3b:00.0",
    ],
)
def test_plain_messages_stay_as_they_are(text: str) -> None:
    assert without_secrets(text) == text


def test_a_long_line_of_one_word_is_searched_in_moments() -> None:
    began = time.process_time()
    for word in ("a" * 20_000, "token" * 800):
        assert without_secrets(word) == word
    assert time.process_time() - began < 5.0


@pytest.mark.slow
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=10,
    )
)
def test_scrubbed_values_keep_their_shape(value: Any) -> None:
    found = json.loads(json.dumps(scrubbed(value)))
    assert isinstance(found, type(value))


def node(**changes: Any) -> dict[str, Any]:
    return {
        "node": "node-1",
        "agent_version": "0.1.0",
        "boot_id": "b-1",
        "traits": {"driver": "580.95"},
        "faults": [
            {
                "first_at": "2026-03-14T03:00:00Z",
                "last_at": "2026-03-14T03:10:00Z",
                "count": 2,
                "code": "xid:79",
                "component": "GPU-1",
                "boot_id": "b-1",
                "message": "NVRM: Xid\x1b[2J\n79, password=hunter2",
            }
        ],
        **changes,
    }


def test_kernel_lines_are_plain_lines() -> None:
    [line] = bundle.kernel_lines(node()).splitlines()
    assert line.startswith("2026-03-14T03:00:00Z to 2026-03-14T03:10:00Z 2x xid:79 GPU-1")
    assert line.endswith("NVRM: Xid?[2J 79, password=***")


def test_objects_of_the_cluster_lose_what_others_wrote_into_them() -> None:
    found = bundle.node_object(
        {
            "metadata": {
                "name": "node-1",
                "managedFields": [{"x": 1}],
                "annotations": {"sickbay.dev/pin": "RMA", "vendor/credentials": "s3cr3t"},
            },
            "status": {"images": [{"names": ["registry/x"]}], "nodeInfo": {"kernelVersion": "6"}},
        }
    )
    assert found["metadata"] == {"name": "node-1", "annotations": {"sickbay.dev/pin": "RMA"}}
    assert found["status"] == {"nodeInfo": {"kernelVersion": "6"}}
    made = bundle.versions(node(), {"version": "0.1.0", "mode": "drain"}, found, "0.2.0")
    assert (made["sickbay"], made["aggregator"], made["traits"]) == (
        "0.2.0",
        "0.1.0",
        {"driver": "580.95"},
    )
    assert made["kubernetes"] == {"kernelVersion": "6"}


class Pages:
    """A source with so many transitions, which two of a millisecond share."""

    def __init__(self, count: int) -> None:
        self.items = [
            {"at": f"2026-03-14T03:14:{5_000_000 - index // 2}Z", "summary": str(index)}
            for index in range(count)
        ]

    def get(self, *_: str, until: str, limit: int, **__: object) -> dict[str, Any]:
        begin = next((i for i, one in enumerate(self.items) if one["at"] <= until), 0)
        begin = begin if until else 0
        return {"items": self.items[begin : begin + limit]}


@pytest.mark.parametrize("count", [0, 1, 999, 1000, 1001, 2500])
def test_the_whole_history_is_read_once(count: int) -> None:
    source: Any = Pages(count)
    found = bundle.history(source, "node-1")
    assert [one["summary"] for one in found] == [str(index) for index in range(count)]


@pytest.mark.slow
def test_a_history_without_an_end_is_cut() -> None:
    source: Any = Pages(9000)
    assert len(bundle.history(source, "node-1")) == 5000


def test_the_archive_has_each_file_once_in_one_folder_and_says_what_is_missing() -> None:
    content = bundle.Content(missing=["events: 403\x1b[2J"])
    content.add("node.json", node(why="\u202eevil", token="token: abcdef"))
    text = bundle.readme("node-1", content, AT, "0.1.0")
    assert "Missing:\n  events: 403?[2J" in text
    packed = bundle.archive("sickbay-node-1", [("README.txt", text), *content.files.items()], AT)
    with tarfile.open(fileobj=io.BytesIO(packed)) as tar:
        assert tar.getnames() == ["sickbay-node-1/README.txt", "sickbay-node-1/node.json"]
        entry = present(tar.extractfile("sickbay-node-1/node.json"))
        body = entry.read()
        assert tar.getmember("sickbay-node-1/node.json").mtime == int(AT.timestamp())
    assert b"hunter2" not in body
    assert json.loads(body)["why"] == "\u202eevil"
    assert body.isascii()
