"""Where reading commands read: an address, or the aggregator of the kubeconfig's cluster.

`--url` and SICKBAY_URL win. Without them a kubeconfig leads to the aggregator's pod through the
API server; while no aggregator answers there, the cluster's own objects are read. Without a
kubeconfig it is the aggregator of this machine.
"""

import argparse
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aggregator.cli.client import Client, Route
from aggregator.cli.errors import CommandFailed, Unreached, UsageError
from sickbay.regular_file import is_there, read_file_or_pipe

if TYPE_CHECKING:
    from aggregator.cli.cluster_reader import ClusterReader
    from aggregator.cli.kube_session import KubeSession

DEFAULT_URL = "http://127.0.0.1:8080"
#: Seconds for the mode, which is a warning's and holds no command up.
_MODE_TIMEOUT = 3.0


class Source:
    """The requests of a reading command, to the aggregator that ``client`` leads to."""

    def __init__(self, client: Callable[[], Client]) -> None:
        self._client = client

    def get(self, *path: str, **query: object) -> Any:
        """As `Client.get`. Raises Unreached where the aggregator does not answer."""
        return self._client().get(*path, **query)

    def events(self, node: str = "") -> Iterator[tuple[str, Any]]:
        """As `Client.events`."""
        return self._client().events(node)

    def reader(self) -> "ClusterReader | None":
        """The cluster's own objects, or None where no kubeconfig led here."""
        return None

    def require_node(self, node: str) -> None:
        """Raise CommandFailed for a name that no node has."""
        self.get("nodes", node)

    def quarantine(self, node: str) -> Any:
        """The node's quarantine, as in the API's answer about it, or None. A cluster is
        read itself, as its objects are never older than the aggregator's view.
        """
        return self.get("nodes", node)["quarantine"]

    def cluster(self, error: Unreached) -> "ClusterReader":
        """The cluster's own knowledge; with an answer, a line on stderr states that, and why.
        Raises ``error`` where it can't be read.
        """
        raise error


class KubeSource(Source):
    """The aggregator of a cluster, through its API server."""

    def __init__(
        self, session: "KubeSession", namespace: str, *, ca_file: str, timeout: float
    ) -> None:
        from aggregator.cli.page_tokens import tokens
        from aggregator.cli.tunnel import Tunnel

        self._tokens = tokens(session, namespace)
        self._session = session
        self._namespace = namespace
        self._ca_file = ca_file
        self._timeout = timeout
        self._tunnel = Tunnel(session, namespace)
        super().__init__(cache(self._open))

    def require_node(self, node: str) -> None:
        self.reader().node(node)

    def quarantine(self, node: str) -> Any:
        return self.reader().quarantine(node)

    def cluster(self, error: Unreached) -> "ClusterReader":
        return self.reader(str(error).partition("\n")[0])

    def reader(self, trouble: str = "") -> "ClusterReader":
        from aggregator.cli.cluster_reader import ClusterReader

        return ClusterReader(
            self._session, self._namespace, trouble=trouble, pods=self._tunnel.pods
        )

    def _open(self) -> Client:
        address = self._tunnel.address()
        secure = address.startswith("https") and not self._ca_file
        context = self._tunnel.authorities() if secure else None
        name = f"{self._tunnel.pods[0].name} in namespace {self._namespace}"
        route = Route(name, self._tunnel, context, self._tokens)
        return Client(address, ca_file=self._ca_file, timeout=self._timeout, route=route)


@contextmanager
def open_session(options: argparse.Namespace) -> Iterator["KubeSession"]:
    """The API server of the options' kubeconfig. Imported here: it costs a second of imports."""
    from aggregator.cli.kube_session import KubeSession
    from aggregator.cluster.kubernetes.credentials import CredentialSources

    session = KubeSession(CredentialSources(options.kubeconfig, options.context, os.environ))
    try:
        yield session
    finally:
        session.close()


@contextmanager
def open_source(options: argparse.Namespace, timeout: float = 10.0) -> Iterator[Source]:
    """The source of the options: --url wins. Raises UsageError for options that lead nowhere."""
    if not options.url and has_kubeconfig(options, os.environ):
        if options.token_file:
            raise UsageError("--token-file has no use with a kubeconfig; expected --url with it")
        with open_session(options) as session:
            yield KubeSource(session, options.namespace, ca_file=options.ca_file, timeout=timeout)
        return
    url = options.url or DEFAULT_URL
    token = read_token(options, os.environ)
    client = Client(url, ca_file=options.ca_file, token=token, timeout=timeout)
    yield Source(lambda: client)


def mode_of(options: argparse.Namespace, node: str) -> str:
    """The mode that caps actions on the node, for a command that acts; empty where no aggregator
    answers.
    """
    url, ca_file = (os.environ.get(name, "") for name in ("SICKBAY_URL", "SICKBAY_CA_FILE"))
    if options.local is not None:
        url = url or DEFAULT_URL  # a kubeconfig would lead to another cluster than the file's
    reading = argparse.Namespace(
        url=url,
        ca_file=ca_file,
        token_file="",
        kubeconfig=options.kubeconfig,
        context=options.context,
        namespace=options.namespace,
    )
    try:
        with open_source(reading, _MODE_TIMEOUT) as source:
            return str(source.get("nodes", node)["mode"])
    except (CommandFailed, UsageError):
        return ""


def read_token(options: argparse.Namespace, environ: Mapping[str, str]) -> str:
    """The token of --token-file, else of SICKBAY_TOKEN; empty without both. Raises UsageError."""
    token = environ.get("SICKBAY_TOKEN", "")
    if options.token_file:
        try:
            token = read_file_or_pipe(Path(options.token_file))
        except (OSError, UnicodeDecodeError) as error:
            why = getattr(error, "strerror", None) or "it is no text"
            text = f"{options.token_file} can't be read: {why}; expected a token"
            raise UsageError(f"--token-file: {text}") from error
    token = token.strip()
    if not token.isascii() or not token.isprintable() or (options.token_file and not token):
        raise UsageError("--token-file or SICKBAY_TOKEN: expected one token on one line")
    return token


def has_kubeconfig(options: argparse.Namespace, environ: Mapping[str, str]) -> bool:
    """Whether a file leads to a cluster. A pod's service account does not: in the aggregator's own
    pod the aggregator is on loopback.
    """
    if options.kubeconfig or options.context or environ.get("KUBECONFIG"):
        return True
    home = environ.get("HOME", "")
    return bool(home) and is_there(Path(home) / ".kube" / "config")


def require_kubeconfig(options: argparse.Namespace, what: str) -> None:
    """Raise UsageError where ``what`` needs a cluster and no kubeconfig leads to one."""
    if not has_kubeconfig(options, os.environ):
        raise UsageError(f"{what} needs a kubeconfig; expected --kubeconfig FILE")
