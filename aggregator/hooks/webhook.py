"""A hook that calls an HTTP endpoint of the site, signed like an alert (docs/alerts.md).

200: done. 202: not yet, send it again (Retry-After is honoured). Any other status: it has failed,
and is tried again too. `X-Sickbay-Delivery` is the same for every attempt about one quarantine.
"""

import json
import ssl
from collections.abc import Callable, Mapping
from pathlib import Path

import aiohttp

from aggregator.alerts.http_channel import SecretError, read_secret, words_of
from aggregator.alerts.webhook import headers, retry_after
from aggregator.cluster.port import ClusterError, Guard
from aggregator.quarantine.drain.hooks import HookAnswer, HookResult
from aggregator.runtime.guarded_connector import guarded_post
from aggregator.runtime.text import truncate
from aggregator.runtime.worker_thread import WorkerThread

BODY_VERSION = 1
#: Seconds for one attempt: a hook that needs longer answers 202.
_ATTEMPT = 30.0
_MOST_ANSWER = 2000
#: Characters of a value: a person may have pasted a log as the reason.
_LONGEST = 4000


class WebhookHook:
    """Implements `Hook`. ``wall`` is wall clock seconds, for the signature."""

    def __init__(self, url: str, secret_file: Path, *, wall: Callable[[], float]) -> None:
        self._url = url
        self._secret_file = secret_file
        self._wall = wall

    async def call(self, values: Mapping[str, str], *, limit: float, guard: Guard) -> HookAnswer:
        timeout = aiohttp.ClientTimeout(total=min(limit, _ATTEMPT))
        body = {name: truncate(text, _LONGEST) for name, text in values.items()}
        content = json.dumps({"version": BODY_VERSION, "source": "sickbay", **body}).encode()
        ident = f"{values['quarantine']}-{values['hook']}"
        thread = WorkerThread(
            "hook-secret"
        )  # a file system that hangs must not stop the event loop
        try:
            now = self._wall()
            secret = await thread.run(read_secret, self._secret_file)
            proof = headers(ident, content, secret, now)
            async with guarded_post(
                self._url, check=guard, timeout=timeout, data=content, headers=proof
            ) as response:
                reply = await response.content.read(_MOST_ANSWER)
            return _answer_of(response.status, reply, response.headers, now)
        except SecretError as error:
            return HookAnswer(HookResult.FAILED, str(error))
        except ClusterError as error:
            return HookAnswer(HookResult.LATER, str(error))
        except TimeoutError:
            return HookAnswer(HookResult.FAILED, f"no answer within {timeout.total:g} s")
        except (aiohttp.ClientError, OSError, ssl.SSLError, ValueError) as error:
            return HookAnswer(HookResult.FAILED, words_of(error))
        finally:
            thread.stop()


def _answer_of(status: int, content: bytes, given: Mapping[str, str], now: float) -> HookAnswer:
    text = content.decode(errors="replace").strip()
    again = retry_after(given.get("Retry-After", ""), now)
    if status == 200:
        return HookAnswer(HookResult.DONE, text)
    if status == 202:
        return HookAnswer(HookResult.LATER, text, again)
    return HookAnswer(HookResult.FAILED, f"HTTP {status}: {text}".rstrip(": "), again)
