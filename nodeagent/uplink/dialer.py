"""How an aggregator is reached: TLS with the site's CA, a token, or plaintext on this machine.

Each file that has changed is read again at each connection, so that a rotated CA or token is used.
"""

import contextlib
import functools
import ipaddress
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import grpc
import grpc.aio

from nodeagent.config.settings import UplinkConfig
from nodeagent.dataclass import dataclass

_HOST_PORT = re.compile(r"(?P<host>\[[0-9a-fA-F:.%]+\]|[A-Za-z0-9._-]+):(?P<port>[0-9]{1,5})")
_LAST_PORT = 65_535

#: Heartbeats are unacknowledged bytes when the other end is gone, and then TCP gives up after
#: keepalive_timeout_ms. Pings are for the proxies in between: rarely, since 10,000 agents send
#: them.
OPTIONS: Mapping[str, int | str] = {
    # Take the first of a name's addresses that answers, in an order of our own: without the shuffle
    # all 10,000 agents go to the first. gRPC tries the next one after 250 ms and takes the first
    # that answers (Happy Eyeballs). So a dead address costs no more than that and `_LATE_NS`. The
    # name is resolved again for each attempt, since each has a channel of its own.
    "grpc.service_config": (
        '{"loadBalancingConfig": [{"pick_first": {"shuffleAddressList": true}}]}'
    ),
    # No pings to measure the bandwidth: each wakes every thread of gRPC some twenty times, and our
    # messages are small (measured: a third of an idle agent's CPU).
    "grpc.http2.bdp_probe": 0,
    "grpc.keepalive_time_ms": 60_000,
    "grpc.keepalive_timeout_ms": 15_000,
    "grpc.keepalive_permit_without_calls": 0,
    # We reconnect ourselves, with jitter; a retry or a pooled connection would be a second opinion.
    "grpc.enable_retries": 0,
    "grpc.use_local_subchannel_pool": 1,
    # `reconnect.py` decides how long connecting may take, because it knows why it takes long; gRPC
    # would give up after 20 s, and 10,000 handshakes may be before ours.
    "grpc.min_reconnect_backoff_ms": 600_000,
    # The cluster's own traffic goes through no proxy that the environment happens to name.
    "grpc.enable_http_proxy": 0,
    "grpc.max_receive_message_length": 1024 * 1024,
}

#: Nanoseconds by which the timers of gRPC's threads may be late, so that one wake-up serves many.
#: Each thread that was busy wakes up after 15 ms, and then some twenty times in ten seconds, for
#: work that no event brings: more than half of an idle agent's CPU (measured).
_LATE_NS = 500_000_000
#: Of this process's first thread, the event loop's. Threads inherit it from the one that starts
#: them; 0 restores its own (prctl(2), PR_SET_TIMERSLACK).
_SLACK = Path("/proc/self/timerslack_ns")

#: BoringSSL's errors, and their meaning for the person who must fix them. TLS is the one place
#: where a node's wall clock counts.
_MEANT = {
    "certificate is not yet valid": "is this node's clock behind?",
    "certificate has expired": "the aggregator's must be renewed, or this node's clock is ahead",
}


class DialError(Exception):
    """The agent cannot connect as configured; the text states what is wrong and what to do."""


@dataclass(slots=True)
class TokenFile:
    """The bearer token, read again when its file changes. Without a path there is none."""

    path: Path | None
    _stamp: tuple[int, int] = (0, 0)

    def read(self) -> str:
        """The token as it is now; empty without a path. Raises DialError."""
        if self.path is None:
            return ""
        try:
            stamp = self.read_if_changed()
            token = self.path.read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise DialError(f"the token {self.path} cannot be read: {error}") from error
        if not token or not token.isprintable():
            raise DialError(f"the token {self.path} is empty or holds more than a token")
        self._stamp = stamp  # of a token that was read: a file that can't be is tried again
        return token

    def renewed(self) -> str:
        """The token if its file has changed since it was read; else empty. Raises DialError."""
        if self.path is None:
            return ""
        try:
            changed = self.read_if_changed() != self._stamp
        except OSError as error:
            raise DialError(f"the token {self.path} cannot be read: {error}") from error
        return self.read() if changed else ""

    def read_if_changed(self) -> tuple[int, int]:
        assert self.path is not None
        found = self.path.stat()
        return found.st_mtime_ns, found.st_ino


class Dialer:
    """Opens channels as ``[aggregator]`` configures. ``options`` are gRPC's, over this module's
    own.
    """

    def __init__(
        self, config: UplinkConfig, options: Mapping[str, int | str] | None = None
    ) -> None:
        self.token = TokenFile(config.token_file)
        self._config = config
        self._options = {**OPTIONS, **(options or {})}

    def check(self, address: str, *, named_by_aggregator: bool = False) -> None:
        """Raise DialError when ``address`` is none, or may not be used as configured.

        ``named_by_aggregator``: it is no socket, for an aggregator knows none of this machine.
        """
        if address.startswith("unix:") and not named_by_aggregator:
            return
        match = _HOST_PORT.fullmatch(address)
        if match is None or int(match["port"]) > _LAST_PORT:
            expected = "host:port" if named_by_aggregator else "host:port or unix:/path"
            raise DialError(f"{address[:300]!r} is no address: expected {expected}")
        if self._config.ca_file or self._config.insecure_plaintext or _is_loopback(match["host"]):
            return
        raise DialError(
            f"{address} would be reached in plaintext: set aggregator.ca_file for TLS "
            "(or, on a network that you trust, aggregator.insecure_plaintext = true)"
        )

    def open(self, address: str, *, named_by_aggregator: bool = False) -> grpc.aio.Channel:
        """A channel to ``address``; it connects with its first call. Raises as ``check`` does."""
        self.check(address, named_by_aggregator=named_by_aggregator)
        with _late_timers():  # gRPC starts its threads with the first channel
            return self._channel(address)

    def _channel(self, address: str) -> grpc.aio.Channel:
        options: list[tuple[str, str | int]] = list(self._options.items())
        if self._config.ca_file is None:
            return grpc.aio.insecure_channel(address, options=options)
        if self._config.server_name:
            options.append(("grpc.ssl_target_name_override", self._config.server_name))
        files = (self._config.ca_file, self._config.key_file, self._config.cert_file)
        credentials = _credentials(files, tuple(_stamp(file) for file in files))
        return grpc.aio.secure_channel(address, credentials, options=options)

    def metadata(self) -> grpc.aio.Metadata:
        """The metadata of each call. Raises DialError when the token cannot be read."""
        token = self.token.read()
        if not token:
            return grpc.aio.Metadata()
        return grpc.aio.Metadata(("authorization", f"Bearer {token}"))


@contextlib.contextmanager
def _late_timers() -> Iterator[None]:
    """Threads that start within it have late timers. Events wake them up at once, as any thread."""
    _set_slack(_LATE_NS)
    try:
        yield
    finally:
        _set_slack(0)


def _set_slack(nanoseconds: int) -> None:
    with contextlib.suppress(OSError):  # a kernel or container without the file: more wake-ups
        _SLACK.write_text(str(nanoseconds), encoding="ascii")


def explained(trouble: str) -> str:
    """The error of gRPC for a failed connection, with advice on what to check if there is any."""
    meant = next((what for words, what in _MEANT.items() if words in trouble), "")
    return f"{trouble} ({meant})" if meant else trouble


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


@functools.lru_cache(maxsize=1)
def _credentials(
    files: tuple[Path | None, ...], stamps: tuple[tuple[int, ...], ...]
) -> grpc.ChannelCredentials:
    """Of CA, key and certificate, which are as they were at ``stamps``.

    Kept: to read the CA takes as long as a handshake, and simulated nodes share it.
    """
    del stamps
    return grpc.ssl_channel_credentials(*[_content(file) if file else None for file in files])


def _stamp(file: Path | None) -> tuple[int, ...]:
    """Another one when the file has changed."""
    try:
        found = file.stat() if file else None
    except OSError:
        return (0,)
    return () if found is None else (found.st_mtime_ns, found.st_ino, found.st_size)


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise DialError(f"{path} cannot be read: {error.strerror}") from error
