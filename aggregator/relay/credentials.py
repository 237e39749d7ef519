"""A gateway's proof of identity to the controller, and the encryption of its stream."""

from pathlib import Path

import grpc
from attrs import define

from aggregator.configfile.values import is_loopback
from aggregator.runtime.secret_file import SecretError, read_token

MAX_TOKEN = 16_384

_OPTIONS: list[tuple[str, int]] = [
    ("grpc.use_local_subchannel_pool", 1),  # a connection of our own, that ends with its channel
    # Not by a proxy that the environment names for other requests, as with the agents' streams.
    ("grpc.enable_http_proxy", 0),
    ("grpc.max_receive_message_length", 4 * 1024 * 1024),
    # A message comes each second. After some without one a ping shows whether the process is
    # reached: its gRPC answers, however busy the rest is.
    ("grpc.keepalive_time_ms", 4_000),
    ("grpc.keepalive_timeout_ms", 6_000),
]


class RelayConfigError(Exception):
    """A credential is missing; the text names it, and the key of the configuration."""


@define(eq=False, repr=False, slots=False, kw_only=True)
class ReplicaCredentials:
    """Read again for each stream.

    ``ca_file`` verifies the other replicas' certificates; without it the stream is plaintext, on
    loopback alone. ``pair`` (certificate, key) is presented to a listener that requires a
    certificate of its clients.
    """

    _token_file: Path
    _ca_file: Path | None
    _pair: tuple[Path, Path] | None = None

    def token(self) -> str:
        """Raises `RelayConfigError`."""
        try:
            return read_token(self._token_file, "replicas.token_file", most=MAX_TOKEN)
        except SecretError as error:
            raise RelayConfigError(str(error)) from None

    def channel(self, address: str) -> grpc.aio.Channel:
        """Raises `RelayConfigError`."""
        if self._ca_file is None:
            if not is_loopback(address):
                raise RelayConfigError(
                    f"{address} is not on this machine, and there is no replicas.ca_file: replicas "
                    "connect to each other without TLS on one machine only"
                )
            return grpc.aio.insecure_channel(address, options=_OPTIONS)
        certificate = key = None
        if self._pair is not None:
            certificate = _read(self._pair[0], "listen.tls.cert_file")
            key = _read(self._pair[1], "listen.tls.key_file")
        credentials = grpc.ssl_channel_credentials(
            _read(self._ca_file, "replicas.ca_file"), key, certificate
        )
        return grpc.aio.secure_channel(address, credentials, options=_OPTIONS)


def _read(file: Path, key: str) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise RelayConfigError(f"{key}: {file} can't be read: {error.strerror}") from None
