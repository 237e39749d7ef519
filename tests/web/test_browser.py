"""The page in Debian's Chromium: it lives without a reload, says when it is cut off, and heals."""

import json
import os
import shutil
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from itertools import combinations
from pathlib import Path

import pytest
import pytest_asyncio
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Browser, Page, Route, async_playwright, expect

from aggregator.cluster.port import Phase, RepairState
from aggregator.events import EventKind, Transition
from aggregator.runtime.interning import EMPTY
from aggregator.web.trend_recorder import TrendRecorder
from tests.support.chromium import ARGUMENTS, CHROMIUM
from tests.support.present import present
from tests.support.waiting import PATIENCE, until
from tests.unit.test_job_report import record, transition_of
from tests.web.gateways import gateway_of
from tests.web.support import (
    REPAIRS,
    Hands,
    ListHistory,
    big_fleet,
    incident_of,
    quarantine_of,
    rack_fleet,
    reboot_of,
    repaired,
    running_clocks,
    serving,
    small_fleet,
    well,
)

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="module")]

SCREENS = Path(__file__).parents[2] / "build" / "screens"


@dataclass
class Tab:
    """A page, and all of its complaints."""

    page: Page
    complaints: list[str] = field(default_factory=list)

    async def screenshot(self, name: str) -> None:
        """With SICKBAY_SCREENS set, for a person to see: each costs a second of a processor."""
        if not os.environ.get("SICKBAY_SCREENS"):
            return
        SCREENS.mkdir(parents=True, exist_ok=True)
        await self.page.screenshot(path=SCREENS / f"{name}.png", full_page=True)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def started_browser() -> AsyncIterator[Browser]:
    """One for all tests: a start takes 1.3 s of a processor, and each tab has its own context."""
    if shutil.which(CHROMIUM) is None:
        reason = f"there is no {CHROMIUM}: tests/setup-debian.sh installs it"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    expect.set_options(timeout=1000 * PATIENCE)  # else 5 s, a measurement of the machine
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        try:
            yield browser
        finally:
            await browser.close()


@pytest_asyncio.fixture(loop_scope="module")
async def browser(started_browser: Browser) -> AsyncIterator[Browser]:
    """The browser without a tab; what the test opens is closed after it."""
    yield started_browser
    for context in started_browser.contexts:
        await context.close()


async def tab(
    browser: Browser,
    url: str,
    *,
    scheme: str = "light",
    width: int = 1440,
    height: int = 900,
    zone: str = "UTC",
) -> Tab:
    context = await browser.new_context(
        timezone_id=zone,
        viewport={"width": width, "height": height},
        color_scheme="dark" if scheme == "dark" else "light",
    )
    context.set_default_timeout(1000 * PATIENCE)
    one = Tab(await context.new_page())
    one.page.on(
        "console", lambda said: one.complaints.append(said.text) if said.type != "log" else None
    )
    one.page.on("pageerror", lambda error: one.complaints.append(str(error)))
    await one.page.goto(url)
    await expect(one.page.locator("#live")).to_have_text("live")
    return one


async def until_drawn(page: Page) -> None:
    """Until the map is drawn: until then keys and the mouse do nothing on it."""
    await expect(page.locator("#map canvas[style*=height]")).to_be_visible()


def monotonic_hands() -> Hands:
    """Evidence dated by the clock that the server runs on."""
    return Hands(now=time.monotonic())


async def test_a_quarantine_appears_moves_on_and_ends_without_a_reload(browser: Browser) -> None:
    hands = monotonic_hands()
    fleet = small_fleet(hands)
    async with serving(fleet, running_clocks()) as served:
        one = await tab(browser, served.url)
        page = one.page
        await page.evaluate("window.sameDocument = true")
        await expect(page.locator("h1")).to_contain_text("2 in quarantine")
        node_summary = fleet.node_summaries["node-8"]
        incident_of(node_summary, hands.now, ago=1.0)
        quarantine_of(node_summary, hands.wall, phase=Phase.CORDONED, pods=6)
        served.feed.record_event(
            Transition(hands.wall, EventKind.CORDONED, "node-8", "node-8: tainted gpu")
        )
        row = page.locator("#cases tr", has_text="node-8")
        await expect(row).to_contain_text("Cordoned")
        await expect(page.locator("h1")).to_contain_text("3 in quarantine")
        await expect(row).to_contain_text("xid:79")
        await expect(page.locator("#lately")).to_contain_text("node-8: tainted gpu")
        await expect(page).to_have_title("3 in quarantine · sickbay")
        # Pods leave: no event reports it.
        quarantine_of(node_summary, hands.wall, phase=Phase.DRAINING, pods=3)
        await expect(row).to_contain_text("Draining")
        await expect(row.locator(".number")).to_have_text("3")
        node_summary.quarantine_view.quarantine = None
        node_summary.decision.incidents = EMPTY
        await expect(row).to_have_count(0)
        await expect(page.locator("h1")).to_contain_text("2 in quarantine")
        assert await page.evaluate("window.sameDocument") is True
        assert one.complaints == []


async def test_a_lost_connection_is_said_and_heals_by_itself(
    browser: Browser, address: str
) -> None:
    fleet = small_fleet(monotonic_hands())
    async with serving(fleet, running_clocks(), address=address) as served:
        one = await tab(browser, served.url)
        await expect(one.page.locator("#lost")).to_be_hidden()
    await expect(one.page.locator("#lost")).to_contain_text("Connection lost since 03:1")
    await expect(one.page.locator("#live")).to_have_text("connection lost")
    await one.screenshot("connection-lost")
    fleet.node_summaries["node-8"].agent.attached = False
    async with serving(fleet, running_clocks(), address=address) as served:
        await expect(one.page.locator("#live")).to_have_text("live")
        await expect(one.page.locator("#lost")).to_be_hidden()
        await expect(one.page.locator("#silent")).to_contain_text("node-8")
    # The browser reported only the network's own errors.
    assert all("ERR_" in text for text in one.complaints), one.complaints


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_every_page_works_in_light_and_dark(browser: Browser, scheme: str) -> None:
    async with serving(small_fleet(monotonic_hands()), running_clocks()) as served:
        assert await TrendRecorder(served.web._queries).record()
        for name, path in (
            ("fleet", "/"),
            ("node", "/nodes/node-2"),
            ("nodes", "/nodes?sort=state"),
            ("groups", "/nodes?group=sickbay.dev/pool"),
        ):
            one = await tab(browser, served.url + path, scheme=scheme)
            await one.screenshot(f"{name}-{scheme}")
            assert await contrast(one.page) == []
            # The pages differ in their colours alone, and `contrast` is stricter about these.
            if scheme == "light":
                assert await violations(one.page) == ""
            assert one.complaints == []


async def violations(page: Page) -> str:
    """The report of axe. Without the elements that are right it takes a third less."""
    found = await Axe().run(page, options={"resultTypes": ["violations"]})
    return found.generate_report() if found.violations_count else ""


async def contrast(page: Page) -> list[str]:
    """Text whose contrast with its background is below 4.5 (WCAG AA)."""
    found: list[str] = await page.evaluate(
        """() => {
      const parse = (c) => (c.match(/[\\d.]+/g) || []).map(Number);
      const lum = ([r, g, b]) => {
        const f = (v) => {
          v /= 255;
          return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
        };
        return 0.2126 * f(r) + 0.7152 * f(g) + 0.0722 * f(b);
      };
      const behind = (e) => {
        for (; e; e = e.parentElement) {
          const c = parse(getComputedStyle(e).backgroundColor);
          if (c.length === 3 || c[3] > 0.99) return c;
        }
        return [255, 255, 255];
      };
      const bad = [];
      for (const e of document.querySelectorAll("body *")) {
        const text = [...e.childNodes].filter((n) => n.nodeType === 3 && n.data.trim()).length;
        if (!text || !e.checkVisibility() || e.closest(".unseen")) continue;
        const [a, b] = [lum(parse(getComputedStyle(e).color)), lum(behind(e))];
        const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
        if (ratio < 4.5) bad.push(`${e.tagName}.${e.className}: ${ratio.toFixed(2)}`);
      }
      return bad;
    }"""
    )
    return found


async def test_a_narrow_screen_shows_all_without_scrolling_sideways(browser: Browser) -> None:
    async with serving(small_fleet(monotonic_hands()), running_clocks()) as served:
        for name, path in (("fleet", "/"), ("node", "/nodes/node-2"), ("nodes", "/nodes")):
            one = await tab(browser, served.url + path, width=375, height=800, scheme="dark")
            await one.screenshot(f"{name}-narrow")
            wide = await one.page.evaluate("document.documentElement.scrollWidth")
            assert wide <= 375, path
            assert one.complaints == []


async def test_41_nodes_with_one_fault_are_short_on_a_phone(browser: Browser) -> None:
    async with serving(rack_fleet(monotonic_hands()), running_clocks()) as served:
        one = await tab(browser, served.url, width=390, height=844)
        await one.screenshot("rack-narrow")
        assert await one.page.evaluate("document.documentElement.scrollHeight") < 4500
        rows = one.page.locator("#cases tbody tr[data-key]")
        await expect(rows).to_have_count(2)
        await rows.nth(0).locator(".nodes summary").click()
        await expect(rows.nth(0).locator("a.node")).to_have_count(13)
        assert await overflowing(one.page) == []
        assert one.complaints == []


async def test_on_a_phone_no_label_covers_another_and_header_and_charts_fit(
    browser: Browser,
) -> None:
    hands = monotonic_hands()
    async with serving(small_fleet(hands), running_clocks()) as served:
        one = await tab(browser, served.url + "/nodes", width=390, height=844)
        await expect(one.page.locator("#list tbody td").first).to_be_visible()
        overlaps = await one.page.evaluate(
            """() => [...document.querySelectorAll("#list tbody td")]
            .filter((cell) => getComputedStyle(cell).display !== "none")
            .filter((cell) => cell.getBoundingClientRect().height < 15).length"""
        )
        assert overlaps == 0
        assert await TrendRecorder(served.web._queries).record()
        for chart, path, drawing, labels in (
            ("timeline", "/nodes/node-2", "svg.timeline", "svg.timeline text"),
            ("trend", "/", "#trend figure", "#trend .scale"),
        ):
            one = await tab(browser, served.url + path, width=360, height=780)
            await one.screenshot(f"{chart}-360")
            sizes: list[float] = await one.page.evaluate(
                """([drawing, labels]) => {
              const shown = [...document.querySelectorAll(drawing)]
                .filter((e) => e.checkVisibility());
              const texts = [...document.querySelectorAll(labels)]
                .filter((e) => e.checkVisibility() && e.textContent)
                .map((e) => e.getBoundingClientRect());
              const bar = document.querySelector(".bar").getBoundingClientRect();
              const brand = document.querySelector(".brand").getBoundingClientRect();
              const live = document.querySelector("#live").getBoundingClientRect();
              return [shown.length, Math.min(...texts.map((e) => e.left)),
                Math.max(...texts.map((e) => e.right)), Math.min(...texts.map((e) => e.height)),
                bar.height, Math.abs(brand.top + brand.bottom - live.top - live.bottom) / 2];
            }""",
                [drawing, labels],
            )
            number, left, right, text, bar, off = sizes
            assert number == 1, chart
            assert 0 <= left < right <= 360, chart  # no lane's name and no time is cut off
            assert text >= 9, chart
            assert bar < 110
            assert off < 12  # brand, pages and the connection's state are one line


async def test_an_opened_group_stays_open_and_focused_when_a_node_joins_it(
    browser: Browser,
) -> None:
    hands = monotonic_hands()
    fleet = rack_fleet(hands)
    async with serving(fleet, running_clocks()) as served:
        one = await tab(browser, served.url)
        fold = one.page.locator("#state-quarantined tr", has_text="13 nodes").locator(".nodes")
        await fold.locator("summary").focus()
        await one.page.keyboard.press("Enter")
        await expect(fold.locator("a.node")).to_have_count(13)
        joining = fleet.node_summaries["node-50"]
        gpu = "GPU-00000050-7f43-4b6e-9a20-1f2e3d4c5b6a"
        text = f"xid:48 (double-bit ECC error) on {gpu}"
        incident_of(joining, hands.now, code="xid:48", summary=text)
        quarantine_of(joining, hands.wall, reason=text)
        grown = one.page.locator("#state-quarantined tr", has_text="14 nodes").locator(".nodes")
        await expect(grown).to_have_attribute("open", "")
        await expect(grown.locator("a.node", has_text="node-50")).to_be_visible()
        assert await one.page.evaluate("document.activeElement.tagName") == "SUMMARY"


async def test_the_nodes_are_sorted_and_grouped_by_keyboard_and_stay_so_when_they_change(
    browser: Browser,
) -> None:
    fleet = small_fleet(monotonic_hands())
    fleet.group_labels = ("sickbay.dev/pool",)
    async with serving(fleet, running_clocks()) as served:
        one = await tab(browser, served.url + "/nodes")
        page = one.page
        first = page.locator("#list tbody tr").first
        await expect(page.locator("th[aria-sort=ascending]")).to_contain_text("State")
        await page.get_by_role("link", name="State").focus()
        await page.keyboard.press("Enter")
        await expect(page.locator("th[aria-sort=descending]")).to_contain_text("State")
        await page.get_by_role("link", name="State").click()
        await expect(page.locator("th[aria-sort=ascending]")).to_contain_text("State")
        await expect(first).to_contain_text("node-2")
        fleet.node_summaries["node-8"].agent.attached = False
        served.feed.record_event(Transition(1.0, EventKind.AGENT_SILENT, "node-8", "silent"))
        await expect(page.locator("#list tr", has_text="node-8")).to_contain_text("silent")
        await expect(first).to_contain_text("node-2")  # the order is that of the address
        await page.get_by_label("Group by").fill("sickbay.dev/pool")
        await page.get_by_role("button", name="Show").click()
        await expect(first).to_contain_text("h100")
        await page.get_by_role("link", name="h100").click()
        await expect(page.locator("#list")).to_contain_text("Nodes that match: 8")
        assert one.complaints == []


def stops_of_days(now: float) -> list[Transition]:
    """Stops of three days, the second with the most hours, of nine teams and a hostile one."""
    found = []
    for days, gpus, team in (
        (5, 8, "vision"),
        (3, 64, "<b>speech</b> of a rather long name that no chart has room for"),
        *((1, 1, f"team-{number}") for number in range(9)),
    ):
        one = transition_of(record(lost_gpus=gpus, team=team, key=f"ml/job/{days}-{team}"))
        found.append(replace(one, at=now - days * 86400))
    return found


@pytest.mark.parametrize(("width", "size"), [(1440, "wide"), (390, "phone")])
async def test_the_hours_that_jobs_lost_are_drawn_by_day_code_and_team(
    browser: Browser, width: int, size: str
) -> None:
    clocks = running_clocks()
    history = ListHistory(stops_of_days(clocks.wall()))
    async with serving(small_fleet(monotonic_hands()), clocks, history=history) as served:
        one = await tab(browser, f"{served.url}/jobs?days=7", width=width, height=900)
        await one.screenshot(f"jobs-{size}")
        columns = one.page.locator("#cost svg.days rect.bar-lost")
        await expect(columns).to_have_count(3)
        boxes = [await columns.nth(number).bounding_box() for number in range(3)]
        heights = [box["height"] for box in boxes if box]
        assert max(heights) == heights[1] > 5 * heights[0] > 0
        teams = one.page.locator("#cost .sums").nth(1).locator("dt")
        assert "3 others" in await teams.all_text_contents()
        assert (await teams.nth(0).text_content() or "").startswith(
            "<b>speech</b> of a rather long"
        )
        await one.page.locator("#cost summary").click()
        await expect(one.page.locator("#cost tbody tr")).to_have_count(8)
        assert await overflowing(one.page) == []
        assert await contrast(one.page) == []
        assert await violations(one.page) == ""
        assert one.complaints == []


async def overflowing(page: Page) -> list[str]:
    """Elements that stick out of the window, or whose text sticks out of their own box."""
    found: list[str] = await page.evaluate(
        """() => {
      const bad = [];
      for (const e of document.querySelectorAll("body *")) {
        if (!e.checkVisibility() || e.closest(".unseen, .skip, thead, svg")) continue;
        const box = e.getBoundingClientRect();
        const name = `${e.tagName}.${e.className}: ${e.textContent.trim().slice(0, 40)}`;
        if (box.width && (box.right > innerWidth + 0.5 || box.left < -0.5)) bad.push(name);
        const style = getComputedStyle(e);
        if (style.display !== "inline" && style.overflowX === "visible" && box.width > 1
            && e.scrollWidth > e.clientWidth + 1) bad.push("content of " + name);
      }
      return bad;
    }"""
    )
    return found


@pytest.mark.parametrize("nodes", [8, 12_000])
async def test_no_element_overflows_on_a_phone(browser: Browser, nodes: int) -> None:
    hands = monotonic_hands()
    fleet = small_fleet(hands) if nodes == 8 else big_fleet(hands, nodes)
    sick = "node-2" if nodes == 8 else "gpu-000-03"
    fleet.stop = fleet.clock_doubt = "a reason " + "without-a-break" * 12
    fleet.how = " --local /var/lib/sickbay-aggregator/cluster.db"
    async with serving(fleet, running_clocks()) as served:
        assert await TrendRecorder(served.web._queries).record()
        for path in ("/", f"/nodes/{sick}", "/nodes", "/nodes?group=sickbay.dev/pool&sort=-nodes"):
            one = await tab(browser, served.url + path, width=390, height=844)
            assert await overflowing(one.page) == [], path


@pytest.mark.parametrize("width", [390, 1440])
async def test_the_longest_name_of_a_node_overflows_nowhere(browser: Browser, width: int) -> None:
    hands = monotonic_hands()
    fleet = small_fleet(hands)
    incident_of(well(fleet, "n" * 253, hands.now), hands.now)
    async with serving(fleet, running_clocks()) as served:
        for path in ("/", "/nodes"):
            one = await tab(browser, served.url + path, width=width, height=844)
            assert await one.page.evaluate("document.documentElement.scrollWidth") <= width, path


async def test_no_gap_is_left_for_a_panel_that_is_not_there(browser: Browser) -> None:
    fleet = rack_fleet(monotonic_hands())  # no replicas, no requests, no lemons
    async with serving(fleet, running_clocks()) as served:
        one = await tab(browser, served.url)
        gaps: list[float] = await one.page.evaluate(
            """() => {
          const panels = [...document.querySelectorAll(".side section")];
          const boxes = panels.map((e) => e.getBoundingClientRect());
          return boxes.slice(1).map((box, i) => box.top - boxes[i].bottom);
        }"""
        )
        assert gaps
        assert max(gaps) < 20
        empty = await one.page.evaluate(
            """() => [...document.querySelectorAll("section.panel")]
              .filter((e) => e.checkVisibility() && e.innerText.trim().split("\\n").length < 2)
              .map((e) => e.id || e.className)"""
        )
        assert empty == []


async def test_7500_nodes_are_drawn_and_each_can_be_reached(browser: Browser) -> None:
    fleet = big_fleet(monotonic_hands())
    async with serving(fleet, running_clocks()) as served:
        one = await tab(browser, served.url, scheme="dark")
        canvas = one.page.locator("#map canvas")
        await until_drawn(one.page)
        elements = await one.page.evaluate("document.querySelectorAll('*').length")
        assert elements < 3000
        await one.screenshot("large-dark")
        await canvas.hover(position={"x": 2, "y": 2})
        await expect(one.page.locator("#tip")).to_have_text("gpu-000-00: well")
        await canvas.click(position={"x": 2, "y": 2})
        await expect(one.page.locator("h1")).to_contain_text("gpu-000-00")
        await one.page.locator("#find").fill("gpu-005-10")
        await one.page.locator("#find").press("Enter")
        await expect(one.page.locator("h1")).to_contain_text("gpu-005-10")
        assert one.complaints == []


async def test_each_state_has_a_shape_of_its_own_on_the_map_of_10000_nodes(
    browser: Browser,
) -> None:
    """By the shape alone: where a pixel is drawn at all, whatever its colour."""
    fleet = big_fleet(monotonic_hands(), 10_000)
    async with serving(fleet, running_clocks()) as served:
        one = await tab(browser, served.url)
        await until_drawn(one.page)
        drawn = await served.json("/api/v1/map")
        places = {letter: drawn["states"].index(letter) for letter in "ouswhq"}
        await one.page.wait_for_function(
            """() => document.querySelector("#map canvas").getContext("2d")
              .getImageData(0, 0, 7, 7).data.some((byte) => byte > 0)"""
        )
        masks: dict[str, list[bool]] = await one.page.evaluate(
            """(places) => {
          const canvas = document.querySelector("#map canvas");
          const pitch = 7, columns = Math.floor(canvas.clientWidth / pitch);
          const pen = canvas.getContext("2d");
          const mask = (index) => {
            const x = (index % columns) * pitch, y = Math.floor(index / columns) * pitch;
            const data = pen.getImageData(x, y, pitch, pitch).data;
            return Array.from({ length: pitch * pitch }, (_, i) => data[4 * i + 3] > 100);
          };
          return Object.fromEntries(Object.entries(places).map(([k, v]) => [k, mask(v)]));
        }""",
            places,
        )
        assert all(sum(mask) >= 5 for mask in masks.values())
        for a, b in combinations(masks, 2):
            differing = sum(x != y for x, y in zip(masks[a], masks[b], strict=True))
            assert differing >= 8, (a, b)
        await one.screenshot("map-10000")


async def test_one_nodes_page_follows_that_node(browser: Browser) -> None:
    hands = monotonic_hands()
    fleet = small_fleet(hands)
    async with serving(fleet, running_clocks()) as served:
        one = await tab(browser, served.url + "/nodes/node-8")
        await expect(one.page.locator("h1")).to_contain_text("well")
        node_summary = fleet.node_summaries["node-8"]
        incident_of(node_summary, hands.now, ago=1.0)
        quarantine_of(node_summary, hands.wall, phase=Phase.ADMITTED, pods=None)
        served.feed.record_event(
            Transition(hands.wall, EventKind.ADMITTED, "node-8", "node-8: admitted")
        )
        await expect(one.page.locator("h1")).to_contain_text("held back")  # it has no mark yet
        await expect(one.page.locator("#timeline")).to_contain_text("node-8: admitted")
        fleet.stop = "the fabric is being worked on"
        await expect(one.page.locator("#notices")).to_contain_text("the fabric is being worked on")
        assert one.complaints == []
        known = fleet.node_summaries.pop("node-8")
        lost = one.page.locator("#lost")
        await expect(lost).to_contain_text('There is no node "node-8". The page shows what was')
        fleet.node_summaries["node-8"] = known
        await expect(lost).to_be_hidden()


async def test_a_repair_is_followed_from_its_order_to_its_end_without_a_reload(
    browser: Browser,
) -> None:
    hands = monotonic_hands()
    fleet = small_fleet(hands)
    fleet.repairs = REPAIRS
    node_summary = fleet.node_summaries["node-2"]
    ordered = reboot_of("node-2", hands.wall, RepairState.ORDERED, message="asked the BMC")
    repaired(node_summary, ordered)
    async with serving(fleet, running_clocks()) as served:
        one = await tab(browser, served.url + "/nodes/node-2", width=390, height=844)
        panel = one.page.locator("#repair")
        await expect(panel.locator("tbody")).to_contain_text("Ordered")
        await expect(panel).to_contain_text("reboot is under way")
        await expect(panel.locator("s")).to_have_text("replace")  # has no repairer
        assert await overflowing(one.page) == []
        fleet_page = await tab(browser, served.url)
        await expect(fleet_page.page.locator("#repairs tbody")).to_contain_text("node-2")
        await expect(fleet_page.page.locator("#limits")).to_contain_text("repair.concurrent")
        done = replace(ordered, state=RepairState.UNKNOWN, ended_at=hands.wall, message="no answer")
        repaired(node_summary, done, exhausted="the outcome of reboot is not known")
        served.feed.record_event(
            Transition(hands.wall, EventKind.REPAIR_ENDED, "node-2", "node-2: reboot is unknown")
        )
        await expect(panel).to_contain_text("No further repair begins by itself")
        await expect(panel.locator("tbody")).to_contain_text("Unknown")
        await expect(fleet_page.page.locator("#repairs tbody")).to_have_count(0)
        for tested in (one, fleet_page):
            assert await contrast(tested.page) == []
            assert await violations(tested.page) == ""
            assert tested.complaints == []
        await one.screenshot("repair-narrow")


async def test_a_garbled_answer_is_followed_by_the_whole_page(browser: Browser) -> None:
    fleet = small_fleet(monotonic_hands())
    async with serving(fleet, running_clocks()) as served:
        one = await tab(browser, served.url)
        garbled: list[str] = []

        async def garble(route: Route) -> None:
            if "base=" in route.request.url and not garbled:
                garbled.append(route.request.url)
                await route.fulfill(content_type="application/json", body='{"tag": 1, "parts": 2')
            else:
                await route.continue_()

        await one.page.route("**/*fragment=1*", garble)
        # The page asks once when its stream opens; only later requests name a base.
        for node in ("node-8", "node-1"):
            fleet.node_summaries[node].agent.attached = False
            served.feed.record_event(Transition(1.0, EventKind.AGENT_SILENT, node, "is silent"))
            if node == "node-8":
                await until(lambda: bool(garbled))
        await expect(one.page.locator("#silent")).to_contain_text("node-8")
        await expect(one.page.locator("#silent")).to_contain_text("node-1")


async def test_hostile_text_is_text_in_the_browser_too(browser: Browser) -> None:
    hands = monotonic_hands()
    fleet = small_fleet(hands)
    evil = '<img src=x onerror="window.pwned=1"><script>window.pwned=1</script>'
    async with serving(fleet, running_clocks()) as served:
        one = await tab(browser, served.url)
        incident_of(
            fleet.node_summaries["node-1"], hands.now, summary=evil, message=evil, code=evil
        )
        served.feed.record_event(Transition(hands.wall, EventKind.INCIDENT_OPENED, "node-1", evil))
        await expect(one.page.locator("#cases")).to_contain_text(evil)
        await expect(one.page.locator("#lately")).to_contain_text(evil)
        assert await one.page.evaluate("window.pwned") is None
        assert one.complaints == []


async def test_focus_stays_where_it_was_when_the_page_changes(browser: Browser) -> None:
    hands = monotonic_hands()
    fleet = small_fleet(hands)
    async with serving(fleet, running_clocks()) as served:
        one = await tab(browser, served.url)
        await one.page.locator("#cases a.node", has_text="node-3").focus()
        incident_of(fleet.node_summaries["node-8"], hands.now, ago=1.0)
        await expect(one.page.locator("#cases")).to_contain_text("node-8")
        focused = await one.page.evaluate("document.activeElement.textContent")
        assert focused == "node-3"


async def test_a_page_by_a_gateway_is_live_and_says_when_there_is_no_controller(
    browser: Browser,
) -> None:
    hands = monotonic_hands()
    fleet = small_fleet(hands)
    async with serving(fleet, running_clocks()) as served, gateway_of(served) as gateway:
        one = await tab(browser, gateway.url)
        await expect(one.page.locator("h1")).to_contain_text("in quarantine")
        incident_of(fleet.node_summaries["node-8"], hands.now, ago=1.0)
        await expect(one.page.locator("#cases")).to_contain_text("node-8")
        await one.page.goto(f"{gateway.url}/nodes/node-2")
        await expect(one.page.locator("h1")).to_contain_text("node-2")
        assert one.complaints == []
        gateway.controller = None
        response = present(await one.page.goto(gateway.url))
        assert response.status == 503
        await expect(one.page.locator("h1")).to_have_text("No controller")
        assert await contrast(one.page) == []
        gateway.controller = gateway.candidate
        # The page without a controller loads itself again.
        await expect(one.page.locator("h1")).to_contain_text("in quarantine")


async def test_an_open_page_goes_on_at_the_next_controller(browser: Browser) -> None:
    hands = monotonic_hands()
    fleet = small_fleet(hands)
    async with serving(fleet, running_clocks()) as served, gateway_of(served) as gateway:
        one = await tab(browser, gateway.url)
        await expect(one.page.locator("#live")).to_have_text("live")
        gateway.name_controller(None)
        await until(lambda: served.feed.streams == 0)
        gateway.name_controller(gateway.candidate)
        incident_of(fleet.node_summaries["node-8"], hands.now, ago=1.0)
        await expect(one.page.locator("#cases")).to_contain_text("node-8")


async def test_a_hidden_page_asks_for_nothing_until_it_is_looked_at(browser: Browser) -> None:
    fleet = small_fleet(monotonic_hands())
    async with serving(fleet, running_clocks()) as served:
        one, beside = await tab(browser, served.url), await tab(browser, served.url)
        # The page asks for its text once after it is loaded, which a busy machine delays.
        await one.page.wait_for_function(
            """() => performance.getEntriesByType('resource')
                .some((one) => one.name.includes('fragment=1'))"""
        )
        await one.page.evaluate(
            """() => {
          Object.defineProperty(document, "hidden", { get: () => window.away, configurable: true });
          window.away = true;
        }"""
        )
        asked: list[str] = []
        one.page.on("request", lambda request: asked.append(request.url))
        fleet.node_summaries["node-8"].agent.attached = False
        fleet.node_summaries["node-1"].agent.attached = False
        served.feed.record_event(
            Transition(1.0, EventKind.AGENT_SILENT, "node-8", "node-8: silent")
        )
        await expect(beside.page.locator("#silent")).to_contain_text("node-8")
        assert asked == []
        await one.page.evaluate(
            "() => { window.away = false; document.dispatchEvent(new Event('visibilitychange')); }"
        )
        await expect(one.page.locator("#silent")).to_contain_text("node-8")
        await until(lambda: bool(asked))
        assert json.dumps(one.complaints) == "[]"


async def test_commands_are_copied_and_times_are_local_on_demand(browser: Browser) -> None:
    hands = monotonic_hands()
    fleet = small_fleet(hands)
    fleet.stop = "maintenance"
    async with serving(fleet, running_clocks()) as served:
        one = await tab(browser, served.url, zone="Asia/Tokyo")
        page = one.page
        await page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        # The mark lasts for 1.5 s, in which a busy machine may not look at it.
        await page.evaluate("window.setTimeout = () => 0")
        await page.locator("#notices .copy").first.click()
        await expect(page.locator("#notices .copy.copied")).to_have_count(1)
        assert await page.evaluate("navigator.clipboard.readText()") == "sickbay resume"
        clock = page.locator("#cases time small").first
        await expect(clock).to_contain_text("UTC")
        await page.get_by_role("button", name="Use local time").click()
        await expect(clock).not_to_contain_text("UTC")
        await expect(page.locator("#zone")).to_have_text("Times are this browser's: Asia/Tokyo.")
        await expect(clock).to_contain_text("GMT+9")
        await page.reload()
        await expect(page.locator("#zone")).to_have_text("Times are this browser's: Asia/Tokyo.")
        await expect(clock).to_contain_text("GMT+9")
        await page.get_by_role("button", name="Use UTC").click()
        await expect(clock).to_contain_text("UTC")
        assert one.complaints == []


async def test_the_map_has_blocks_and_is_read_and_opened_by_keyboard(browser: Browser) -> None:
    hands = monotonic_hands()
    fleet = big_fleet(hands, 720)
    rack = "topology.kubernetes.io/rack"
    fleet.group_labels = (rack,)
    for name, summary in fleet.node_summaries.items():
        assert summary.cluster.meta is not None
        summary.cluster.meta = replace(summary.cluster.meta, labels={rack: name[:7]})
    async with serving(fleet, running_clocks()) as served:
        for width in (1440, 360):
            one = await tab(browser, served.url, width=width)
            page, canvas = one.page, one.page.locator("#map canvas")
            await until_drawn(page)
            await expect(page.locator(".blocks [aria-current]")).to_have_text("rack")
            await expect(page.locator(".legend.states li")).to_have_count(6)
            await canvas.focus()
            await page.keyboard.press("ArrowRight")
            await expect(page.locator("#tip")).to_have_text("gpu-000-00 in gpu-000: well")
            await page.keyboard.press("End")
            await expect(page.locator("#tip")).to_contain_text("gpu-039-17 in gpu-039")
            assert await contrast(page) == []
            assert await violations(page) == ""
            await one.screenshot(f"blocks-{width}")
            await page.keyboard.press("Enter")
            await expect(page.locator("h1")).to_contain_text("gpu-039-17")
            assert one.complaints == []
        await page.goto(f"{served.url}/?blocks=none")
        await until_drawn(page)
        await canvas.hover(position={"x": 2, "y": 2})
        await expect(page.locator("#tip")).to_have_text("gpu-000-00: well")


async def test_filters_survive_a_reload_and_hold_while_the_page_changes(browser: Browser) -> None:
    hands = monotonic_hands()
    fleet = small_fleet(hands)
    async with serving(fleet, running_clocks()) as served:
        one = await tab(browser, served.url)
        page, rows = one.page, one.page.locator("#cases tr[data-key]")
        await expect(rows).to_have_count(6)
        await page.locator("select[name=state]").select_option("quarantined")
        await page.get_by_label("Text contains").fill("xid:79")
        await page.get_by_role("button", name="Show").click()
        await expect(rows).to_have_count(1)
        await page.reload()
        await expect(rows).to_have_count(1)
        await expect(page.get_by_label("Text contains")).to_have_value("xid:79")
        incident_of(fleet.node_summaries["node-8"], hands.now, ago=1.0)
        quarantine_of(fleet.node_summaries["node-8"], hands.wall, phase=Phase.CORDONED)
        incident_of(fleet.node_summaries["node-1"], hands.now, action="observe", ago=1.0)
        await expect(rows).to_have_count(2)  # node-8 matches, node-1 is no quarantine
        await page.get_by_role("link", name="Reset").click()
        await expect(rows).to_have_count(8)
        assert one.complaints == []


async def test_an_incident_and_a_quarantine_have_live_pages_of_their_own(browser: Browser) -> None:
    hands = monotonic_hands()
    fleet = small_fleet(hands)
    evil = '<img src=x onerror="window.pwned=1">'
    async with serving(fleet, running_clocks()) as served:
        one = await tab(browser, served.url, width=360, height=780)
        page = one.page
        row = page.locator("#cases tr", has_text="node-2")
        await row.get_by_role("link", name="its quarantine").click()
        await expect(page.locator("h1")).to_contain_text("Quarantine of node-2")
        await expect(page.locator("#story")).to_contain_text("Draining")
        node_summary = fleet.node_summaries["node-2"]
        quarantine_of(node_summary, hands.wall, phase=Phase.DRAINED, pods=0, reason=evil)
        await expect(page.locator("#story")).to_contain_text("Drained")
        await expect(page.locator("#story")).to_contain_text(evil)
        for name in ("quarantine", "incident"):
            assert await overflowing(page) == [], name
            assert await contrast(page) == [], name
            assert await violations(page) == ""
            await one.screenshot(f"{name}-360")
            if name == "quarantine":
                [incident] = node_summary.decision.incidents
                await page.goto(f"{served.url}/incidents/{incident}")
                await expect(page.locator("#live")).to_have_text("live")
        await expect(page.locator("#story")).to_contain_text("off-bus")
        node_summary.decision.incidents = EMPTY
        served.feed.record_event(
            Transition(hands.wall, EventKind.INCIDENT_CLOSED, "node-2", evil, incident)
        )
        await expect(page.locator("#story")).to_contain_text("No longer open")
        await expect(page.locator("#timeline")).to_contain_text(evil)
        assert await page.evaluate("window.pwned") is None
        assert one.complaints == []
