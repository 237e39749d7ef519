"""What gRPC's C core is told. It reads its environment once, when it is loaded."""

from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager

ENVIRONMENT: Mapping[str, str] = {
    # It would write lines of its own to stderr: of a port that is taken, which is said by us, and
    # of each agent that asks TLS for a name that we don't have, which the agent says.
    "GRPC_VERBOSITY": "NONE",
    # What comes in on a connection is read by the thread that waits for all of them, and not handed
    # from thread to thread: a third of what a heartbeat costs us (docs/decisions/0010).
    "GRPC_EXPERIMENTS": "-event_engine_listener",
}


@contextmanager
def told(environ: MutableMapping[str, str]) -> Iterator[None]:
    """GRPC is imported within. What ``environ`` says already stands; what is added goes again.

    What is started later, a site's commands above all, may use gRPC itself.
    """
    ours = {name: value for name, value in ENVIRONMENT.items() if name not in environ}
    environ.update(ours)
    try:
        yield
    finally:
        for name in ours:
            del environ[name]
