"""The page at 10,000 nodes in Chromium, and the cost of its changes. Run by `make bench-page`.

A real server on loopback, with a fleet of which some per cent are in trouble. BENCH_NODES sets the
nodes, BENCH_TRIALS the changes. Bytes are those of bodies as the network carries them, compressed.
"""

import asyncio
import contextlib
import re
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import aiohttp
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Browser, Page, async_playwright, expect

from aggregator.cluster.port import Phase
from aggregator.events import EventKind, Transition
from aggregator.quarantine.state.fleet import FleetState
from tests.bench import alerts, small
from tests.bench.figures import table, write
from tests.bench.small import exit_code, small_or
from tests.support.chromium import ARGUMENTS, CHROMIUM
from tests.support.waiting import until
from tests.web.support import (
    Hands,
    Served,
    big_fleet,
    incident_of,
    quarantine_of,
    running_clocks,
    serving,
)

#: Key, what it is, unit, bound, and whether more is better.
ROWS: list[tuple[str, str, str, float, bool]] = [
    ("payload_kib", "all that a first visit loads", "KiB", 300, False),
    ("first_paint_ms", "first contentful paint, median of five", "ms", 1000, False),
    ("scroll_fps", "frames a second while the page scrolls", "", 55, True),
    ("update_bytes_per_change", "bytes that a change sends to an open page", "", 500, False),
    ("stream_clients", "open event streams that all receive a change", "", 500, True),
    ("stream_last_ms", "until the last of them has heard", "ms", 0, False),
    ("alerts_lost", "alerts that a failing receiver never got, of 10,000", "", 0, False),
    ("alert_messages_rack", "messages to a chat when a rack of 64 dies", "", 2, False),
    ("series", "time series of /metrics", "", 2000, False),
    ("axe_violations", "violations that axe finds on three pages", "", 0, False),
]
#: Visits whose first paint is timed.
_PAINTS = small_or(1, 5)
_STREAMS = small_or(5, 500)
_ALERTS = small_or(20, 10_000)
_SCROLL_MS = small_or("100", "2000")
#: The fleet, the nodes, and one node in quarantine.
_EVALUATED = small_or(("/",), ("/", "/nodes", "/nodes/gpu-000-03"))
_SCROLL = """() => new Promise((done) => {
  let frames = 0;
  const began = performance.now();
  const most = document.documentElement.scrollHeight - innerHeight;
  const step = () => {
    const ms = performance.now() - began;
    frames += 1;
    scrollTo(0, (Math.sin(ms / 300) + 1) / 2 * most);
    ms < MOST ? requestAnimationFrame(step) : done(frames / (ms / 1000));
  };
  requestAnimationFrame(step);
})"""


@dataclass
class Tab:
    """A page, and the bytes of all bodies that it has received."""

    page: Page
    received: int = 0


@contextlib.asynccontextmanager
async def opened(browser: Browser, url: str) -> AsyncIterator[Tab]:
    """A tab of its own, with nothing cached, once the page is live and its map is drawn."""
    context = await browser.new_context(viewport={"width": 1440, "height": 900})
    tab = Tab(await context.new_page())
    session = await context.new_cdp_session(tab.page)
    await session.send("Network.enable")

    def count(event: dict[str, Any]) -> None:
        tab.received += event["encodedDataLength"]

    session.on("Network.dataReceived", count)
    await tab.page.goto(url)
    await expect(tab.page.locator("#live")).to_have_text("live")
    await expect(tab.page.locator("#map canvas")).to_be_visible()
    await tab.page.wait_for_load_state("load")
    await settled(tab)
    yield tab
    await context.close()


async def settled(tab: Tab) -> None:
    """No byte has come for longer than the page pauses between two requests."""
    before = -1
    while before != tab.received:
        before = tab.received
        await asyncio.sleep(1.2)


async def first_paint_ms(browser: Browser, url: str) -> float:
    async with opened(browser, url) as tab:
        found = await tab.page.evaluate(
            "() => performance.getEntriesByName('first-contentful-paint')[0].startTime"
        )
        return float(found)


async def update_bytes(tab: Tab, served: Served, fleet: FleetState, hands: Hands, n: int) -> float:
    """Bytes a change: nodes fall ill, are tainted, and drain, one change at a time."""
    names = [name for name, one in fleet.node_summaries.items() if not one.decision.incidents]
    before, now = tab.received, time.monotonic()
    for number in range(n):
        node_summary, wall = fleet.node_summaries[names[number // 2]], hands.wall
        if number % 2 == 0:
            incident_of(node_summary, now, ago=1.0)
            kind, text = EventKind.INCIDENT_OPENED, "xid:79 on GPU-5d0a9c1e: drain"
        else:
            quarantine_of(node_summary, wall, phase=Phase.CORDONED, pods=6)
            kind, text = EventKind.CORDONED, "tainted gpu"
        summary = f"{node_summary.node}: {text} ({number})"
        served.feed.record_event(Transition(wall, kind, node_summary.node, summary))
        await expect(tab.page.locator("#lately")).to_contain_text(f"({number})", timeout=30_000)
        await asyncio.sleep(0.5)
    await settled(tab)
    return (tab.received - before) / n


async def listened(url: str, served: Served, fleet: FleetState) -> tuple[int, float]:
    """How many streams hear of one change, and the milliseconds until the last has."""
    heard: dict[int, float] = {}
    opened, began = 0, float("inf")

    async def listen(session: aiohttp.ClientSession, number: int) -> None:
        nonlocal opened
        async with session.get(f"{url}/api/v1/stream?brief=1") as response:
            opened += response.status == 200
            async for line in response.content:
                if line.startswith(b"event: changed") and time.monotonic() > began:
                    heard[number] = time.monotonic()
                    return

    timeout, connector = aiohttp.ClientTimeout(total=120), aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        tasks = [asyncio.create_task(listen(session, number)) for number in range(_STREAMS)]
        await until(lambda: opened + sum(task.done() for task in tasks) >= _STREAMS)
        await asyncio.sleep(3)  # a new stream may be told of the state at its begin
        began = time.monotonic()
        told = next(one for one in fleet.node_summaries.values() if one.agent.attached)
        told.agent.attached = False
        served.feed.record_event(Transition(1.0, EventKind.AGENT_SILENT, told.node, "silent"))
        await asyncio.wait(tasks, timeout=30)
        for task in tasks:
            task.cancel()
    last = max(heard.values(), default=began)
    return len(heard), (last - began) * 1000


async def violations(browser: Browser, url: str) -> int:
    """The findings of axe on these pages."""
    found = 0
    for path in _EVALUATED:
        page = await browser.new_page()
        await page.goto(url + path)
        results = await Axe().run(page)
        for one in results.response["violations"]:
            print(f"axe: {path}: {one['id']}: {one['help']}", file=sys.stderr)
        found += results.violations_count
        await page.close()
    return found


async def measure(nodes: int, changes: int) -> dict[str, float | int | str]:
    hands = Hands(now=time.monotonic())
    fleet = big_fleet(hands, nodes)
    figures: dict[str, float | int | str] = {}
    async with (
        serving(fleet, running_clocks()) as served,
        async_playwright() as playwright,
    ):
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        paints = [await first_paint_ms(browser, served.url) for _ in range(_PAINTS)]
        figures["first_paint_ms"] = round(median(paints))
        async with opened(browser, served.url) as tab:
            figures["payload_kib"] = round(tab.received / 1024, 1)
            figures["scroll_fps"] = round(
                float(await tab.page.evaluate(_SCROLL.replace("MOST", _SCROLL_MS))), 1
            )
            sent = await update_bytes(tab, served, fleet, hands, changes)
            figures["update_bytes_per_change"] = round(sent)
        figures["axe_violations"] = await violations(browser, served.url)
        await browser.close()
        heard, last = await listened(served.url, served, fleet)
        figures["stream_clients"], figures["stream_last_ms"] = heard, round(last)
        text = await served.text("/metrics")
        figures["series"] = len(re.findall(r"^[a-z]", text, re.MULTILINE))
    with tempfile.TemporaryDirectory() as folder:
        figures["alerts_lost"] = await alerts.lost(Path(folder), _ALERTS)
        figures["alert_messages_rack"] = await alerts.rack_messages(Path(folder))
    return figures | {"nodes": nodes, "changes": changes}


def main() -> int:
    """0 when every figure is within its bound."""
    nodes = small.number("BENCH_NODES", 10_000, 200)
    figures = asyncio.run(measure(nodes, small.number("BENCH_TRIALS", 40, 2)))
    path = write("page", figures)
    rows, failed = [], 0
    for key, what, unit, bound, more in ROWS:
        value = float(figures[key])
        wanted = f"{'at least ' if more else ''}{bound:g} {unit}".strip()
        bounded = key != "stream_last_ms"
        failed += bounded and (value < bound if more else value > bound)
        rows.append((f"{what} ({key})", f"{value:g} {unit}".strip(), wanted if bounded else "-"))
    print(table(f"bench-page: {path}", rows))
    return exit_code(failed=bool(failed))


if __name__ == "__main__":
    sys.exit(main())
