"""The documentation site: built without a network, read in Debian's Chromium without one.

Each request of a page that leaves this machine is refused and fails the test.
"""

import functools
import http.server
import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, Route, expect, sync_playwright

from tests.site.site_builder import build
from tests.support.chromium import ARGUMENTS, CHROMIUM
from tests.support.present import present
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The root of a site with the version 1.2.3, and traces of an older and a later version."""
    root = tmp_path_factory.mktemp("site")
    for other in ("1.2.3-rc.1", "1.10.0"):
        (root / other / "docs").mkdir(parents=True)
        (root / other / "docs" / "README.html").write_text(f"<title>{other}</title>")
    done = build("--version", "1.2.3", "--output", str(root))
    assert done.returncode == 0, done.stderr
    return root


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """No access log among the tests' results."""


@dataclass
class Reader:
    """A page of a browser, and the requests that it made elsewhere."""

    page: Page
    root: str
    elsewhere: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    def open(self, path: str) -> None:
        self.page.goto(self.root + path)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if shutil.which(CHROMIUM) is None:
        reason = f"there is no {CHROMIUM}: tests/setup-debian.sh installs it"
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(reason)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        with closing(browser):
            yield browser


@pytest.fixture(scope="module")
def root(site: Path) -> Iterator[str]:
    """The URL at which the site is served."""
    handler = functools.partial(_Quiet, directory=str(site))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        server.server_close()


@pytest.fixture
def reader(browser: Browser, root: str) -> Iterator[Reader]:
    reader = Reader(browser.new_page(), root)
    reader.page.set_default_timeout(1000 * PATIENCE)
    expect.set_options(timeout=1000 * PATIENCE)

    def route(request: Route) -> None:
        if request.request.url.startswith(root):
            request.continue_()
        else:
            reader.elsewhere.append(request.request.url)
            request.abort()

    reader.page.route("**/*", route)
    reader.page.on("pageerror", lambda error: reader.complaints.append(str(error)))
    yield reader
    reader.page.close()
    assert reader.elsewhere == []
    assert reader.complaints == []


@pytest.mark.browser
def test_the_root_leads_to_the_newest_release(reader: Reader) -> None:
    reader.open("")
    expect(reader.page).to_have_title("1.10.0")


@pytest.mark.browser
def test_a_link_to_the_source_leads_to_the_page_and_its_section(reader: Reader) -> None:
    reader.open("1.2.3/docs/limits.md#cooldown")
    reader.page.wait_for_url("**/1.2.3/docs/limits.html#cooldown")
    expect(reader.page.locator("h2:visible", has_text="Cooldown")).to_be_in_viewport()


@pytest.mark.browser
def test_search_finds_a_section(reader: Reader) -> None:
    reader.open("1.2.3/docs/README.html")
    reader.page.get_by_placeholder("Search").fill("cooldown")
    reader.page.keyboard.press("Enter")
    found = reader.page.locator("#search-results li a[href*='limits.html#cooldown']")
    expect(found).to_be_visible()


@pytest.mark.browser
def test_options_are_shown_as_they_are_typed(reader: Reader) -> None:
    reader.open("1.2.3/docs/reference/commands.html")
    expect(reader.page.get_by_text("with --url, a token")).to_be_visible()


@pytest.mark.browser
def test_a_diagram_is_drawn_with_its_text(reader: Reader) -> None:
    reader.open("1.2.3/docs/replicas.html")
    diagram = reader.page.locator("figure.diagram svg")
    expect(diagram).to_be_visible()
    expect(diagram.get_by_text("gateway and controller")).to_be_visible()
    box = present(diagram.bounding_box())
    assert box["width"] > 300
    assert box["height"] > 200


@pytest.mark.browser
def test_the_list_of_versions_has_all_and_leads_to_them(reader: Reader) -> None:
    reader.open("1.2.3/docs/limits.html")
    versions = reader.page.get_by_label("Version")
    expect(versions.locator("option")).to_have_text(["1.10.0", "1.2.3", "1.2.3-rc.1"])
    expect(versions).to_have_value("1.2.3")
    versions.select_option("1.2.3-rc.1")
    expect(reader.page).to_have_title("1.2.3-rc.1")


def test_a_page_is_there_for_each_document(site: Path) -> None:
    root = Path(__file__).parents[2]
    pages = [page.relative_to(root) for page in (root / "docs").rglob("*.md")]
    assert len(pages) > 50
    assert [
        page for page in pages if not (site / "1.2.3" / page.with_suffix(".html")).exists()
    ] == []


def test_each_kind_of_mistake_fails_the_build(tmp_path: Path) -> None:
    docs = tmp_path / "tree" / "docs"
    docs.mkdir(parents=True)
    (docs / "README.md").write_text("# Pages\n## One\n| | |\n|---|---|\n| [a.md](a.md) | a |\n")
    (docs / "a.md").write_text(
        "# A\n[page](gone.md) [anchor](README.md#gone)\n\n```mermaid\nflowchart LR\n  a -->\n```\n"
    )
    (docs / "lost.md").write_text("# Lost\n")
    done = build("--source", str(docs.parent), "--output", str(tmp_path / "site"))
    assert done.returncode == 1
    assert "'docs/gone'" in done.stderr or "gone.md" in done.stderr
    assert "#gone" in done.stderr or "'gone'" in done.stderr
    assert "a.md:4: ERROR: Mermaid can't draw this diagram" in done.stderr
    assert "lost.md" in done.stderr
    assert not (tmp_path / "site" / "index.html").exists()


def test_a_version_that_is_no_name_is_refused(tmp_path: Path) -> None:
    done = build("--version", "../1.0", "--output", str(tmp_path))
    assert done.returncode == 2
    assert 'VERSION is "../1.0"; expected' in done.stderr
    assert "Traceback" not in done.stderr
