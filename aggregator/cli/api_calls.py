"""Methods that have the API server do something, of classes without an event loop."""

from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from aggregator.cluster.kubernetes.transport import Transport

P = ParamSpec("P")
T = TypeVar("T")


class ApiCalls(Protocol):
    """Has the API server do ``work``, from a thread without an event loop. See `KubeSession`."""

    def call(self, work: Callable[[Transport], Awaitable[T]]) -> T: ...


CallerT = TypeVar("CallerT", bound=ApiCalls)


def with_api(
    work: Callable[Concatenate[CallerT, Transport, P], Awaitable[T]],
) -> Callable[Concatenate[CallerT, P], T]:
    """The method, whose first argument is the API, as one that its `ApiCalls.call` waits for."""

    @wraps(work)
    def call(self: CallerT, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self.call(lambda api: work(self, api, *args, **kwargs))

    return call
