"""Whether the files of receivers hold what they should: checked once, before the start."""

from collections.abc import Iterator
from pathlib import Path

from aggregator.alerts.http_channel import HttpOptions, read_url, tls_context
from aggregator.alerts.receivers.apprise import AppriseOptions, problem
from aggregator.alerts.receivers.email import EmailOptions, tls_files
from aggregator.alerts.settings import AlertSettings, Key
from aggregator.runtime.secret_file import SecretError, read_secret, read_token


def unusable_files(settings: AlertSettings) -> Iterator[tuple[Key, str]]:
    """The keys below ``alerts`` of files that exist and can't be used, and the reason."""
    for number, receiver in enumerate(settings.receivers):
        for kind in receiver.kinds:
            options = getattr(receiver, kind)
            key: Key = ("receivers", number, kind)
            if isinstance(options, AppriseOptions):
                yield from _apprise(key, options)
                continue
            url_file = getattr(options, "url_file", None)
            if isinstance(url_file, Path):
                try:
                    read_url(url_file)
                except SecretError as error:
                    yield (*key, "url_file"), str(error)
            if isinstance(options, EmailOptions):
                yield from _tls(key, tls_files(options))
            else:
                yield from _http((*key, "http"), options.http)


def _apprise(key: Key, options: AppriseOptions) -> Iterator[tuple[Key, str]]:
    try:
        text = problem(read_secret(options.url_file, "url_file").decode("utf-8", "replace"))
    except SecretError as error:
        text = str(error)
    if text:
        yield (*key, "url_file"), text


def _http(key: Key, options: HttpOptions) -> Iterator[tuple[Key, str]]:
    if options.bearer_token_file is not None:
        try:
            read_token(options.bearer_token_file)
        except SecretError as error:
            yield (*key, "bearer_token_file"), str(error)
    yield from _tls(key, options)


def _tls(key: Key, options: HttpOptions) -> Iterator[tuple[Key, str]]:
    if options.ca_file is None and options.cert_file is None:
        return
    try:
        tls_context(options)
    except SecretError as error:
        yield key, str(error)
