"""The rules of both ends of a relay: version, bounds, and how long either waits for the other."""

from collections.abc import Iterator

from aggregator.ingest.listener import MAX_MESSAGE
from sickbay.v1 import relay_pb2 as pb

#: Of the messages in relay.proto, and of what they mean. Replicas with another one do not speak
#: with each other; a replica of another version with the same one does.
PROTOCOL = 1
#: Seconds. Either side sends a batch this often, even if it is empty.
BATCH_EVERY = 1.0
#: Seconds between two polls for a batch of the other side.
POLL_EVERY = 0.5
#: Seconds without one, after which a gateway leaves a controller that is not seen to renew the
#: Lease. One that does is busy: to cut the relay would cost it a snapshot of each agent.
SILENT_FOR = 4.0
#: The last renewal of a controller that is at work was seen at most this number of seconds ago.
AT_WORK_WITHIN = 10.0
#: Seconds without one, after which the controller leaves a gateway. Agents leave a gateway that has
#: stopped a second later at the earliest, and all that time it may wake up and continue.
GATEWAY_SILENT_FOR = 16.0
#: The first message of the other side must come within this number of seconds.
ANSWERED_WITHIN = 5.0

#: Bytes of one batch: fewer than the listener takes, so that a batch of small frames never delays
#: a heartbeat for long.
BATCH_BYTES = 256 * 1024
#: A larger message of an agent is sent in parts of this number of bytes.
PART_BYTES = 128 * 1024
#: The most that may wait in one direction of one relay, and of it for one agent, in bytes.
RELAY_BYTES = 32 * 1024 * 1024
AGENT_BYTES = MAX_MESSAGE + 1024 * 1024
#: Messages of one agent that may wait for its stream at the controller.
AGENT_MESSAGES = 256
#: A frame costs this number of bytes in addition to its content.
FRAME_BYTES = 64


def message_frames(stream: int, message: bytes) -> Iterator[pb.AgentFrame]:
    """An agent's message as frames: several for a large one."""
    start = 0
    while len(message) - start > PART_BYTES:
        yield pb.AgentFrame(stream=stream, part=message[start : start + PART_BYTES])
        start += PART_BYTES
    yield pb.AgentFrame(stream=stream, message=message[start:] if start else message)


class Liveness:
    """How long the other side has sent nothing.

    Polls are counted and not seconds: while our own event loop is blocked, no poll happens, and a
    message that has arrived meanwhile is read before the next one.
    """

    def __init__(self) -> None:
        self._polls = 0

    def on_message(self) -> None:
        self._polls = 0

    def poll(self) -> None:
        """Called each `POLL_EVERY`."""
        self._polls += 1

    @property
    def silent_for(self) -> float:
        """Seconds in which our own event loop ran."""
        return self._polls * POLL_EVERY
