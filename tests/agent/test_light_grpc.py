"""gRPC and the contract are imported without modules that no agent runs; all work as before."""

import subprocess
import sys

import pytest

UNUSED = (
    *("google.protobuf.internal.python_message", "google.protobuf.text_format", "pickle"),
    "typing_extensions",
)
SCRIPT = """
import sys
from nodeagent.light_grpc import import_grpc
import_grpc()
print(*[name for name in UNUSED if name in sys.modules])
from sickbay.v1 import sickbay_pb2 as pb, sickbay_pb2_grpc as rpc
import grpc.aio
message = pb.AgentMessage(hello=pb.Hello(node="n1"))
assert pb.AgentMessage.FromString(message.SerializeToString()) == message
assert "n1" in str(message) and grpc.aio.insecure_channel and rpc.AgentGatewayStub
from google.protobuf import descriptor_pool, json_format, text_format
import typing_extensions
assert text_format.MessageToString(message) == str(message)
assert json_format.MessageToDict(message) == {"hello": {"node": "n1"}}
assert typing_extensions.TypedDict.__name__ == "TypedDict"
first_use = descriptor_pool.python_message.GeneratedProtocolMessageType
assert first_use is sys.modules[UNUSED[0]].GeneratedProtocolMessageType
"""


def imported(implementation: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", f"UNUSED = {UNUSED!r}\n{SCRIPT}"],
        env={"PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": implementation},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.split()


def test_modules_that_no_agent_runs_are_imported_on_their_first_use() -> None:
    assert imported("upb") == []


@pytest.mark.filterwarnings("ignore")
def test_the_implementation_in_python_is_imported_where_there_is_none_in_c() -> None:
    assert set(imported("python")) == set(UNUSED) - {"typing_extensions"}
