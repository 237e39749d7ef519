"""`python -m tests.demo.screenshot [FILE [NODES]]`: pictures of the page, from the demo.

It needs Debian's Chromium. The demo runs its story; the pictures show the moment at which a common
cause holds a third of the nodes: the begin of the page, and its table of nodes by state.
"""

import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from playwright.sync_api import expect, sync_playwright

from aggregator.demo import local
from tests.support.chromium import ARGUMENTS, CHROMIUM
from tests.support.waiting import PATIENCE

TARGET = Path(__file__).parents[2] / "docs" / "figures" / "status-page.png"
TABLE = "nodes-by-state.png"
SIZE = (1200, 795)
_NODES = 40


def main(argv: Sequence[str]) -> int:
    """Write the picture; returns the exit status. Raises as `aggregator.demo.local.run`."""
    if not Path(CHROMIUM).exists():
        print(f"screenshot: there is no {CHROMIUM}: tests/setup-debian.sh installs it")
        return 2
    target = Path(argv[0]) if argv else TARGET
    table = target.with_name(TABLE)
    local.run(
        count=int(argv[1]) if len(argv) > 1 else _NODES,
        once=True,
        at_cause=lambda url: photograph(url, target, "held back", table=table),
    )
    for file in (target, table):
        print(f"{file}: {file.stat().st_size / 1024:.0f} KiB")
    return 0


def photograph(url: str, target: Path, headline: str, *, table: Path | None = None) -> None:
    """Save the begin of the page at `url` as a browser shows it, as a PNG of `SIZE` pixels, once
    the page's headline has this text. ``table``: a picture of its table of nodes by state, too.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        with closing(browser):
            page = browser.new_page(
                viewport={"width": SIZE[0], "height": SIZE[1]}, color_scheme="light"
            )
            page.set_default_timeout(1000 * PATIENCE)
            expect.set_options(timeout=1000 * PATIENCE)
            page.goto(url)
            expect(page.locator("#live")).to_have_text("live")
            expect(page.locator("h1")).to_contain_text(headline)
            page.screenshot(path=target)
            if table is not None:
                # This machine's own node, which has another name, is not part of the story.
                page.set_viewport_size({"width": 1440, "height": 1600})
                page.goto(f"{url}?q=sim-")
                expect(page.locator("#live")).to_have_text("live")
                page.locator("#states").screenshot(path=table)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
