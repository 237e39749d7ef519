"""Where the API server is and how we prove who we are: kubeconfig, exec plugin, or in a pod."""

import asyncio
import logging
import re
import ssl
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from aggregator.cluster.kubernetes.kubeconfig_check import (
    KubeconfigError,
    choose,
    files_in,
    is_address,
)
from aggregator.cluster.kubernetes.kubeconfig_reader import KubeconfigSettings
from aggregator.cluster.kubernetes.service_account import ServiceAccount
from aggregator.cluster.port import Refused, Unreachable

_LOG = logging.getLogger(__name__)

#: A plugin's token is checked this often; it is renewed 5 minutes before it expires.
_RENEWAL_S = 60.0
_CONTENT = re.compile(r"\{.*\}", re.DOTALL)


@dataclass(frozen=True, slots=True)
class CredentialSources:
    """Where credentials are looked for.

    An empty ``kubeconfig`` means: the pod's own service account, else $KUBECONFIG, else
    ~/.kube/config. An empty ``context`` is the file's current one.
    """

    kubeconfig: str
    context: str
    environ: Mapping[str, str]
    service_account: Path = Path("/var/run/secrets/kubernetes.io/serviceaccount")

    @property
    def in_cluster(self) -> bool:
        """Whether the pod's service account is used."""
        if self.kubeconfig or not self.environ.get("KUBERNETES_SERVICE_HOST"):
            return False
        return (self.service_account / "token").exists()

    @property
    def path(self) -> str:
        """The kubeconfig, or several with ':' between them."""
        home = Path(self.environ.get("HOME", "~")).expanduser()
        return (
            self.kubeconfig or self.environ.get("KUBECONFIG") or (home / ".kube/config").as_posix()
        )

    @property
    def has_file(self) -> bool:
        """Whether any of the kubeconfigs is there."""
        return bool(files_in(self.path))

    def check(self) -> None:
        """Raise Refused where the kubeconfig that applies can't be used. Runs no plugin."""
        if not self.in_cluster and self.has_file:
            try:
                choose(self.path, self.context)
            except KubeconfigError as error:
                raise Refused(str(error)) from error


class ApiCredentials:
    """One reading of the credentials. Read anew (`load`) when the server no longer takes them."""

    def __init__(self, configuration: KubeconfigSettings | ServiceAccount) -> None:
        self._configuration = configuration
        self.url: str = configuration.host.rstrip("/")
        self.server_hostname: str | None = configuration.tls_server_name
        self.proxy: str | None = configuration.proxy or _proxy_of_environment(self.url)
        self.tls = _tls(configuration) if self.url.startswith("https") else None
        certificate, key = configuration.cert_file, configuration.key_file
        #: The files of our client certificate and its key, where there is one.
        self.client_pair: tuple[str, str] | None = (
            (certificate, key) if certificate and key else None
        )

    async def authorization(self) -> str | None:
        """The Authorization header, None where a client certificate authenticates us.

        In a pod the token's file is read again every minute. Raises Unreachable if the file can't
        be read, or does not hold a token.
        """
        try:
            value = await self._configuration.authorization()
        except _CONFIG_ERRORS as error:
            raise Unreachable(f"our token can't be read: {_words(error)}") from error
        if value is None:
            return None
        value = value.strip()  # strip the file's newline, which no HTTP header may hold
        if not value.isprintable():
            raise Unreachable("our token has a line break in it; expected a token on one line")
        return value

    @property
    def expires(self) -> bool:
        """Whether an exec plugin gave a token that `keep_fresh` has to renew."""
        return isinstance(self._configuration, KubeconfigSettings) and self._configuration.expires

    async def keep_fresh(self) -> None:
        """Run the exec plugin again ahead of expiry, so that no request waits for it. For ever."""
        assert isinstance(self._configuration, KubeconfigSettings)
        while True:
            await asyncio.sleep(_RENEWAL_S)
            try:
                await self._configuration.renew()
            except _CONFIG_ERRORS as error:
                _LOG.warning("the kubeconfig's exec plugin failed; trying again: %s", _words(error))


async def load(sources: CredentialSources) -> ApiCredentials:
    """Read the credentials. Raises Refused with the file that is wrong, and how."""
    if sources.in_cluster:
        folder = sources.service_account
        try:
            return ApiCredentials(ServiceAccount(folder, sources.environ))
        except (OSError, ValueError) as error:
            raise Refused(f"the service account in {folder} can't be used: {error}") from error
    if not sources.has_file:
        raise Refused(
            f"there is no kubeconfig at {sources.path}, and this is no pod with a service account:"
            " set cluster.kubeconfig, or cluster.kind to local"
        )
    try:
        configuration = KubeconfigSettings(sources.path, sources.context)
        await configuration.authenticate()
        return ApiCredentials(configuration)
    except KubeconfigError as error:
        raise Refused(_words(error)) from error
    except _CONFIG_ERRORS as error:
        raise Refused(f"the kubeconfig {sources.path} can't be used: {_words(error)}") from error


def _words(error: object) -> str:
    """A plugin's error text may quote its answer, secrets included."""
    return _CONTENT.sub("{...}", str(error))


#: The errors of an invalid kubeconfig or plugin.
_CONFIG_ERRORS = (KubeconfigError, OSError, ValueError)


def _tls(configuration: KubeconfigSettings | ServiceAccount) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=configuration.ssl_ca_cert)
    # As Go's clients do: the CAs of older clusters lack extensions that strict mode requires.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if configuration.cert_file:
        context.load_cert_chain(configuration.cert_file, keyfile=configuration.key_file)
    if not configuration.verify_ssl:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _proxy_of_environment(url: str) -> str | None:
    """The proxy by HTTPS_PROXY and NO_PROXY. Read once, as it costs 50 us a request.

    Raises Refused, without quoting the URL: a proxy's URL may hold a password.
    """
    parts = urlsplit(url)
    proxy = urllib.request.getproxies().get(parts.scheme)
    if not proxy or urllib.request.proxy_bypass(parts.hostname or ""):
        return None
    if "://" not in proxy:
        proxy = f"http://{proxy}"  # as curl and Go's clients take it
    if not is_address(proxy):
        name = f"{parts.scheme.upper()}_PROXY"
        text = f"the environment's {name} can't be used; expected http://HOST:PORT (or https)"
        raise Refused(text)
    return proxy
