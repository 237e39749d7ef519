"""Settings of gRPC's C core, which reads its environment once, when it is loaded."""

from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager

ENVIRONMENT: Mapping[str, str] = {
    # It would write lines of its own to stderr: about a port that is taken, which we report, and
    # about each agent whose TLS requests a name that we don't have, which the agent reports.
    "GRPC_VERBOSITY": "NONE",
    # Data on a connection is read by the thread that waits for all connections, and not handed from
    # thread to thread: a third of the cost of a heartbeat (docs/decisions/0010).
    "GRPC_EXPERIMENTS": "-event_engine_listener",
}


@contextmanager
def grpc_environment(environ: MutableMapping[str, str]) -> Iterator[None]:
    """GRPC is imported within. Variables in ``environ`` stay; the added ones are removed again.

    Processes started later, a site's commands above all, may use gRPC themselves.
    """
    ours = {name: value for name, value in ENVIRONMENT.items() if name not in environ}
    environ.update(ours)
    try:
        yield
    finally:
        for name in ours:
            del environ[name]
