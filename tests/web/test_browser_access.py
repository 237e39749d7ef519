"""Log-in and actions in a real browser, and a site that tries to act for the person."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import pytest_asyncio
from aiohttp import web
from playwright.async_api import Browser, Dialog, Page, Route, expect

from aggregator.access.gate import AccessGate
from aggregator.access.static_tokens import StaticTokens
from aggregator.cli.actions import ClusterActions
from aggregator.cli.local_actions import LocalActions
from aggregator.cluster.local.place import FilePlace
from aggregator.cluster.local.store import LocalStore
from aggregator.cluster.port import Action, QuarantineSpec
from aggregator.events import Transition
from aggregator.web import sse
from aggregator.web.access_guard import PageAccess
from aggregator.web.action_endpoints import ActionSetup
from tests.support.present import present
from tests.support.waiting import PATIENCE, until
from tests.web.support import Served, running_clocks, serving, small_fleet
from tests.web.test_actions import orders_a_reboot
from tests.web.test_browser import browser, monotonic_hands, started_browser
from tests.web.test_oidc import VIEWER as STATIC_VIEWER
from tests.web.test_oidc import at, site_of

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="module")]
__all__ = ["browser", "started_browser"]

VIEWER, OPERATOR = "v" * 22, "o" * 22


@pytest.fixture
def store(tmp_path: Path) -> Iterator[LocalStore]:
    found = LocalStore(tmp_path / "cluster.db", wall=time.time)
    yield found
    found.close()


@pytest_asyncio.fixture(loop_scope="module")
async def served(tmp_path: Path, store: LocalStore) -> AsyncIterator[Served]:
    (tmp_path / "tokens").write_text(f"{VIEWER},dashboards,viewer\n{OPERATOR},hall-2,operator\n")
    tokens = StaticTokens(tmp_path / "tokens")
    gate = AccessGate([tokens], tokens, anonymous=False, actions=True)

    @contextmanager
    def on_file(_: bool) -> Iterator[ClusterActions]:  # noqa: FBT001
        yield LocalActions(FilePlace(tmp_path / "cluster.db"), how="")

    happened = list[Transition]()
    setup = ActionSetup(on_file, happened.append, time.time)
    async with serving(
        small_fleet(monotonic_hands()), running_clocks(), access=PageAccess(gate), actions=setup
    ) as running:
        yield running


async def new_page(browser: Browser) -> Page:
    context = await browser.new_context()
    context.set_default_timeout(1000 * PATIENCE)
    return await context.new_page()


async def log_in(page: Page, url: str, token: str) -> None:
    await page.goto(url)
    await page.get_by_label("Token").fill(token)
    await page.get_by_role("button", name="Log in").click()


async def test_a_person_logs_in_sees_the_live_page_and_logs_out(
    browser: Browser, served: Served
) -> None:
    page = await new_page(browser)
    complaints = list[str]()
    page.on("console", lambda said: complaints.append(said.text) if said.type == "error" else None)
    await log_in(page, f"{served.url}/nodes/node-2", "wrong" * 5)
    await expect(page.get_by_role("alert")).to_contain_text("in no line of access.tokens_file")
    assert "node-2: " not in await page.title()
    complaints.clear()  # the browser itself reports each 401
    await page.get_by_label("Token").fill(VIEWER)
    await page.get_by_role("button", name="Log in").click()
    await expect(page).to_have_url(f"{served.url}/nodes/node-2")
    await expect(page.locator("#live")).to_have_text("live")
    await expect(page.locator("#reader")).to_contain_text("Logged in as dashboards")
    assert await page.locator("#actions").count() == 0
    assert await page.evaluate("document.cookie") == ""
    assert complaints == []
    refusal = {"error": "the API server is away", "hint": "Try again later."}
    await page.route("**/api/v1/access*", lambda route: route.fulfill(status=503, json=refusal))
    await page.reload()
    trouble = page.locator("#reader-trouble")
    await expect(trouble).to_contain_text("the API server is away. Try again later.")
    await page.unroute("**/api/v1/access*")
    await page.reload()
    await page.get_by_role("button", name="Log out").click()
    await expect(page).to_have_url(f"{served.url}/login")  # else `goto` cancels the log-out
    await page.goto(served.url)
    await expect(page.get_by_role("heading", name="Log in")).to_be_visible()


async def test_an_open_page_whose_log_in_has_ended_leads_to_the_form(
    browser: Browser, served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sse, "RECHECK", 0.0)
    monkeypatch.setattr(sse, "BEAT", 0.05)
    page = await new_page(browser)
    await log_in(page, f"{served.url}/nodes/node-2", VIEWER)
    await expect(page.locator("#live")).to_have_text("live")
    (tmp_path / "tokens").write_text(f"{OPERATOR},hall-2,operator\n")
    await expect(page.get_by_role("alert")).to_contain_text("in no line of access.tokens_file")
    await log_in(page, page.url, OPERATOR)
    await expect(page).to_have_url(f"{served.url}/nodes/node-2")


async def test_an_operator_acts_from_a_nodes_page(
    browser: Browser, served: Served, store: LocalStore
) -> None:
    page = await new_page(browser)
    await log_in(page, f"{served.url}/nodes/node-1", OPERATOR)
    section = page.locator("#actions")
    await section.get_by_label("Action").select_option("cordon")
    await section.get_by_label("Reason").fill("fan 3 is dead")
    sent, clicked_twice = list[str](), asyncio.Event()

    async def hold(route: Route) -> None:
        sent.append(route.request.url)
        await clicked_twice.wait()
        await route.continue_()

    await page.route("**/quarantine", hold)
    await section.get_by_role("button", name="Do it").click()
    await until(lambda: bool(sent))
    await section.get_by_role("button", name="Do it").click(force=True)
    clicked_twice.set()
    await expect(page.locator("#action-result")).to_contain_text("cordon requested")
    found = present(store.quarantine("node-1"))
    assert found.spec.requester == "hall-2"
    assert len(sent) == 1
    await section.get_by_label("Action").select_option("exempt")
    await expect(section.get_by_label("For", exact=True)).to_be_visible()
    await page.goto(f"{served.url}/nodes/node-4")
    await section.get_by_label("Action").select_option("release")
    await section.get_by_role("button", name="Do it").click()
    await expect(page.locator("#action-result")).to_contain_text("is not in quarantine")


async def test_a_release_of_a_node_with_an_open_order_is_confirmed(
    browser: Browser, served: Served, store: LocalStore
) -> None:
    spec = QuarantineSpec(Action.CORDON, "gpu", "xid:79", requester="sickbay")
    store.create_quarantine("node-1", spec, finalizer=False)
    orders_a_reboot(store, "node-1")
    page = await new_page(browser)
    await log_in(page, f"{served.url}/nodes/node-1", OPERATOR)
    section, asked, answers = page.locator("#actions"), list[str](), [False, True]

    async def answer(dialog: Dialog) -> None:
        asked.append(dialog.message)
        await (dialog.accept() if answers.pop(0) else dialog.dismiss())

    page.on("dialog", answer)
    await section.get_by_label("Action").select_option("release")
    await section.get_by_role("button", name="Do it").click()
    await expect(page.locator("#action-result")).to_contain_text("reboot was ordered")
    assert store.quarantine("node-1") is not None
    await section.get_by_role("button", name="Do it").click()
    await expect(page.locator("#action-result")).to_contain_text("release requested")
    assert len(asked) == 2
    assert asked[0].endswith("and the work that comes there. Go on?")


async def test_another_site_can_neither_read_nor_act_with_the_log_in(
    browser: Browser, served: Served, store: LocalStore
) -> None:
    async def attack(_: web.Request) -> web.Response:
        url = served.url.replace("127.0.0.1", "localhost")
        return web.Response(
            content_type="text/html",
            text=f"""<form id="f" method="post" enctype="text/plain"
              action="{url}/api/v1/stop"><input name='{{"reason":"' value='x"}}'></form>
              <a id="link" href="{url}/nodes/node-2">look</a>
              <script>
              window.results = [];
              const note = (text) => window.results.push(text);
              for (const mode of ["cors", "no-cors"]) {{
                fetch("{url}/api/v1/stop", {{method: "POST", mode, credentials: "include",
                  headers: mode === "cors" ? {{"X-Sickbay-Action": "1",
                    "Content-Type": "application/json"}} : {{}},
                  body: '{{"reason": "x"}}'}}).then((r) => note(r.type), () => note("failed"));
              }}
              fetch("{url}/api/v1/fleet", {{credentials: "include"}})
                .then((r) => r.text()).then(note, () => note("unread"));
              </script>""",
        )

    app = web.Application()
    app.router.add_get("/", attack)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    own = served.url.replace("127.0.0.1", "localhost")
    try:
        page = await new_page(browser)
        await log_in(page, f"{own}/nodes/node-1", OPERATOR)
        await expect(page.locator("#reader")).to_contain_text("hall-2")
        await page.goto(f"http://127.0.0.1:{port}/")
        await page.wait_for_function("window.results.length === 3")
        results = await page.evaluate("window.results")
        assert sorted(results) == ["failed", "failed", "unread"]
        assert store.stopped() == ""
        # A link from there still leads to the page, although the cookie is not sent with it.
        await page.click("#link")
        await expect(page.locator("#reader")).to_contain_text("hall-2")
        await page.goto(f"http://127.0.0.1:{port}/")
        await page.evaluate("document.getElementById('f').submit()")
        await page.wait_for_url(f"{own}/api/v1/stop")
        assert store.stopped() == ""
    finally:
        await runner.cleanup()


async def test_a_person_logs_in_by_openid_connect(browser: Browser, tmp_path: Path) -> None:
    """The session's cookie is Strict, and the issuer is another site (localhost and 127.0.0.1)."""
    async with site_of(tmp_path) as site:
        # Not the address that the test's client uses: another site than the issuer's.
        url = site.served.url.replace("127.0.0.1", "localhost")
        provider = at(site.oidc, url)._provider
        page = await new_page(browser)
        await page.goto(f"{url}/nodes/node-2")
        await page.get_by_role("link", name="Log in with").click()
        await expect(page).to_have_url(f"{url}/nodes/node-2")
        await expect(page.locator("#live")).to_have_text("live")
        await expect(page.locator("#reader")).to_contain_text("Logged in as oidc:ada@example.com")
        assert await page.evaluate("document.cookie") == ""
        await page.reload()
        await expect(page.locator("h1")).to_contain_text("node-2")
        await page.get_by_role("button", name="Log out").click()
        await expect(page.get_by_role("link", name="Log in with")).to_be_visible()
        site.issuer.status = 503
        provider._metadata = None
        await page.get_by_role("link", name="Log in with").click()
        await expect(page.get_by_role("alert")).to_contain_text("can't be used now")
        await page.get_by_label("Token").fill(STATIC_VIEWER)
        await page.get_by_role("button", name="Log in", exact=True).click()
        await expect(page.locator("h1")).to_contain_text("in quarantine")
