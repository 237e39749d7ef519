"""The answers that every replica gives about itself: probes and metrics."""

from collections.abc import Callable, Iterable, Sequence

from aiohttp import web
from prometheus_client import CollectorRegistry, GCCollector, ProcessCollector
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from aggregator.access.identity import AccessRefused


class _Scrape(Collector):
    def __init__(self, collect: Callable[[], Iterable[Metric]]) -> None:
        self._collect = collect

    def collect(self) -> Iterable[Metric]:
        return self._collect()


def registry_of(collect: Callable[[], Iterable[Metric]]) -> CollectorRegistry:
    """A registry with these metrics, and those of the process."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Scrape(collect))
    ProcessCollector(registry=registry)
    GCCollector(registry=registry)
    return registry


def metrics(request: web.Request, collect: Callable[[], Iterable[Metric]]) -> web.Response:
    """/metrics, built at the moment of the request."""
    encode, kind = choose_encoder(request.headers.get("Accept", ""))
    response = web.Response(body=encode(registry_of(collect)), headers={"Content-Type": kind})
    response.enable_compression()
    return response


def refusal(refused: AccessRefused) -> web.Response:
    """The answer of a path for machines to a request that lacks its right."""
    text = f"{refused.error}\n  {refused.hint}\n"
    return mark_refusal(web.Response(text=text, status=refused.status))


def mark_refusal(response: web.Response) -> web.Response:
    """With the headers of its status."""
    if response.status == 401:
        response.headers["WWW-Authenticate"] = 'Bearer realm="sickbay"'
    if response.status == 503:
        response.headers["Retry-After"] = "5"
    return response


async def healthz(_: web.Request) -> web.Response:
    return web.Response(text="ok\n")


def readyz(problems: Sequence[str]) -> web.Response:
    if not problems:
        return web.Response(text="ready\n")
    lines = "".join(f"- {problem}\n" for problem in problems)
    return web.Response(text=f"not ready:\n{lines}", status=503)
