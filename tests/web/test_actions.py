"""A person's actions by page and API, on a local cluster's real file."""

import asyncio
import json
import logging
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from aggregator.access.gate import AccessGate
from aggregator.access.identity import AccessRefused, UserIdentity
from aggregator.access.static_tokens import StaticTokens
from aggregator.cli.actions import ClusterActions
from aggregator.cli.local_actions import local_actions
from aggregator.cluster.local.place import FilePlace
from aggregator.cluster.local.store import LocalStore
from aggregator.cluster.operations import begun_status, spec_of
from aggregator.cluster.port import Action, QuarantineSpec, RepairAttempt, RepairState
from aggregator.cluster.users import Access
from aggregator.events import EventKind, Transition
from aggregator.quarantine.decide.operator_requests import EXEMPT, PIN
from aggregator.web.access_guard import PageAccess
from aggregator.web.action_endpoints import ActionSetup
from aggregator.web.person_actions import ACTIONS
from tests.support.present import present
from tests.support.waiting import PATIENCE
from tests.web.support import Hands, Served, running_clocks, serving, small_fleet

VIEWER, OPERATOR = "v" * 22, "o" * 22


@dataclass
class Site:
    """A page on which people act, its cluster's file, and the transitions that were recorded."""

    served: Served
    store: LocalStore
    happened: list[Transition] = field(default_factory=list)

    async def ask(
        self, path: str, body: object = None, *, token: str = OPERATOR, **headers: str
    ) -> tuple[int, Any]:
        """POST /api/v1/PATH as an operator: status and answer."""
        named = {"Content-Type": "application/json", "Authorization": f"Bearer {token}"}
        named |= {key.replace("_", "-"): value for key, value in headers.items()}
        async with self.served.session.post(
            f"{self.served.url}/api/v1/{path}",
            data=json.dumps(body if body is not None else {}),
            headers={key: value for key, value in named.items() if value},
        ) as answer:
            return answer.status, json.loads(await answer.text())

    def quarantines(self, node: str = "node-1") -> None:
        spec = QuarantineSpec(Action.CORDON, "gpu", "xid:79", requester="sickbay")
        self.store.create_quarantine(node, spec, finalizer=False)

    def orders_a_reboot(self, node: str = "node-1") -> None:
        orders_a_reboot(self.store, node)


def orders_a_reboot(store: LocalStore, node: str) -> None:
    """The node's quarantine has an open order."""
    found = present(store.quarantine(node))
    name = f"{found.uid}-1-reboot"
    order = RepairAttempt(name, "reboot", RepairState.ORDERED, began_at=1.8e9)
    made = store.operations.create(order.operation, spec_of(found, order))
    store.operations.write_status(made, begun_status(found, order, 1))


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    (tmp_path / "tokens").write_text(f"{VIEWER},dashboards,viewer\n{OPERATOR},hall-2,operator\n")
    tokens = StaticTokens(tmp_path / "tokens")
    gate = AccessGate([tokens], tokens, anonymous=False, actions=True)
    database = tmp_path / "cluster.db"
    store = LocalStore(database, wall=time.time)
    happened = list[Transition]()

    @contextmanager
    def on_file(dry_run: bool) -> Iterator[ClusterActions]:  # noqa: FBT001
        with local_actions(FilePlace(database), how="", dry_run=dry_run) as actions:
            yield actions

    setup = ActionSetup(on_file, happened.append, time.time)
    async with serving(
        small_fleet(Hands()), running_clocks(), access=PageAccess(gate), actions=setup
    ) as served:
        yield Site(served, store, happened)
    store.close()


async def test_a_quarantine_carries_the_persons_name(site: Site) -> None:
    status, told = await site.ask("nodes/node-1/quarantine", {"reason": "fan 3 is dead"})
    assert (status, told["done"], told["user"]) == (200, True, "hall-2")
    found = present(site.store.quarantine("node-1"))
    assert (found.spec.requester, found.spec.kind) == ("hall-2", "manual")
    assert (found.spec.action, found.spec.reason) == (Action.CORDON, "fan 3 is dead")
    [event] = site.happened
    assert event.kind is EventKind.REQUESTED
    assert event.summary == "node-1: quarantine requested by hall-2: fan 3 is dead"


async def test_a_page_on_which_people_act_is_not_called_read_only(site: Site) -> None:
    text = await site.served.text("/", Authorization=f"Bearer {VIEWER}")
    assert "Read only" not in text
    async with serving(small_fleet(Hands()), running_clocks()) as other:
        assert "Read only" in await other.text("/")


async def test_a_release_is_asked_for_and_recorded_with_the_name(site: Site) -> None:
    site.quarantines()
    status, told = await site.ask("nodes/node-1/release")
    assert status == 200
    assert "release requested" in told["message"]
    found = site.store.quarantine("node-1")
    assert found is None or found.deleting
    assert site.happened[0].details == {"action": "release", "user": "hall-2"}


async def test_a_release_names_an_open_order_and_goes_on_when_the_person_says_so(
    site: Site,
) -> None:
    site.quarantines()
    site.orders_a_reboot()
    status, told = await site.ask("nodes/node-1/release")
    assert status == 428
    assert "node-1: reboot was ordered at 2027-01-15T08:00:00Z and has no end yet" in told["error"]
    assert '"cancel_order": true' in told["hint"]
    assert site.happened == []
    assert site.store.quarantine("node-1") is not None
    status, told = await site.ask("nodes/node-1/release", {"dry_run": True})
    assert (status, "reboot was ordered" in told["message"]) == (200, True)
    assert site.store.quarantine("node-1") is not None
    status, told = await site.ask("nodes/node-1/release", {"cancel_order": True})
    assert (status, "release requested" in told["message"]) == (200, True)
    found = site.store.quarantine("node-1")
    assert found is None or found.deleting


async def test_a_release_of_a_node_that_is_not_in_quarantine_is_a_plain_answer(site: Site) -> None:
    site.quarantines("node-2")
    status, told = await site.ask("nodes/node-1/release")
    assert status == 409
    assert told["error"] == "node-1 is not in quarantine: it has no quarantine to release"
    assert site.happened == []
    assert site.store.quarantine("node-2") is not None


async def test_a_read_of_an_action_is_told_to_be_a_post(site: Site) -> None:
    url = f"{site.served.url}/api/v1/stop"
    headers = {"Authorization": f"Bearer {OPERATOR}"}
    async with site.served.session.get(url, headers=headers) as answer:
        assert (answer.status, answer.headers["Allow"]) == (405, "POST")
        assert "Expected POST" in await answer.text()


async def test_a_second_quarantine_is_a_plain_answer(site: Site) -> None:
    site.quarantines()
    status, told = await site.ask("nodes/node-1/quarantine", {"reason": "x", "action": "drain"})
    assert status == 409
    assert "is in quarantine already" in told["error"]


async def test_annotations_carry_reason_and_name_until_they_are_taken_back(site: Site) -> None:
    assert (await site.ask("nodes/n/exempt", {"reason": "RMA", "duration": "8h"}))[0] == 200
    assert (await site.ask("nodes/n/pin", {"reason": "look"}))[0] == 200
    found = site.store.node("n").annotations
    assert found[EXEMPT].endswith(" RMA (hall-2)")
    assert found[PIN] == "look (hall-2)"
    assert (await site.ask("nodes/n/unexempt"))[0] == 200
    assert (await site.ask("nodes/n/unpin"))[0] == 200
    assert not {EXEMPT, PIN} & site.store.node("n").annotations.keys()


async def test_the_stop_switch_is_set_with_the_name_and_lifted(site: Site) -> None:
    assert (await site.ask("stop", {"reason": "power test"}))[0] == 200
    assert site.store.stopped() == "power test (hall-2)"
    status, told = await site.ask("resume")
    assert status == 200
    assert "power test" in told["message"]
    assert site.store.stopped() == ""


async def test_a_dry_run_writes_nothing(site: Site) -> None:
    site.quarantines("node-2")
    for path, body in (
        ("nodes/node-1/quarantine", {"reason": "x"}),
        ("nodes/node-2/release", {}),
        ("stop", {"reason": "x"}),
    ):
        status, told = await site.ask(path, {**body, "dry_run": True})
        assert (status, told["done"], told["dry_run"]) == (200, False, True)
    assert site.store.quarantine("node-1") is None
    assert site.store.quarantine("node-2") is not None
    assert site.store.stopped() == ""
    assert site.happened == []
    assert (await site.ask("nodes/node-1/release", {"dry_run": True}))[0] == 409


@pytest.mark.parametrize("action", list(ACTIONS.values()), ids=list(ACTIONS))
async def test_each_action_needs_its_right_and_identity(site: Site, action: Any) -> None:
    path = action.path.removeprefix("/api/v1/").replace("{name}", "node-1")
    body = {"reason": "x", "duration": "1h"}
    assert (await site.ask(path, body, token=VIEWER))[0] == 403
    assert (await site.ask(path, body, token="x" * 22))[0] == 401
    assert (await site.ask(path, body, Authorization=""))[0] == 401
    assert site.store.quarantine("node-1") is None
    assert site.store.stopped() == ""
    assert site.happened == []


@pytest.mark.parametrize(
    ("path", "body", "said"),
    [
        ("nodes/n/quarantine", {}, "reason: it is empty"),
        ("nodes/n/quarantine", {"reason": " \n"}, "reason: it is empty"),
        ("nodes/n/quarantine", {"reason": "x", "action": "observe"}, "no quarantine"),
        ("nodes/n/quarantine", {"reason": "x", "action": "reboot"}, '"cordon" or "drain"'),
        ("nodes/n/exempt", {"reason": "x"}, "duration"),
        ("nodes/n/exempt", {"reason": "x", "duration": "-1h"}, "duration"),
        ("nodes/n/pin", {"reason": "x", "more": 1}, "more"),
        ("nodes/n%5B1-2048%5D/quarantine", {"reason": "x"}, "is no node's name"),
        ("nodes/n2,n3/release", {}, "is no node's name"),
        ("nodes/--help/quarantine", {"reason": "x"}, "is no node's name"),
        ("nodes/a%0D%0Ab/pin", {"reason": "x"}, "is no node's name"),
        ("stop", {"reason": 1}, "reason"),
        ("stop", [], "object"),
    ],
)
async def test_a_request_that_makes_no_sense_is_refused(
    site: Site, path: str, body: object, said: str
) -> None:
    status, told = await site.ask(path, body)
    assert status == 400
    assert said in told["error"]
    assert site.happened == []


async def test_slurms_word_for_all_nodes_is_no_nodes_name_without_kubernetes(site: Site) -> None:
    status, told = await site.ask("nodes/ALL/quarantine", {"reason": "x"})
    assert status >= 400
    assert "means every node to Slurm" in told["error"]
    assert site.store.quarantines() == []


async def test_text_of_a_person_is_one_line_and_bounded(site: Site) -> None:
    status, _ = await site.ask("nodes/n/pin", {"reason": "a\nb\x1b[31m" + "c" * 3000})
    assert status == 200
    value = site.store.node("n").annotations[PIN]
    assert "\n" not in value
    assert "\x1b" not in value
    assert len(value) < 1200
    assert (await site.ask("stop", {"reason": "x" * 20_000}))[0] == 413


COOKIE = {"Authorization": "", "Cookie": f"sickbay-token={OPERATOR}"}


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 403),
        ({"X_Sickbay_Action": "1"}, 200),
        ({"X_Sickbay_Action": "1", "Sec_Fetch_Site": "same-origin"}, 200),
        ({"X_Sickbay_Action": "1", "Sec_Fetch_Site": "cross-site"}, 403),
        ({"X_Sickbay_Action": "1", "Sec_Fetch_Site": "same-site"}, 403),
        ({"X_Sickbay_Action": "1", "Origin": "https://evil.example"}, 403),
        ({"X_Sickbay_Action": "1", "Origin": "null"}, 403),
        ({"X_Sickbay_Action": "1", "Content_Type": "text/plain"}, 415),
    ],
)
async def test_another_site_can_not_act_with_a_persons_cookie(
    site: Site, headers: dict[str, str], status: int
) -> None:
    found, _ = await site.ask("stop", {"reason": "x"}, **(COOKIE | headers))
    assert found == status
    assert bool(site.store.stopped()) is (status == 200)


async def test_actions_are_off_unless_the_configuration_has_them(
    site: Site, tmp_path: Path
) -> None:
    tokens = StaticTokens(tmp_path / "tokens")
    for gate in (None, AccessGate([tokens], tokens, anonymous=True)):
        async with serving(
            small_fleet(Hands()), running_clocks(), access=PageAccess(gate)
        ) as served:
            status, told = await Site(served, site.store).ask("stop", {"reason": "x"})
            assert status == 403
            assert told["error"] == "this page is read only"
            reader = json.loads(await served.text("/api/v1/access"))
            expected = {"user": "", "how": "", "actions": False, "may": [], "trouble": ""}
            assert reader == expected
    assert site.store.stopped() == ""


async def test_a_reader_is_told_the_actions_that_they_may_ask_for(site: Site) -> None:
    async def reader(token: str, query: str = "") -> Any:
        headers = {"Authorization": f"Bearer {token}"}
        return json.loads(await site.served.text(f"/api/v1/access{query}", 200, **headers))

    operator = await reader(OPERATOR, "?node=node-1")
    assert operator["user"] == "hall-2"
    assert operator["may"] == ["quarantine", "release", "exempt", "unexempt", "pin", "unpin"]
    assert (await reader(OPERATOR))["may"] == ["stop", "resume"]
    assert (await reader(VIEWER, "?node=node-1"))["may"] == []


async def test_a_name_that_no_node_can_have_has_no_actions_and_an_unknown_parameter_is_refused(
    site: Site,
) -> None:
    url, headers = f"{site.served.url}/api/v1/access", {"Authorization": f"Bearer {OPERATOR}"}
    async with site.served.session.get(f"{url}?node=a,b", headers=headers) as answer:
        assert (answer.status, (await answer.json())["may"]) == (200, [])
    async with site.served.session.get(f"{url}?nod=node-1", headers=headers) as answer:
        assert (answer.status, (await answer.json())["hint"]) == (400, 'did you mean "node"?')


def audited(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return [vars(one) for one in caplog.records if vars(one).get("event") == "access.action"]


async def test_a_cluster_that_can_not_be_used_is_a_plain_answer_and_in_the_log(
    site: Site, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="sickbay.access")
    (tmp_path / "cluster.db").unlink()
    status, told = await site.ask("stop", {"reason": "x"})
    assert (status, "there is no database" in told["error"]) == (409, True)
    assert "there is no database" in audited(caplog)[0]["outcome"]


async def test_an_action_under_way_when_the_replica_stops_is_in_the_log(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="sickbay.access")
    setup = present(site.served.web._actions._setup)
    begun, go_on = threading.Event(), threading.Event()

    @contextmanager
    def slow(dry_run: bool) -> Iterator[ClusterActions]:  # noqa: FBT001
        begun.set()
        go_on.wait(PATIENCE)
        with setup.open(dry_run) as actions:
            yield actions

    site.served.web._actions._setup = replace(setup, open=slow)
    asked = asyncio.create_task(site.ask("stop", {"reason": "x"}))
    try:
        await asyncio.to_thread(begun.wait, PATIENCE)
        await site.served.web.close()
    finally:
        go_on.set()
    with pytest.raises(aiohttp.ClientError):
        await asked
    [line] = audited(caplog)
    assert (line["user"], line["action"]) == ("hall-2", "stop")
    assert line["outcome"] == "not known: the aggregator stops"


async def test_one_review_of_a_right_serves_each_node(site: Site, tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text(f"{OPERATOR},hall-2,operator\n")
    tokens, reviewed = StaticTokens(tmp_path / "tokens"), set[Access]()

    class Reviews:
        async def allows(self, identity: UserIdentity, access: Access) -> bool:
            reviewed.add(access)
            if access.verb == "patch" and self.away:
                raise AccessRefused(503, "away", "the API server is away", "Try again later.")
            return access.verb != "create"

        away = False

    reviews, headers = Reviews(), {"Authorization": f"Bearer {OPERATOR}"}
    gate = AccessGate([tokens], reviews, anonymous=False, actions=True)
    setup, access = site.served.web._actions._setup, PageAccess(gate)
    async with serving(small_fleet(Hands()), running_clocks(), access=access, actions=setup) as one:
        for number in range(1, 9):
            told = json.loads(await one.text(f"/api/v1/access?node=n-{number}", 200, **headers))
            assert told["may"] == ["release", "exempt", "unexempt", "pin", "unpin"]
        status, _ = await Site(one, site.store).ask("nodes/node-1/release")
        assert status == 409  # it is in no quarantine
        reviews.away = True
        told = json.loads(await one.text("/api/v1/access?node=n-1", 200, **headers))
        assert (told["user"], told["may"]) == ("hall-2", [])
        assert told["trouble"] == "the API server is away. Try again later."
    assert not [found for found in reviewed if found.name]


async def test_each_action_is_in_the_log_with_the_person_and_the_outcome(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="sickbay.access")
    await site.ask("nodes/node-1/quarantine", {"reason": "fan"})
    await site.ask("nodes/node-3/release")
    await site.ask("stop", {"reason": "x"}, token=VIEWER)
    lines = audited(caplog)
    assert [(one["user"], one["action"], one["node"]) for one in lines] == [
        ("hall-2", "quarantine", "node-1"),
        ("hall-2", "release", "node-3"),
        ("dashboards", "stop", ""),
    ]
    assert lines[0]["outcome"] == "done"
    assert "not in quarantine" in lines[1]["outcome"]
    assert lines[2]["outcome"].startswith("refused: ")
    assert OPERATOR not in caplog.text
