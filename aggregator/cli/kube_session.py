"""The API server as a person's kubeconfig reaches it, for commands without an event loop.

One session reads the credentials once (an exec plugin may require a second factor from the person).
Its loop carries port-forwards while the command itself waits for an answer.
"""

import asyncio
import contextlib
import random
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from aggregator.cli.errors import CommandFailed, UsageError
from aggregator.cluster.kubernetes.credentials import CredentialSources
from aggregator.cluster.kubernetes.limiter import Limiter
from aggregator.cluster.kubernetes.transport import Transport
from aggregator.cluster.port import ClusterError, Refused

T = TypeVar("T")

#: Seconds for an answer of the API server as a whole.
_DEADLINE = 20.0
#: Seconds for the end of what is under way.
_END = 5.0


class KubeSession:
    """Requests under one reading of the credentials, which the first request reads.

    Raises UsageError where ``sources`` lead to no cluster.
    """

    def __init__(self, sources: CredentialSources) -> None:
        if not sources.in_cluster and not sources.has_file:
            raise UsageError(
                f"there is no kubeconfig at {sources.path}, and this is no pod with a service "
                "account; expected --kubeconfig FILE, or without Kubernetes --url to read and "
                "--local DATABASE to act"
            )
        self._sources = sources
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._api: Transport | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def call(self, work: Callable[[Transport], Awaitable[T]]) -> T:
        """The result of ``work``. Raises CommandFailed for what the API server refuses, UsageError
        for credentials that can't be used.
        """
        try:
            return self.attempt(work)
        except ClusterError as error:
            raise CommandFailed(str(error)) from error

    def attempt(self, work: Callable[[Transport], Awaitable[T]]) -> T:
        """The same, except that errors of the cluster keep their type (ClusterError)."""

        async def run() -> T:
            return await work(await self._opened())

        return self._run(run())

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Have ``work`` run next to the command, until it ends or the session closes. Called from
        within the session's loop.
        """
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def close(self) -> None:
        """End what is under way, and the connections."""
        if not self._thread.is_alive():
            self._loop.close()
            return
        with contextlib.suppress(TimeoutError):
            asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(_END)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_END)
        if not self._thread.is_alive():
            self._loop.close()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        if not self._thread.is_alive():
            self._thread.start()
        under_way = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return under_way.result()
        except BaseException:
            under_way.cancel()
            raise

    async def _opened(self) -> Transport:
        if self._api is None:
            limiter = Limiter(qps=10, burst=20, clock=time.monotonic)
            rng = random.Random()  # noqa: S311 - jitter, no secret
            api = Transport(
                self._sources, limiter, clock=time.monotonic, rng=rng, deadline=_DEADLINE
            )
            try:
                await api.open()
            except Refused as error:  # named by the command line or the environment
                raise UsageError(
                    f"{error}\n  Another one: --kubeconfig FILE, --context NAME"
                ) from error
            self._api = api
        return self._api

    async def _end(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._api is not None:
            await self._api.close()
