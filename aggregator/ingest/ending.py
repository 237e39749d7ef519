"""How a stream's talk ends: what is counted, and what the agent is told."""

import enum

import grpc

from aggregator.ingest.identity import IdentityError
from aggregator.ingest.wire import WireError

Code = grpc.StatusCode


class Why(enum.StrEnum):
    """Why a stream ended, beside the refusals of identity; what is counted."""

    LEFT = "left"  # the agent closed it, or its connection broke: grpc tells both alike
    MALFORMED = "malformed"
    NO_HELLO = "no_hello"
    NO_SNAPSHOT = "no_snapshot"
    SILENT = "silent"
    SUPERSEDED = "superseded"
    SLOW_READER = "slow_reader"
    UNSAFE = "unsafe"  # what it brought could not be made durable
    REDIRECTED = "redirected"
    CLOSED = "closed"  # the controller asked for it, or the aggregator stops
    INTERNAL = "internal"


class Ending(Exception):  # not an error: how a stream's talk ends
    """``code`` and ``text`` go to the agent, ``why`` is counted."""

    def __init__(self, why: str, code: grpc.StatusCode, text: str) -> None:
        super().__init__(text)
        self.why = why
        self.code = code


def gone() -> Ending:
    return Ending(Why.LEFT, Code.OK, "the agent closed the stream or its connection broke")


def malformed(kind: str, error: WireError) -> Ending:
    return Ending(Why.MALFORMED, Code.INVALID_ARGUMENT, f"{kind}.{error}")


def refused(error: IdentityError) -> Ending:
    if error.passing:
        code = Code.UNAVAILABLE
    elif error.proven:
        code = Code.PERMISSION_DENIED
    else:
        code = Code.UNAUTHENTICATED
    return Ending(error.refusal, code, str(error))
