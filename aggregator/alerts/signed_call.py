"""A call of an HTTP endpoint of the site that acts: signed like an alert (docs/alerts.md)."""

import json
import ssl
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

import aiohttp
from attrs import define

from aggregator.alerts.http_channel import words_of
from aggregator.alerts.webhook import headers, retry_after
from aggregator.runtime.guarded_connector import guarded_post
from aggregator.runtime.secret_file import SecretError, read_secret, secret_of
from aggregator.runtime.text import truncate

BODY_VERSION = 1
#: Seconds for one call: an endpoint that needs longer answers 202.
_ATTEMPT = 30.0
_MOST_ANSWER = 2000
#: Characters of a value: a person may have pasted a log as the reason.
_LONGEST = 4000


class NoAnswerError(Exception):
    """The call has no answer. ``sent``: it may have arrived."""

    def __init__(self, text: str, *, sent: bool) -> None:
        super().__init__(text)
        self.sent = sent


@define(eq=False, repr=False, frozen=True)
class EndpointAnswer:
    """``retry_after``: seconds, where the endpoint named them."""

    status: int
    text: str
    retry_after: float | None

    @property
    def refusal(self) -> str:
        return f"HTTP {self.status}: {self.text}".rstrip(": ")


@define(eq=False, repr=False, frozen=True)
class SignedEndpoint:
    """``wall`` is wall clock seconds, for the signature."""

    _url: str
    _secret_file: Path
    _wall: Callable[[], float]

    async def call(
        self,
        ident: str,
        values: Mapping[str, str],
        more: Mapping[str, object],
        *,
        limit: float,
        check: Callable[[], Awaitable[None]],
    ) -> EndpointAnswer:
        """``ident``: the same for each attempt of one call. ``more``: of the body, in addition to
        the ``values``. Raises NoAnswerError, and what ``check`` raises.
        """
        timeout = aiohttp.ClientTimeout(total=min(limit, _ATTEMPT))
        body = {name: truncate(text, _LONGEST) for name, text in values.items()}
        document = {"version": BODY_VERSION, "source": "sickbay", **body, **more}
        content = json.dumps(document).encode()
        try:
            secret, now = await secret_of(self._secret_file, read_secret), self._wall()
            async with guarded_post(
                self._url,
                check=check,
                timeout=timeout,
                data=content,
                headers=headers(ident, content, secret, now),
            ) as response:
                reply = await response.content.read(_MOST_ANSWER)
        except SecretError as error:
            raise NoAnswerError(str(error), sent=False) from error
        except aiohttp.ClientConnectorError as error:
            raise NoAnswerError(words_of(error), sent=False) from error
        except TimeoutError as error:
            raise NoAnswerError(f"no answer within {timeout.total:g} s", sent=True) from error
        except (aiohttp.ClientError, OSError, ssl.SSLError, ValueError) as error:
            raise NoAnswerError(words_of(error), sent=True) from error
        again = retry_after(response.headers.get("Retry-After", ""), now)
        return EndpointAnswer(response.status, reply.decode(errors="replace").strip(), again)
