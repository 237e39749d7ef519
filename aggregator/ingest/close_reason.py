"""How a stream ends: the reason that is counted, and the text for the agent."""

import enum

import grpc

from aggregator.ingest.codec import InvalidMessage
from aggregator.ingest.identity import IdentityError

Code = grpc.StatusCode


class CloseReason(enum.StrEnum):
    """Why a stream ended, in addition to the refusals of identity. Each reason is counted."""

    LEFT = "left"  # the agent closed it, or its connection broke: grpc reports both alike
    MALFORMED = "malformed"
    NO_HELLO = "no_hello"
    NO_SNAPSHOT = "no_snapshot"
    SILENT = "silent"
    SUPERSEDED = "superseded"
    SLOW_READER = "slow_reader"
    TOO_MANY = "too_many"  # streams of one node, none of which has begun
    UNSAFE = "unsafe"  # its evidence could not be made durable
    CONTROLLER = "controller"  # of the gateway's call: the controller ended the agent's stream
    CLOSED = "closed"  # the controller requested it, or the aggregator stops
    INTERNAL = "internal"


class StreamClosed(Exception):  # not an error: how a stream ends
    """``code`` and ``text`` go to the agent, ``why`` is counted."""

    def __init__(self, why: str, code: grpc.StatusCode, text: str) -> None:
        super().__init__(text)
        self.why = why
        self.code = code


def gone() -> StreamClosed:
    return StreamClosed(
        CloseReason.LEFT, Code.OK, "the agent closed the stream or its connection broke"
    )


def malformed(kind: str, error: InvalidMessage) -> StreamClosed:
    return StreamClosed(CloseReason.MALFORMED, Code.INVALID_ARGUMENT, f"{kind}.{error}")


def refused(error: IdentityError) -> StreamClosed:
    if error.passing:
        code = Code.UNAVAILABLE
    elif error.proven:
        code = Code.PERMISSION_DENIED
    else:
        code = Code.UNAUTHENTICATED
    return StreamClosed(error.refusal, code, str(error))
