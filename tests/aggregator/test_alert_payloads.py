"""Each receiver's payload against its published schema, with hostile names and many nodes."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from email import message_from_bytes
from email.policy import SMTP
from pathlib import Path
from typing import Any

import aiosmtplib
import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aggregator.alerts.alert import Alert, AlertState, Ending, alert_of
from aggregator.alerts.message import Message, alerts_of, digest, headline, next_steps, sections
from aggregator.alerts.receivers import alertmanager, email, pagerduty, slack, teams, webhook
from aggregator.alerts.receivers.email import EmailOptions
from aggregator.alerts.templates import MessageTemplate, TemplateError, TemplateOptions
from aggregator.alerts.webhook import Delivery
from aggregator.events import EventKind, Transition
from tests.support.present import present

SCHEMAS = Path(__file__).parent / "schemas"
NOW = 1_750_000_000.0
KEY = "0123456789abcdef0123456789abcdef"
PLAIN = MessageTemplate(TemplateOptions(), lambda text: text)
MAIL = EmailOptions("mail.test:25", "sickbay@site.test", ("oncall@site.test", "b@site.test"))
PAGE = "https://sickbay.site.test"
HOSTILE = (
    "<script>alert(1)</script>",
    "<!channel> <@U123> &lt; *bold* `code` [link](http://evil.test)",
    "\x1b[31mred\x1b[0m\x07",
    "\u202egnp.exe\u2066",
    "line one\r\nBcc: all@evil.test\r\n\r\nbody",
    "\udc80 half a pair \0",
    "n" * 1_000_000,
    "",
)


VALIDATORS = {
    path.stem: jsonschema.Draft202012Validator(json.loads(path.read_text()))
    for path in SCHEMAS.glob("*.json")
}


def check(name: str, document: Any) -> None:
    VALIDATORS[name].validate(json.loads(json.dumps(document)))


def alert(
    node: str = "gpu-0117", kind: EventKind = EventKind.CORDONED, summary: str = "", **labels: str
) -> Alert:
    text = summary or f"{node}: cordoned: xid:79 (GPU has fallen off the bus)"
    details = {"pod": "jobs/a", "no label's name!": "x"}
    made = present(alert_of(Transition(NOW - 60, kind, node, text, f"inc-{node}", details)))
    return replace(made, labels=labels)


def over(one: Alert, delivery: str = "d-1", left: int = 0) -> Alert:
    ending = Ending(NOW, f"{one.node}: released: recovered", delivery, left)
    return replace(one, id=f"{one.id[:-1]}x", state=AlertState.RESOLVED, ending=ending)


def message(*alerts: Alert, page: str = PAGE, documentation_url: str = "") -> Message:
    return Message("route-17-0123456789ab", 1, alerts, "oncall", page, documentation_url)


def payloads(one: Message) -> Iterator[tuple[str, Any]]:
    """Of every receiver with a schema."""
    yield "slack", slack.render(one, PLAIN)
    yield "teams", teams.render(one, PLAIN)
    for event in pagerduty.render(one, KEY, PLAIN):
        yield "pagerduty", event
    yield "alertmanager", alertmanager.render(one, NOW)


def texts(document: Any) -> Iterator[str]:
    if isinstance(document, str):
        yield document
    elif isinstance(document, Mapping):
        for value in document.values():
            yield from texts(value)
    elif isinstance(document, Sequence):
        for value in document:
            yield from texts(value)


@pytest.mark.parametrize("kind", list(EventKind))
def test_every_kind_of_alert_and_its_end_fit_the_schemas(kind: EventKind) -> None:
    made = present(alert_of(Transition(NOW, kind, "n1", "n1: it is so", "i1", {"action": "drain"})))
    for one in (message(made), message(over(made)), message(made, over(made), page="")):
        for name, document in payloads(one):
            check(name, document)


def test_advice_of_equal_alerts_comes_once_and_none_of_alerts_that_ended() -> None:
    step = "Reboot the node. Causes and next steps: sickbay explain {}"
    made = [replace(alert(node), advice=step.format(node)) for node in ("n1", "n2", "n3")]
    assert next_steps(message(made[0])) == [step.format("n1")]
    assert next_steps(message(*made)) == [step.format("NODE")]
    assert next_steps(message(over(made[0]))) == []
    several = [replace(one, advice=f"{n} {one.advice}") for n, one in enumerate(made)]
    assert len(next_steps(message(*several, *made))) == 3
    for name, document in payloads(message(made[0])):
        assert any(step.format("n1") in shown for shown in texts(document)), name
    assert step.format("n1") in email.render(message(made[0]), MAIL, PLAIN, NOW).get_content()
    [sent] = webhook.render(message(made[0]))
    assert sent["advice"] == step.format("n1")


def test_the_schemas_refuse_what_the_receivers_refuse() -> None:
    good = dict(slack.render(message(alert()), PLAIN))
    with pytest.raises(jsonschema.ValidationError):
        check("slack", good | {"blocks": good["blocks"] * 30})
    event = dict(pagerduty.render(message(alert()), KEY, PLAIN)[0])
    with pytest.raises(jsonschema.ValidationError):
        check("pagerduty", event | {"payload": event["payload"] | {"severity": "fatal"}})
    with pytest.raises(jsonschema.ValidationError):
        check("pagerduty", {"routing_key": KEY, "event_action": "resolve"})
    card = json.loads(json.dumps(teams.render(message(alert()), PLAIN)))
    card["attachments"][0]["content"]["body"][0]["inlines"][0]["color"] = "red"
    with pytest.raises(jsonschema.ValidationError):
        check("teams", card)


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_names_are_bounded_and_shown_as_they_stand(text: str) -> None:
    """No control character, direction mark or half character gets out, and no megabyte."""
    named = alert(rack=text, pool=text)
    one = message(replace(named, node=text, nodes=(text,), summary=text, advice=text))
    for name, document in payloads(one):
        check(name, document)
        body = json.dumps(document).encode()
        assert len(body) < 28_000, name
        for shown in texts(document):
            assert "\x1b" not in shown
            assert "\u202e" not in shown
    mail = email.render(one, MAIL, PLAIN, NOW).as_bytes(policy=SMTP)
    assert len(mail) < 100_000
    read = message_from_bytes(mail, policy=SMTP)
    assert read["Bcc"] is None
    assert read["To"] == "oncall@site.test, b@site.test"
    assert read.get_content_type() == "text/plain"
    assert "\x1b" not in read.get_content()


@given(st.text(max_size=300), st.text(max_size=300))
@settings(max_examples=60)
def test_no_text_breaks_a_payload(node: str, summary: str) -> None:
    one = message(replace(alert(), node=node, nodes=(node,), summary=summary))
    for name, document in payloads(one):
        check(name, document)
    message_from_bytes(email.render(one, MAIL, PLAIN, NOW).as_bytes(policy=SMTP), policy=SMTP)


def test_slack_has_no_mention_link_or_format_that_a_node_chose() -> None:
    named = "<!channel> <http://evil.test|click> *x*"
    document = slack.render(message(alert(summary=named), page=""), PLAIN)
    kinds = {block["text"]["type"] for block in document["blocks"]}
    assert kinds == {"plain_text"}
    assert "<" not in document["text"]
    template = MessageTemplate(TemplateOptions(text="*{{ alerts[0].summary }}*"), slack.escape)
    [_, block] = slack.render(message(alert(summary=named), page=""), template)["blocks"]
    text = block["text"]["text"]
    assert text.startswith("*&lt;!channel&gt;")
    assert "<" not in text


def test_slacks_notification_has_the_values_of_a_title_escaped_once() -> None:
    named = message(alert(summary="a & <b>"))
    template = MessageTemplate(TemplateOptions(title="! {{ alerts[0].summary }}"), slack.escape)
    assert slack.render(named, template)["text"] == "! a &amp; &lt;b&gt;"
    assert slack.render(named, PLAIN)["text"] == "[WARNING] a &amp; &lt;b&gt;"


def rack(count: int, kind: EventKind = EventKind.CORDONED) -> list[Alert]:
    return [alert(f"gpu-{n:04}", kind, rack="r1") for n in range(count)]


def test_a_rack_is_a_few_lines_and_not_one_for_each_node() -> None:
    one = message(*rack(64), *rack(64, EventKind.AGENT_SILENT))
    document = slack.render(one, PLAIN)
    assert len(document["blocks"]) == 4  # headline, cordoned, silent, page
    [event] = pagerduty.render(one, KEY, PLAIN)
    assert event["payload"]["custom_details"]["node_count"] == 64
    assert event["payload"]["component"] == "r1"
    assert "128 alerts about 64 nodes (rack r1)" in headline(one, 500)
    for name, payload in payloads(message(*rack(1_000))):
        check(name, payload)
        if name != "alertmanager":
            assert len(json.dumps(payload)) < 28_000


def opened(number: int, code: str) -> Alert:
    node, uuid = f"gpu-{number:04}", f"GPU-0000{number:04}-7f43-4b6e-9a20-1f2e3d4c5b6a"
    summary = f"{node}: {code} on {uuid}"
    found = alert_of(Transition(NOW, EventKind.INCIDENT_OPENED, node, summary, f"i-{number}"))
    assert found is not None
    return found


def test_a_storm_is_told_by_its_causes_with_the_nodes_of_each() -> None:
    faults = ["xid:48 (GPU ECC DBE)"] * 9 + ["xid:79 (off the bus)"] * 2 + ["xid:95 (ECC)"]
    one = message(*(opened(number, code) for number, code in enumerate(faults)))
    lines = [line.text for line in digest(one, most=500)]
    assert lines == [
        "9 incident.opened: xid:48 (GPU ECC DBE) on a GPU: "
        + ", ".join(f"gpu-{number:04}" for number in range(9)),
        "2 incident.opened: xid:79 (off the bus) on a GPU: gpu-0009, gpu-0010",
        "gpu-0011: xid:95 (ECC) on GPU-00000011-7f43-4b6e-9a20-1f2e3d4c5b6a",
    ]
    assert headline(one, 150).startswith(
        "[WARNING] 12 alerts about 12 nodes: 9 incident.opened: xid"
    )


@given(st.lists(st.sampled_from(["a", "b", "c", "d", "e", "f"]), min_size=1, max_size=30))
def test_each_alert_of_a_storm_is_counted_once(codes: list[str]) -> None:
    one = message(*(opened(number, code) for number, code in enumerate(codes)))
    lines = [line.text for line in digest(one, most=10_000)]
    counted = [re.match(r"(\d+) incident\.opened", line) for line in lines]
    assert sum(int(found[1]) if found else 1 for found in counted) == len(codes)
    assert len(lines) <= 4


def test_every_receiver_gets_the_section_that_says_what_to_do() -> None:
    base = "https://docs.test/sickbay/0.1.0/"
    held = alert_of(Transition(NOW, EventKind.HELD, "n1", "n1: held", "i", {"limit": "stop"}))
    assert held is not None
    one = message(held, documentation_url=base)
    expected = f"{base}docs/holds.md#stop"
    for name, payload in payloads(one):
        check(name, payload)
        assert any(expected in text for text in texts(payload)), name
    [posted] = webhook.render(one)
    assert posted["documentation"] == expected
    [postable] = alertmanager.render(one, NOW)
    assert postable["annotations"]["runbook_url"] == expected
    mail = email.render(one, MAIL, PLAIN, NOW)
    assert f"What to do: {expected}\n" in mail.get_content()
    assert (
        written("{{ documentation }} {{ alerts[0].documentation }}", one)
        == f"{expected} {expected}"
    )


def test_without_addresses_no_receiver_of_people_gets_a_path_that_it_makes_a_link_of() -> None:
    """Chats and mailboxes link docs/alert-kinds.md to a host of that name."""
    one = message(alert(), page="")
    for name, payload in payloads(one):
        check(name, payload)
        found = [text for text in texts(payload) if ".md" in text or "://" in text]
        assert [text for text in found if "schema" not in text] == [], name
    assert ".md" not in email.render(one, MAIL, PLAIN, NOW).get_content()
    [postable] = alertmanager.render(one, NOW)
    assert "generatorURL" not in postable
    assert "runbook_url" not in postable["annotations"]
    assert [alert["documentation"] for alert in webhook.render(one)] == [
        "docs/alert-kinds.md#quarantinecordoned"
    ]


def test_links_to_the_documentation_are_links_only_where_there_is_an_address() -> None:
    [path] = pagerduty.render(message(alert(), page=""), KEY, PLAIN)
    assert "links" not in path
    [url] = pagerduty.render(
        message(alert(), page="", documentation_url="https://docs.test"), KEY, PLAIN
    )
    assert [link["href"] for link in url["links"]] == [
        "https://docs.test/docs/alert-kinds.md#quarantinecordoned"
    ]
    card = teams.render(message(alert(), page=""), PLAIN)["attachments"][0]["content"]
    assert "actions" not in card


def test_a_message_of_many_kinds_names_the_sections_of_the_worst() -> None:
    kinds = (EventKind.DRAINED, EventKind.OVERDUE, EventKind.CORDONED, EventKind.LEMON)
    found = sections(message(*(alert(kind=kind) for kind in kinds)))
    assert len(found) == 3
    assert found[0] == "docs/alert-kinds.md#quarantineoverdue"
    assert "docs/alert-kinds.md#quarantinedrained" not in found


def test_alertmanager_identifies_an_alert_and_its_end_by_the_same_labels() -> None:
    [begun] = alertmanager.render(message(alert(pool="a")), NOW)
    [ended] = alertmanager.render(message(over(alert(pool="a"))), NOW + 5)
    assert begun["labels"] == ended["labels"]
    assert begun["labels"]["alertname"] == "SickbayQuarantineCordoned"
    assert begun["startsAt"] == ended["startsAt"]
    assert begun["endsAt"] > ended["endsAt"]
    assert begun["generatorURL"] == f"{PAGE}/nodes/gpu-0117"
    assert "resolved" in ended["annotations"]


def test_pagerduty_resolves_an_incident_with_the_last_alert_that_it_announced() -> None:
    first, second = alert("n1"), alert("n2")
    [trigger] = pagerduty.render(message(first, second), KEY, PLAIN)
    assert trigger["dedup_key"] == "route-17-0123456789ab"
    assert pagerduty.render(message(over(first, "route-17-0123456789ab", 1)), KEY, PLAIN) == []
    [resolve] = pagerduty.render(message(over(second, "route-17-0123456789ab", 0)), KEY, PLAIN)
    assert (resolve["event_action"], resolve["dedup_key"]) == ("resolve", trigger["dedup_key"])
    # An incident that ended before it was sent is one incident, that is over.
    both = pagerduty.render(message(first, over(first, "route-17-0123456789ab", 0)), KEY, PLAIN)
    assert [one["event_action"] for one in both] == ["trigger", "resolve"]


def test_a_mail_is_the_same_at_each_attempt_and_its_end_is_in_its_thread() -> None:
    first = email.render(message(alert()), MAIL, PLAIN, NOW)
    again = email.render(replace(message(alert()), attempt=2), MAIL, PLAIN, NOW + 60)
    assert first["Message-ID"] == again["Message-ID"]
    ended = message(over(alert(), message(alert()).id))
    end = email.render(replace(ended, id="another"), MAIL, PLAIN, NOW)
    assert end["References"] == first["Message-ID"]
    assert end["Subject"].startswith("[RESOLVED]")


@pytest.mark.parametrize(
    ("error", "verdict"),
    [
        (aiosmtplib.SMTPDataError(554, "5.6.0 no such message"), Delivery.DROP),
        (aiosmtplib.SMTPDataError(451, "later"), Delivery.RETRY),
        (aiosmtplib.SMTPAuthenticationError(535, "bad password"), Delivery.RETRY),
        (aiosmtplib.SMTPSenderRefused(550, "who?", "a@b.c"), Delivery.RETRY),
        (
            aiosmtplib.SMTPRecipientsRefused(
                [aiosmtplib.SMTPRecipientRefused(550, "unknown", "a@b.c")]
            ),
            Delivery.RETRY,
        ),
        (aiosmtplib.SMTPServerDisconnected("gone"), Delivery.RETRY),
    ],
)
def test_only_a_refused_mail_is_given_up(
    error: aiosmtplib.SMTPException, verdict: Delivery
) -> None:
    assert email.response_of(error).verdict is verdict


# -- templates -------------------------------------------------------------------------------------


def written(text: str, one: Message) -> str:
    return MessageTemplate(TemplateOptions(text=text), lambda value: value).text(one)


def test_a_template_has_the_message_and_nothing_else() -> None:
    text = "{% for a in alerts %}{{ a.kind }} {{ a.node }}\n{% endfor %}{{ severity }} {{ link }}"
    shown = written(text, message(alert()))
    assert shown == f"quarantine.cordoned gpu-0117\nwarning {PAGE}/nodes/gpu-0117"
    assert written("{{ alerts.__class__ }}", message(alert())) == ""
    assert written("{{ ''.__class__.__mro__ }}", message(alert())) == ""
    assert written("{% include '/etc/passwd' %}", message(alert())) == ""


@pytest.mark.parametrize(
    "text",
    ["a\n" * 3_000, "\N{FIRE}" * 6_000, "\u00e9\n" * 9_000, "\N{FIRE}\n" * 40 + "a" * 99_000],
)
def test_a_long_template_for_teams_is_cut_to_what_it_takes(text: str) -> None:
    template = MessageTemplate(TemplateOptions(text=text), lambda value: value)
    document = teams.render(message(alert()), template)
    check("teams", document)
    assert len(json.dumps(document).encode()) < 28_672
    shown = "\n".join(texts(document["attachments"][0]["content"]["body"]))
    assert "characters)" in shown
    assert shown.count(text[0]) > 20


def test_a_template_that_fails_at_a_delivery_gives_way_to_the_built_in_text() -> None:
    broken = MessageTemplate(TemplateOptions(text="{{ alerts[1].kind }}"), lambda value: value)
    [_, block] = slack.render(message(alert(), page=""), broken)["blocks"]
    assert "gpu-0117: cordoned" in block["text"]["text"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{{ nope }}", "'nope' is undefined"),
        ("{% for a in alerts %}", "line 1: Unexpected end of template"),
        ("{{ alerts[0].nope.nope }}", "has no attribute 'nope'"),
        ("{{ 1 / 0 }}", "ZeroDivisionError"),
        ("{{ ().__class__ }}", "SecurityError"),
    ],
)
def test_a_template_that_cannot_work_is_found_at_the_start(text: str, said: str) -> None:
    with pytest.raises(TemplateError, match=said.replace("(", r"\(")):
        MessageTemplate(TemplateOptions(text=text), lambda value: value).check()


def test_a_message_is_what_was_composed() -> None:
    alerts = (alert("n1", rack="r1"), over(alert("n2"), "d-9", 3))
    text = json.dumps([one.to_json() for one in alerts])
    found = message(*alerts_of(text))
    assert [one.to_json() for one in found.alerts] == [one.to_json() for one in alerts]
    section = {"documentation": "docs/alert-kinds.md#quarantinecordoned"}
    assert webhook.render(found) == [one.to_json() | section for one in alerts]
