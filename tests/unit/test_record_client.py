"""The admission record's object between its reads and writes."""

import json
from typing import Any, cast

import msgspec

from aggregator.cluster.kubernetes.record_client import RecordClient
from aggregator.cluster.kubernetes.transport import METADATA, Transport
from aggregator.cluster.port import UNGUARDED


class Server:
    """One ConfigMap, which answers a PUT in the form that it accepts."""

    def __init__(self) -> None:
        self.version = 1
        self.stored: dict[str, Any] = {
            "metadata": {"name": "sickbay-record", "uid": "u", "labels": {"of": "Ops"}},
            "data": {"note": "ask Ops", "record": "as read"},
        }
        self.asked: list[str] = []
        self.answered: list[int] = []

    async def get(self, *_: object) -> bytes:
        return await self.request("GET")

    async def request(self, method: str, *_: object, **options: Any) -> bytes:
        self.asked.append(method)
        if method == "PUT":
            changed = msgspec.json.decode(options["body"])
            assert changed["metadata"].pop("resourceVersion") == str(self.version)
            self.stored, self.version = changed, self.version + 1
        found = {**self.stored, "metadata": {**self.stored["metadata"]}}
        found["metadata"]["resourceVersion"] = str(self.version)
        if options.get("accept") == METADATA:
            del found["data"]
        answer = json.dumps(found).encode()
        self.answered.append(len(answer))
        return answer


async def test_each_write_is_one_request_whose_answer_lacks_the_text_and_others_keys_stay() -> None:
    server = Server()
    client = RecordClient(cast("Transport", server), "sickbay")
    record = await client.read_record()
    assert record.text == "as read"
    for text in ("a" * 5000, "b" * 5000):
        record = await client.write_record(text, record.version, guard=UNGUARDED)
        assert (record.text, record.version, record.uid) == (text, str(server.version), "u")
        assert server.stored["data"] == {"note": "ask Ops", "record": text}
        assert server.stored["metadata"]["labels"] == {"of": "Ops"}
    assert server.asked == ["GET", "PUT", "PUT"]
    assert max(server.answered) < 500
