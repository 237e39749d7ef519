"""A pod's own credentials: the API server's address, its CA, and a token that is renewed."""

import time
from collections.abc import Callable, Mapping
from pathlib import Path

#: The kubelet renews the token's file long before its end; it is read again this often (seconds).
REREAD = 60.0


class ServiceAccount:
    """The counterpart of `KubeconfigSettings` for a pod.

    ``folder`` has "token" and "ca.crt". ``now`` is monotonic seconds. Raises OSError or ValueError
    where something is missing.
    """

    tls_server_name = proxy = cert_file = key_file = None
    verify_ssl = True

    def __init__(
        self, folder: Path, environ: Mapping[str, str], *, now: Callable[[], float] = time.monotonic
    ) -> None:
        host = environ.get("KUBERNETES_SERVICE_HOST", "")
        port = environ.get("KUBERNETES_SERVICE_PORT", "")
        if not host or not port:
            raise ValueError("KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT must both be set")
        self.host = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
        self.ssl_ca_cert = str(folder / "ca.crt")
        self._file = folder / "token"
        self._now = now
        self._read()

    async def authorization(self) -> str:
        """The Authorization header. Raises OSError or ValueError."""
        if self._now() - self._read_at >= REREAD:
            self._read()
        return self._header

    def _read(self) -> None:
        token = self._file.read_text("utf-8").strip()
        if not token:
            raise ValueError(f"{self._file} is empty")
        self._header, self._read_at = f"Bearer {token}", self._now()
