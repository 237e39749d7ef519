"""Where alerts go and what was given up: on the page, in the API, the metrics and the command."""

import asyncio
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from aggregator.alerts.overview import AlertOverview, DeadDelivery, RouteState
from tests.support.aggregator_program import SICKBAY
from tests.support.fork_server import run_program
from tests.support.receiver import Receiver, status
from tests.support.text_files import text_file
from tests.web.support import Hands, Served, serving, small_fleet

OVERVIEW = AlertOverview(
    routes=(
        RouteState("pages", "pagerduty", "oncall", 2, 40, 3, 7, 1, "HTTP 503"),
        RouteState("room", "slack", "chat", 0, 12, 0, 0, 0, ""),
    ),
    dead=(
        DeadDelivery("pages", "k-1-ab", 1_750_000_000.0, "HTTP 400: <b>bad</b>", 7, ("n1: ill",)),
    ),
)


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    hands = Hands()
    async with serving(small_fleet(hands), hands.clocks(), alerts=OVERVIEW) as one:
        yield one


def sickbay(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return run_program(SICKBAY, arguments, limit=300)


async def test_dead_letters_are_on_the_page_in_the_api_and_in_the_metrics(served: Served) -> None:
    answer = await served.json("/api/v1/alerts")
    assert [one["name"] for one in answer["items"]] == ["pages", "room"]
    assert answer["items"][0]["problem"] == "HTTP 503"
    [letter] = answer["dead_letters"]
    assert (letter["route"], letter["alerts"], letter["summaries"]) == ("pages", 7, ["n1: ill"])
    assert letter["at"].startswith("2025-06-15T15:06:40")
    assert (await served.json("/api/v1/fleet"))["alerts_given_up"] == 1
    assert "Alerts were given up" in await served.text("/")
    metrics = await served.text("/metrics")
    assert 'sickbay_alerts_dead_letters{route="pages"} 1.0' in metrics
    assert 'sickbay_alerts_delivered_total{route="pages"} 40.0' in metrics
    assert 'sickbay_alerts_attempts_failed_total{route="pages"} 3.0' in metrics
    assert 'sickbay_alerts_given_up_total{route="pages"} 7.0' in metrics


async def test_the_command_lists_routes_and_dead_letters(served: Served) -> None:
    done = await asyncio.to_thread(sickbay, "alert", "list", "--url", served.url)
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.split("\n\n")
    assert "pages  pagerduty oncall  2        40         7         1             HTTP 503" in first
    assert "HTTP 400: <b>bad</b>" in second
    at_a_glance = await asyncio.to_thread(sickbay, "status", "--url", served.url)
    assert "DELIVERIES OF ALERTS WERE GIVEN UP (sickbay alert list): 1" in at_a_glance.stdout


def configuration(folder: Path, receiver: Receiver) -> Path:
    (folder / "url").write_text(receiver.url("/T0PSECRET"))
    (folder / "key").write_text("0" * 32)
    return text_file(
        folder / "aggregator.yaml",
        f"""cluster: {{kind: local}}
identity: {{kind: insecure-trust-hello}}
listen: {{grpc: "127.0.0.1:9443", web: "127.0.0.1:9080"}}
alerts:
  receivers:
    - {{name: chat, slack: {{url_file: url}}}}
    - {{name: oncall, pagerduty: {{routing_key_file: key, url: "{receiver.url("/v2")}"}}}}
  routes:
    - {{name: room, receiver: chat, resolved: false}}
    - {{name: pages, receiver: oncall}}
""",
    )


async def test_a_route_is_tested_with_an_alert_and_its_end(tmp_path: Path) -> None:
    async with Receiver() as receiver:
        config = ("--config", str(configuration(tmp_path, receiver)))
        done = await asyncio.to_thread(sickbay, "alert", "test", "pages", *config)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout == ("route pages (pagerduty oncall) took the test alert and its end\n")
        trigger, resolve = (request.json for request in receiver.requests)
        assert (trigger["event_action"], resolve["event_action"]) == ("trigger", "resolve")
        assert trigger["dedup_key"] == resolve["dedup_key"]
        assert trigger["payload"]["severity"] == "info"
        receiver.answer = status(403)
        done = await asyncio.to_thread(sickbay, "alert", "test", "room", *config)
        assert done.returncode == 1
        assert "route room (slack chat): HTTP 403: the receiver's own words" in done.stderr
        assert "T0PSECRET" not in done.stderr
        done = await asyncio.to_thread(sickbay, "alert", "test", "rom", *config)
        assert done.returncode == 2
        assert 'no route is named "rom"' in done.stderr
        assert "expected one of: room, pages" in done.stderr
        done = await asyncio.to_thread(sickbay, "alert", "test", "room", "--config", "/no/such")
        assert (done.returncode, "can't be read" in done.stderr) == (2, True)
