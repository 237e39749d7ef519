"""Maintenance that a cloud has planned: three protocols, and servers that are slow, mad or gone."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nodeagent.checks import maintenance
from nodeagent.checks.base import Off
from nodeagent.model import Status
from nodeagent.sources import cloud_events
from tests.agent.clouds import REBALANCE, SCHEDULED, SPOT, Aws, Azure, Gcp
from tests.agent.http_server import Answer, Request, response, serving
from tests.agent.machines import made_up, observations, options, sources, verdicts

OK = {"": (Status.OK, "")}
CLOUDS: dict[str, Callable[[], Answer]] = {"azure": Azure, "aws": Aws, "gcp": Gcp}


def check_of(root: Path, provider: str, url: str) -> maintenance.Maintenance:
    settings = options(maintenance.SPEC, provider=provider, endpoint=url)
    return maintenance.build(sources(made_up(root)), settings)


def planned(*kinds: str) -> dict[str, tuple[Status, str]]:
    return OK | {kind: (Status.DEGRADED, kind) for kind in kinds}


async def test_without_a_provider_nobody_is_asked(tmp_path: Path) -> None:
    check = maintenance.build(sources(made_up(tmp_path)), options(maintenance.SPEC))
    assert isinstance(await check.run_check(), Off)


@pytest.mark.parametrize("provider", CLOUDS)
async def test_nothing_planned_is_ok(tmp_path: Path, provider: str) -> None:
    async with serving(CLOUDS[provider]()) as url:
        check = check_of(tmp_path, provider, url)
        assert verdicts(await check.run_check()) == OK
        assert verdicts(await check.run_check()) == OK


# -- Azure ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "component"),
    [
        ("Freeze", "freeze"),
        ("Reboot", "reboot"),
        ("Redeploy", "redeploy"),
        ("Preempt", "preempt"),
        ("Terminate", "terminate"),
        ("Something New/2", "something-new-2"),
        ("???", "other"),
    ],
)
async def test_azure_every_kind_of_event(tmp_path: Path, kind: str, component: str) -> None:
    cloud = Azure()
    cloud.plan(kind, "gpus_3", "gpus_4")
    async with serving(cloud) as url:
        found = observations(await check_of(tmp_path, "azure", url).run_check())
    assert found[component].status is Status.DEGRADED
    assert "not before Mon, 11 Apr 2022 22:26:58 GMT" in found[component].message


async def test_azure_events_of_other_machines_are_not_ours(tmp_path: Path) -> None:
    cloud = Azure(name="gpus_3")
    cloud.plan("Redeploy", "gpus_33", "gpus_4")
    cloud.plan("Reboot", "GPUS_3")
    async with serving(cloud) as url:
        assert verdicts(await check_of(tmp_path, "azure", url).run_check()) == planned("reboot")


async def test_azure_an_event_that_has_started_says_so(tmp_path: Path) -> None:
    cloud = Azure()
    cloud.plan("Freeze", "gpus_3", status="Started")
    async with serving(cloud) as url:
        found = observations(await check_of(tmp_path, "azure", url).run_check())
    assert found["freeze"].message.startswith("freeze now: Host server")


async def test_azure_two_events_of_a_kind_are_one_component(tmp_path: Path) -> None:
    cloud = Azure()
    cloud.plan("Reboot", "gpus_3", EventId="first")
    cloud.plan("Reboot", "gpus_3", EventId="second")
    async with serving(cloud) as url:
        found = observations(await check_of(tmp_path, "azure", url).run_check())
    assert "first" in found["reboot"].message
    assert "second" in found["reboot"].message


@pytest.mark.parametrize("name", ["", "<html>", "a b"])
async def test_azure_a_machine_without_a_name_cannot_tell_its_events(
    tmp_path: Path, name: str
) -> None:
    """With an empty name every event would silently be counted as another machine's."""
    cloud = Azure(name=name)
    cloud.plan("Reboot", "gpus_3")
    async with serving(cloud) as url:
        found = verdicts(await check_of(tmp_path, "azure", url).run_check())
    assert found == {"": (Status.UNKNOWN, "garbled")}


@pytest.mark.parametrize("resources", ["gpus_3", None, [3], {"gpus_3": 1}])
async def test_azure_resources_that_are_no_list_of_names(tmp_path: Path, resources: object) -> None:
    cloud = Azure()
    cloud.plan("Reboot", Resources=resources)
    async with serving(cloud) as url:
        found = verdicts(await check_of(tmp_path, "azure", url).run_check())
    assert found == {"": (Status.UNKNOWN, "garbled")}


# -- AWS -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "component"),
    [
        ("instance-reboot", "reboot"),
        ("system-reboot", "reboot"),
        ("system-maintenance", "maintenance"),
        ("instance-retirement", "terminate"),
        ("instance-stop", "stop"),
        ("instance-teleport", "instance-teleport"),
    ],
)
async def test_aws_every_kind_of_scheduled_event(tmp_path: Path, code: str, component: str) -> None:
    cloud = Aws()
    cloud.plan(code)
    async with serving(cloud) as url:
        found = observations(await check_of(tmp_path, "aws", url).run_check())
    assert found[component].status is Status.DEGRADED
    assert "21 Jan 2019 09:00:43 GMT" in found[component].message


@pytest.mark.parametrize("state", ["canceled", "completed"])
async def test_aws_an_event_that_is_over_is_none(tmp_path: Path, state: str) -> None:
    cloud = Aws()
    cloud.plan("system-reboot", state)
    async with serving(cloud) as url:
        assert verdicts(await check_of(tmp_path, "aws", url).run_check()) == OK


async def test_aws_spot_notice_and_rebalance_advice(tmp_path: Path) -> None:
    cloud = Aws()
    cloud.kept[SPOT] = {"action": "terminate", "time": "2017-09-18T08:22:00Z"}
    cloud.kept[REBALANCE] = {"noticeTime": "2020-10-27T08:22:00Z"}
    async with serving(cloud) as url:
        found = observations(await check_of(tmp_path, "aws", url).run_check())
    assert set(found) == {"", "preempt", "rebalance"}
    assert found["preempt"].message == "spot capacity goes: terminate at 2017-09-18T08:22:00Z"


async def test_aws_no_scheduled_key_at_all_is_nothing_planned(tmp_path: Path) -> None:
    async with serving(Aws(kept={})) as url:
        assert verdicts(await check_of(tmp_path, "aws", url).run_check()) == OK


async def test_aws_one_token_serves_until_it_expires(tmp_path: Path) -> None:
    cloud = Aws()
    async with serving(cloud) as url:
        check = check_of(tmp_path, "aws", url)
        await check.run_check()
        await check.run_check()
        assert cloud.tokens_given == 1
        cloud.valid.clear()
        cloud.plan("system-reboot")
        assert verdicts(await check.run_check()) == planned("reboot")
        assert cloud.tokens_given == 2


async def test_aws_a_service_that_refuses_its_own_tokens_is_asked_no_more_than_twice(
    tmp_path: Path,
) -> None:
    cloud = Aws(gives_dead_tokens=True)
    async with serving(cloud) as url:
        found = verdicts(await check_of(tmp_path, "aws", url).run_check())
    assert found == {"": (Status.UNKNOWN, "bad-status")}
    assert cloud.tokens_given == 2


async def test_aws_where_the_metadata_service_is_turned_off(tmp_path: Path) -> None:
    async with serving(lambda _: response("", "403 Forbidden")) as url:
        found = observations(await check_of(tmp_path, "aws", url).run_check())[""]
    assert (found.status, found.reason) == (Status.UNKNOWN, "bad-status")
    assert found.message == "session token: status 403"


@pytest.mark.parametrize("token", ["", "two\r\nX-Evil: lines", "\x00\x01", "käse"])
async def test_aws_a_token_that_is_none_never_becomes_a_header(tmp_path: Path, token: str) -> None:
    asked: list[Request] = []

    def mad(request: Request) -> bytes:
        asked.append(request)
        return response(token)

    async with serving(mad) as url:
        found = verdicts(await check_of(tmp_path, "aws", url).run_check())
    assert found == {"": (Status.UNKNOWN, "garbled")}
    assert len(asked) == 1


# -- GCP -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("event", "component"),
    [
        ("MIGRATE_ON_HOST_MAINTENANCE", "freeze"),
        ("TERMINATE_ON_HOST_MAINTENANCE", "terminate"),
        ("SOMETHING_NEW", "something-new"),
    ],
)
async def test_gcp_every_event(tmp_path: Path, event: str, component: str) -> None:
    async with serving(Gcp(event=event)) as url:
        assert verdicts(await check_of(tmp_path, "gcp", url).run_check()) == planned(component)


async def test_gcp_preemption(tmp_path: Path) -> None:
    async with serving(Gcp(preempted="TRUE")) as url:
        assert verdicts(await check_of(tmp_path, "gcp", url).run_check()) == planned("preempt")


#: As the cloud's own pages show it, and as its API writes the same.
WINDOW = {
    "can_reschedule": "true",
    "latest_window_start_time": "2024-12-01T19:00:01Z",
    "maintenance_reasons": ["PLANNED_UPDATE", "PLANNED_NETWORK_UPDATE"],
    "maintenance_status": "PENDING",
    "type": "SCHEDULED",
    "window_end_time": "2024-12-01T21:00:01Z",
    "window_start_time": "2024-12-01T19:00:01Z",
}
CAMEL = {
    "canReschedule": False,
    "maintenanceStatus": "ONGOING",
    "type": "UNSCHEDULED",
    "windowEndTime": "2024-11-01T22:00:00Z",
    "windowStartTime": "2024-11-01T19:00:00Z",
}


@pytest.mark.parametrize(
    ("window", "words"),
    [
        (
            WINDOW,
            (
                "SCHEDULED maintenance from 2024-12-01T19:00:01Z, until 2024-12-01T21:00:01Z; "
                "it can be begun sooner, by the cloud's API"
            ),
        ),
        (CAMEL, "UNSCHEDULED maintenance now, until 2024-11-01T22:00:00Z"),
        (
            {"startTime": "2024-11-01T19:00:00Z"},
            "planned maintenance from 2024-11-01T19:00:00Z, until an unknown time",
        ),
    ],
    ids=["as its pages show it", "as its api writes it", "a start alone"],
)
async def test_gcp_a_window_that_is_days_away(
    tmp_path: Path, window: dict[str, object], words: str
) -> None:
    async with serving(Gcp(upcoming=json.dumps(window))) as url:
        report = await check_of(tmp_path, "gcp", url).run_check()
    assert verdicts(report) == planned("maintenance")
    assert observations(report)["maintenance"].message == words


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ("NONE", "200 OK"),
        ('"NONE"', "200 OK"),
        ("{}", "200 OK"),
        ('{ "error": "no notifications have been received yet, try again later" }', "200 OK"),
        ('{ "error": "no notifications have been received yet, try again later" }', "503 Busy"),
        (json.dumps(WINDOW | {"maintenance_status": "COMPLETE"}), "200 OK"),
    ],
)
async def test_gcp_no_window_in_each_way_that_it_is_told(
    tmp_path: Path, body: str, status: str
) -> None:
    async with serving(Gcp(upcoming=body, upcoming_status=status)) as url:
        assert verdicts(await check_of(tmp_path, "gcp", url).run_check()) == OK


@pytest.mark.parametrize(
    ("body", "status", "reason"),
    [
        ('["some event"]', "200 OK", "garbled"),
        ("<html>", "200 OK", "garbled"),
        ('{"what": "else"}', "200 OK", "garbled"),
        ("", "503 Busy", "bad-status"),
    ],
)
async def test_gcp_what_is_no_answer_about_windows_is_unknown(
    tmp_path: Path, body: str, status: str, reason: str
) -> None:
    async with serving(Gcp(upcoming=body, upcoming_status=status)) as url:
        found = verdicts(await check_of(tmp_path, "gcp", url).run_check())
    assert found == {"": (Status.UNKNOWN, reason)}


@pytest.mark.parametrize(
    "cloud",
    [Gcp(flavor={}), Gcp(event="<html>login</html>"), Gcp(event=""), Gcp(preempted="maybe")],
    ids=["no flavor", "a portal's page", "empty", "neither true nor false"],
)
async def test_gcp_an_answer_that_is_not_googles(tmp_path: Path, cloud: Gcp) -> None:
    async with serving(cloud) as url:
        found = verdicts(await check_of(tmp_path, "gcp", url).run_check())
    assert found == {"": (Status.UNKNOWN, "garbled")}


# -- all of them ---------------------------------------------------------------------------------


def reboot_planned(provider: str) -> tuple[Answer, str, Callable[[], None]]:
    """A cloud with one event; the event's kind; and a call that removes it."""
    match provider:
        case "azure":
            azure = Azure()
            azure.plan("Reboot", "gpus_3")
            return azure, "reboot", azure.events.clear
        case "aws":
            aws = Aws()
            aws.plan("instance-reboot")
            return aws, "reboot", aws.kept[SCHEDULED].clear
        case _:
            gcp = Gcp(event="MIGRATE_ON_HOST_MAINTENANCE")
            return gcp, "freeze", lambda: setattr(gcp, "event", "NONE")


@pytest.mark.parametrize("provider", CLOUDS)
async def test_an_event_that_is_over_goes(tmp_path: Path, provider: str) -> None:
    cloud, kind, take_away = reboot_planned(provider)
    async with serving(cloud) as url:
        check = check_of(tmp_path, provider, url)
        assert verdicts(await check.run_check()) == planned(kind)
        take_away()
        report = await check.run_check()
    assert verdicts(report) == OK


@pytest.mark.parametrize("provider", CLOUDS)
async def test_a_service_that_is_not_there_is_unknown(
    tmp_path: Path, provider: str, unused_tcp_port_factory: Callable[[], int]
) -> None:
    url = f"http://127.0.0.1:{unused_tcp_port_factory()}"
    found = verdicts(await check_of(tmp_path, provider, url).run_check())
    assert found == {"": (Status.UNKNOWN, "refused")}


@pytest.mark.parametrize("provider", CLOUDS)
async def test_a_service_that_hangs_is_unknown(
    tmp_path: Path, provider: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Azure's service hangs for up to two minutes when it is first asked."""
    monkeypatch.setattr(cloud_events, "_DEADLINE", 0.1)
    async with serving(lambda _: b"") as url:
        found = verdicts(await check_of(tmp_path, provider, url).run_check())
    assert found == {"": (Status.UNKNOWN, "timeout")}


@pytest.mark.parametrize("provider", CLOUDS)
async def test_a_redirect_is_not_followed(tmp_path: Path, provider: str) -> None:
    asked: list[str] = []

    def portal(request: Request) -> bytes:
        asked.append(request.path)
        return response("", "302 Found", Location="/login", Metadata_Flavor="Google")

    async with serving(portal) as url:
        found = verdicts(await check_of(tmp_path, provider, url).run_check())
    assert found == {"": (Status.UNKNOWN, "bad-status")}
    assert len(asked) == 1


def everywhere(provider: str, body: bytes) -> Answer:
    """A service that lets us in and then answers ``body`` to every request."""

    def answer(asked: Request) -> bytes:
        if "token" in asked.path:
            return response("token")
        if asked.path.startswith("/metadata/instance"):
            return response("gpus_3")
        return response(body, Metadata_Flavor="Google")

    return answer


@pytest.mark.parametrize("provider", CLOUDS)
@pytest.mark.parametrize(
    "body",
    [b"<html>", b"\xff\xfe\x00", b"null", b"7", b'"text"', b"[1]", b"[" * 60000, b'{"Events": {}}'],
    ids=lambda body: repr(body[:10]),
)
async def test_garbage_is_unknown_and_no_event(tmp_path: Path, provider: str, body: bytes) -> None:
    async with serving(everywhere(provider, body)) as url:
        found = verdicts(await check_of(tmp_path, provider, url).run_check())
    if (provider, body) == ("azure", b'{"Events": {}}'):
        assert found == OK  # an empty set of events, in an odd notation
    else:
        assert found == {"": (Status.UNKNOWN, "garbled")}


@pytest.mark.parametrize("provider", CLOUDS)
async def test_an_answer_without_an_end_is_cut(tmp_path: Path, provider: str) -> None:
    async with serving(everywhere(provider, b"[" + b" " * 1_000_000)) as url:
        found = verdicts(await check_of(tmp_path, provider, url).run_check())
    assert found == {"": (Status.UNKNOWN, "garbled")}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["Events", "EventType", "Resources", "Code", "State", "action"]),
            inner,
            max_size=3,
        )
    ),
    max_leaves=8,
)


@pytest.mark.parametrize("provider", ["azure", "aws"])
@given(document=JSON)
@settings(max_examples=60, deadline=None)
async def test_no_document_ends_the_look(
    provider: str, document: object, tmp_path_factory: pytest.TempPathFactory
) -> None:
    body = json.dumps(document).encode()
    async with serving(everywhere(provider, body)) as url:
        found = verdicts(await check_of(tmp_path_factory.getbasetemp(), provider, url).run_check())
    assert found[""] in (OK[""], (Status.UNKNOWN, "garbled"))


@pytest.mark.parametrize(
    "wrong", [{"provider": "Azure"}, {"endpoint": "http://metadata.google.internal"}]
)
def test_bad_settings_are_refused_when_configured(wrong: dict[str, str]) -> None:
    with pytest.raises(ValueError):
        options(maintenance.SPEC, **wrong)
