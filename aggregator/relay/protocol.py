"""The rules of both ends of a relay: version, bounds, and how long either waits for the other."""

from collections.abc import Iterator

from aggregator.ingest.listener import MAX_MESSAGE
from sickbay.v1 import relay_pb2 as pb

#: Of the messages in relay.proto, and of what they mean. Replicas with another one do not speak
#: with each other; a replica of another version with the same one does.
PROTOCOL = 1
#: Seconds. Either side sends a batch so often, even if it is empty.
BATCH_EVERY = 1.0
#: Looks at whether the other side has sent one, and how many looks in a row without one end the
#: relay: 4 s. Looks are counted and not seconds: while our own event loop stands still, no look is
#: made, and a message that has arrived meanwhile is read before the next one.
POLL_EVERY = 0.5
SILENT_POLLS = 8
#: The first message of the other side must come within so many seconds.
ANSWERED_WITHIN = 5.0

#: Bytes of one batch: fewer than the listener takes, so that a batch of small frames never delays
#: a heartbeat for long.
BATCH_BYTES = 256 * 1024
#: A larger message of an agent is sent in parts of so many bytes.
PART_BYTES = 128 * 1024
#: The most that may wait in one direction of one relay, and of it for one agent, in bytes.
RELAY_BYTES = 32 * 1024 * 1024
AGENT_BYTES = MAX_MESSAGE + 1024 * 1024
#: Messages of one agent that may wait for its stream at the controller.
AGENT_MESSAGES = 256
#: A frame costs so many bytes beside its content.
FRAME_BYTES = 64


def message_frames(stream: int, message: bytes) -> Iterator[pb.AgentFrame]:
    """An agent's message as frames: several for a large one."""
    start = 0
    while len(message) - start > PART_BYTES:
        yield pb.AgentFrame(stream=stream, part=message[start : start + PART_BYTES])
        start += PART_BYTES
    yield pb.AgentFrame(stream=stream, message=message[start:] if start else message)


class Liveness:
    """Whether the other side sends. A pause of our own process is not held against it."""

    def __init__(self) -> None:
        self._silent_polls = 0

    def on_message(self) -> None:
        self._silent_polls = 0

    def is_alive(self) -> bool:
        """Called each `POLL_EVERY`. Returns whether the other side still counts as alive."""
        self._silent_polls += 1
        return self._silent_polls < SILENT_POLLS
