"""Routes as settings: what is refused, which alerts a route takes, and what it sends."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from datetime import UTC, datetime, timedelta
from email import message_from_bytes, policy
from typing import Any

import pytest
from pydantic import SecretStr, TypeAdapter
from route_targets import CLOSED, OPENED, alert

from isotherm.alerts.routes.kinds import (
    DEFAULT_TEXT,
    AlertmanagerRoute,
    EmailRoute,
    PagerDutyRoute,
    Route,
    SlackRoute,
    WebhookRoute,
)
from isotherm.alerts.routes.mails import mail_of
from isotherm.alerts.routes.matching import RouteFilter, group_of
from isotherm.alerts.routes.notification import Notification, StormState
from isotherm.alerts.routes.posts import HttpRoute, Post, post_of
from isotherm.alerts.routes.templates import TemplateFailedError, render
from isotherm.alerts.settings import AlertsSettings
from isotherm.servicekit.settings import SettingsError, load

NOW = datetime(2026, 1, 2, tzinfo=UTC)
SECRET = "a-secret-text"
WEBHOOK = {"kind": "webhook", "name": "ops", "url": "http://127.0.0.1/x"}
EMAIL = {"kind": "email", "name": "post", "host": "mail", "sender": "a@b.example", "recipients": ["c@d.example"]}


def route_of(**fields: Any) -> Route:
    route: Route = TypeAdapter(Route).validate_python(fields)
    return route


def http_route(**fields: Any) -> HttpRoute:
    route = route_of(**fields)
    assert isinstance(route, WebhookRoute | AlertmanagerRoute | SlackRoute | PagerDutyRoute)
    return route


def notification(*alerts: dict[str, Any], group: dict[str, str] | None = None) -> Notification:
    return Notification("ops", group or {}, alerts)


def posted(route: HttpRoute, *alerts: dict[str, Any]) -> tuple[Post, Any]:
    post = post_of(route, notification(*alerts), NOW)
    return post, json.loads(post.body)


@pytest.mark.parametrize(
    ("routes", "texts"),
    [
        ([WEBHOOK | {"kind": "pager"}], ["routes.0", "'webhook', 'alertmanager', 'slack', 'pagerduty', 'email'"]),
        ([WEBHOOK | {"name": "On Call"}], ["routes.0.webhook.name", "'On Call'", "^[a-z]"]),
        ([WEBHOOK | {"url": "ftp://x"}], ["routes.0.webhook.url", "'ftp://x'", "^https?"]),
        ([WEBHOOK, WEBHOOK], ["routes: two routes are named ops"]),
        ([WEBHOOK | {"retries": 3}], ["routes.0.webhook.retries", "unknown key"]),
        ([WEBHOOK | {"group_by": ["alert", "rule"]}], ["routes.0.webhook.group_by", "`alert` stands alone"]),
        ([WEBHOOK | {"group_by": ["room"]}], ["routes.0.webhook.group_by.0", "'room'", "'region'"]),
        ([WEBHOOK | {"filter": {"severities": ["hot"]}}], ["filter.severities.0", "'hot'", "'critical'"]),
        ([WEBHOOK | {"template": "{{ alert.x"}], ["routes.0.webhook.template", "'{{ alert.x'", "(line 1)"]),
        (
            [WEBHOOK | {"template": "{{ alrt }}"}],
            ["routes.0.webhook.template", "'alrt' is undefined", "it may use alert"],
        ),
        ([WEBHOOK | {"template": '{"a": "{{ alert.message }}"}'}], ["template", "makes no JSON", "| tojson"]),
        ([WEBHOOK | {"template": '{"a": {{ alert.value + 1 }}}'}], ["template", "TypeError"]),
        ([WEBHOOK | {"template": "{{ ''.__class__.__mro__ }}", "content_type": "text/plain"}], ["template", "unsafe"]),
        ([WEBHOOK | {"url": "http://x:99999/"}], ["routes.0.webhook.url", "'http://x:99999/'", "Port out of range"]),
        ([WEBHOOK | {"url": "http://x/a b"}], ["routes.0.webhook.url", "no spaces"]),
        ([WEBHOOK | {"authorization_token": f"{SECRET}\n"}], ["routes.0.webhook.authorization_token", "line breaks"]),
        ([WEBHOOK | {"template": "{{ group.home }}"}], ["routes.0.webhook.template", "no attribute 'home'"]),
        (
            [{"kind": "slack", "name": "s", "secret_url": f"https://x:y/{SECRET}"}],
            ["routes.0.slack.secret_url", "Port"],
        ),
        (
            [{"kind": "alertmanager", "name": "a", "url": "http://x", "send_resolved": False}],
            ["routes.0.alertmanager.send_resolved", "for a year"],
        ),
        ([EMAIL | {"ca_location": "/nowhere.pem"}], ["routes.0.email.ca_location", "'/nowhere.pem'", "No such file"]),
        ([EMAIL | {"recipients": ["a,b@c.example"]}], ["routes.0.email.recipients.0", "'a,b@c.example'"]),
        ([WEBHOOK | {"signing_secret": "whsec_%"}], ["routes.0.webhook.signing_secret", "base64"]),
        ([EMAIL | {"recipients": ["nobody"]}], ["routes.0.email.recipients.0", "'nobody'"]),
        ([EMAIL | {"subject": "{% if %}"}], ["routes.0.email.subject", "'{% if %}'"]),
        ([EMAIL | {"password": SECRET}], ["routes.0.email.password", "username and password are given together"]),
        ([EMAIL | {"username": "u", "password": f"{SECRET}\n"}], ["routes.0.email.password", "visible ASCII"]),
        ([EMAIL | {"username": "ü", "password": SECRET}], ["routes.0.email.username", "'ü'"]),
        ([EMAIL | {"username": "u"}], ["routes.0.email.password", "username and password are given together"]),
        ([EMAIL | {"security": "none", "username": "u", "password": SECRET}], ["password", "use starttls or tls"]),
        ([{"kind": "slack", "name": "s", "secret_url": f"hooks/{SECRET}"}], ["routes.0.slack.secret_url", "http://"]),
        ([{"kind": "slack", "name": "s", "secret_url": SECRET, "text": 1}], ["routes.0.slack.text", "string"]),
        ([{"kind": "pager", "password": SECRET}], ["routes.0", "'password': '******'"]),
        ([WEBHOOK | {"name": None, "authorization_token": SECRET}], ["routes.0.webhook.name"]),
    ],
)
def test_a_bad_route_names_key_value_and_what_is_allowed(routes: list[Any], texts: list[str]) -> None:
    with pytest.raises(SettingsError) as caught:
        load(AlertsSettings, "alerts", environ={}, overrides=[f"routes={json.dumps(routes)}"])
    told = str(caught.value)
    assert [text for text in texts if text not in told] == [], told
    assert SECRET not in told


def test_broken_json_with_a_secret_in_it_is_not_shown() -> None:
    with pytest.raises(SettingsError) as caught:
        load(AlertsSettings, "alerts", environ={}, overrides=[f'routes=[{{"password": "{SECRET}"'])
    assert SECRET not in str(caught.value)


def test_the_former_webhook_is_a_route_that_tells_each_alert_from_its_own_group() -> None:
    overrides = ["webhook.url=http://127.0.0.1/", "webhook.retry_for_ms=7", f"webhook.authorization_token={SECRET}"]
    settings = load(AlertsSettings, "alerts", environ={}, overrides=overrides)
    (route,) = settings.all_routes()
    assert isinstance(route, WebhookRoute)
    assert (route.name, route.tells_each, route.retry_for_ms, route.storm_limit) == ("webhook", True, 7, 0)
    assert settings.route_group(route.name) == "isotherm-alerts-webhook"
    post, body = posted(route, alert())
    assert body == {name: value for name, value in alert().items() if name != "attributes"} | {
        "opened_at": OPENED.isoformat(),
        "updated_at": OPENED.isoformat(),
    }
    assert post.headers["Idempotency-Key"] == "dev-1/above/temperature/1/opened"
    assert post.headers["Authorization"] == f"Bearer {SECRET}"
    taken = json.dumps([WEBHOOK | {"name": "webhook"}])
    with pytest.raises(SettingsError, match=r"two routes are named webhook \(`webhook.url` is a route of this name\)"):
        load(AlertsSettings, "alerts", environ={}, overrides=[*overrides, f"routes={taken}"])


@pytest.mark.parametrize(
    ("filters", "taken"),
    [
        ({}, True),
        ({"severities": ["warning", "critical"]}, True),
        ({"severities": ["critical"]}, False),
        ({"rules": ["ab*"], "devices": ["dev-?"]}, True),
        ({"rules": ["above"], "devices": ["other"]}, False),
        ({"groups": {"region": ["no*"], "home": ["home-1"]}}, True),
        ({"groups": {"region": ["north"], "home": ["home-2"]}}, False),
        ({"groups": {"model": ["*"]}}, False),
    ],
)
def test_a_filter_takes_what_every_list_names(filters: dict[str, Any], taken: bool) -> None:
    assert RouteFilter.model_validate(filters).takes(alert()) is taken


def test_alerts_are_grouped_by_fields_and_attributes() -> None:
    assert group_of(alert(), ["rule", "region", "model"]) == {"rule": "above", "region": "north", "model": ""}
    assert group_of(alert(metric=None), ["metric", "device"]) == {"metric": "", "device": "dev-1"}


def test_a_group_is_posted_as_json_with_counts() -> None:
    alerts = [alert(f"dev-{number}") for number in range(3)] + [alert("dev-9", "closed")]
    _, body = posted(http_route(**WEBHOOK), *alerts)
    assert (body["status"], body["count"], body["opened"], body["closed"], body["omitted"]) == ("opened", 4, 3, 1, 0)
    assert [one["device_id"] for one in body["alerts"]] == ["dev-0", "dev-1", "dev-2", "dev-9"]
    assert body["alerts"][0]["attributes"] == {"home": "home-1", "region": "north", "model": None}


def test_a_template_makes_the_body() -> None:
    template = '{"text": {{ alert.message | tojson }}, "n": {{ count }}, "more": {{ omitted }}}'
    route = http_route(**WEBHOOK, template=template, max_alerts=1)
    _, body = posted(route, alert(message='say "no"\n'), alert("dev-2"))
    assert body == {"text": 'say "no"\n', "n": 2, "more": 1}


def test_a_signature_is_that_of_standard_webhooks() -> None:
    key = b"0123456789abcdef0123456789abcdef"
    for secret in (key.decode(), f"whsec_{base64.b64encode(key).decode()}"):
        post, _ = posted(http_route(**WEBHOOK, signing_secret=secret), alert("söken\r\nX: 1"))
        signed = f"{post.headers['webhook-id']}.{int(NOW.timestamp())}.".encode() + post.body
        expected = base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
        assert post.headers["webhook-signature"] == f"v1,{expected}"
        assert post.headers["webhook-timestamp"] == str(int(NOW.timestamp()))
        assert post.headers["webhook-id"] == post.headers["Idempotency-Key"]
        assert post.headers["webhook-id"].isalnum()


def test_no_request_shows_its_secrets() -> None:
    route = http_route(kind="slack", name="s", secret_url=f"https://x/{SECRET}")
    assert SECRET not in repr(post_of(route, notification(alert()), NOW)) + repr(route)


def test_alertmanager_gets_open_and_resolved_alerts() -> None:
    route = http_route(kind="alertmanager", name="am", url="http://am:9093/", labels={"site": "one"})
    future = alert("dev-3", "closed", closed_at=NOW + timedelta(minutes=1), opened_at=NOW - timedelta(minutes=1))
    post, body = posted(route, alert(), alert("dev-2", "closed"), future)
    assert post.url == "http://am:9093/api/v2/alerts"
    assert body[0] == {
        "labels": {
            "site": "one",
            "alertname": "above",
            "severity": "warning",
            "device": "dev-1",
            "metric": "temperature",
            "home": "home-1",
            "region": "north",
        },
        "annotations": {
            "summary": "temperature 31.0 Cel is above 30.0 Cel",
            "alert_id": "dev-1/above/temperature/1",
        },
        "startsAt": OPENED.isoformat(),
        "endsAt": (NOW + timedelta(days=365)).isoformat(),
    }
    assert body[1]["endsAt"] == CLOSED.isoformat()
    # A device's clock runs ahead: an end in the future would be an open alert.
    assert body[2]["endsAt"] == NOW.isoformat()


def test_slack_gets_a_text_that_lists_some_and_counts_all() -> None:
    route = http_route(kind="slack", name="s", secret_url="https://x/y", max_alerts=2, channel="#ops")
    post = post_of(route, Notification("s", {"region": "north"}, tuple(alert(f"d{n}") for n in range(10))), NOW)
    body = json.loads(post.body)
    assert body["channel"] == "#ops"
    assert body["text"].startswith("[opened] warning: 10 opened, 0 closed, region north\n")
    assert body["text"].endswith("and 8 more\n")
    assert body["text"].count("opened warning d") == 2


def test_pagerduty_gets_one_incident_an_alert_and_its_end() -> None:
    route = http_route(kind="pagerduty", name="pd", secret_routing_key=SECRET)
    (post, opened), (_, closed) = posted(route, alert()), posted(route, alert(state="closed"))
    assert post.url == "https://events.pagerduty.com/v2/enqueue"
    assert (opened["event_action"], closed["event_action"]) == ("trigger", "resolve")
    assert opened["dedup_key"] == closed["dedup_key"] != posted(route, alert("dev-2"))[1]["dedup_key"]
    assert opened["routing_key"] == SECRET
    assert opened["payload"]["severity"] == "warning"
    assert opened["payload"]["source"] == "dev-1"
    assert opened["payload"]["summary"].startswith("[opened] warning: dev-1 above")
    assert SECRET not in repr(post) + repr(route)


def test_pagerduty_gets_one_incident_a_group_which_people_resolve() -> None:
    fields = {"kind": "pagerduty", "name": "pd", "secret_routing_key": SECRET, "group_by": ["rule"]}
    with pytest.raises(ValueError, match="send_resolved = true is not allowed with group_by"):
        http_route(**fields)
    route = http_route(**fields, send_resolved=False, max_alerts=1)
    made = [
        json.loads(
            post_of(route, Notification("pd", {"rule": rule}, tuple(alert(f"d{n}") for n in range(3))), NOW).body
        )
        for rule in ("above", "above", "silent")
    ]
    assert made[0]["dedup_key"] == made[1]["dedup_key"] != made[2]["dedup_key"]
    assert made[0]["payload"]["custom_details"]["omitted"] == 2


def test_an_end_that_several_tell_has_a_key_for_each_and_repeats_have_the_same() -> None:
    one = (alert(state="closed"),)
    told = [
        Notification("w", {}, one, storm) for storm in (None, StormState("warning/1", 0), StormState("warning/2", 0))
    ]
    assert len({notification.key for notification in told}) == 3
    assert Notification("w", {}, one, StormState("warning/2", 0)).key == told[2].key
    assert Notification("w", {}, one, StormState("warning/2", 1)).key != told[2].key


def test_a_mail_has_one_subject_whatever_a_device_is_named() -> None:
    route = route_of(**EMAIL)
    assert isinstance(route, EmailRoute)
    mails = [mail_of(route, notification(alert("dév\r\nBcc: x@y.example")), NOW) for _ in range(2)]
    read = message_from_bytes(mails[0].as_bytes(), policy=policy.default)
    assert read["Bcc"] is None
    assert read["Subject"].startswith("[opened] warning: dév Bcc: x@y.example above")
    assert (read["To"], read["Auto-Submitted"]) == ("c@d.example", "auto-generated")
    assert mails[0]["Message-ID"] == mails[1]["Message-ID"]
    assert mails[0]["Message-ID"] != mail_of(route, notification(alert("other")), NOW)["Message-ID"]


def test_a_repeat_has_the_key_of_the_first_attempt_and_no_other_notification_has_it() -> None:
    one, other = alert("a"), alert("b")
    assert notification(one, other).key == notification(other, one).key
    assert (
        len({notification(one, other).key, notification(one).key, notification(alert("a", "closed"), other).key}) == 3
    )


@pytest.mark.parametrize(
    "template",
    [
        "{{ 'x' * 300000 }}",
        # Ten thousand million letters.
        "{% for a in range(99999) %}{% for b in range(99999) %}x{% endfor %}{% endfor %}",
    ],
)
def test_a_template_that_makes_too_much_is_refused(template: str) -> None:
    with pytest.raises(TemplateFailedError, match="more than"):
        render(template, {})


def test_the_key_of_a_secret_is_never_empty() -> None:
    with pytest.raises(ValueError, match="not empty"):
        http_route(**WEBHOOK, signing_secret=SecretStr(""))


def test_a_template_may_use_the_labels_that_the_route_groups_by() -> None:
    _, body = posted(http_route(**WEBHOOK, template="{{ group | tojson }}"), alert())
    assert body == {}
    for fields in (
        {"kind": "slack", "secret_url": "https://x/y", "text": "{{ group.region }}"},
        {"kind": "webhook", "url": "http://x", "template": "{{ group.region | tojson }}"},
        {"kind": "email", **EMAIL, "subject": "{{ group.region }}"},
        {"kind": "pagerduty", "secret_routing_key": "k", "summary": "{{ group.region }}", "send_resolved": False},
    ):
        assert route_of(**{**fields, "name": "r", "group_by": ["region"]}).group_by == ["region"]


def test_a_device_named_like_a_command_of_slack_calls_nobody() -> None:
    route = http_route(kind="slack", name="s", secret_url="https://x/y", text="<!here> " + DEFAULT_TEXT)
    _, body = posted(route, alert("<!channel>", message="<@U1> & co"), alert("<!everyone>"))
    assert body["text"].startswith("<!here> ")
    assert "<!channel>" not in body["text"]
    assert "&lt;!channel&gt;" in body["text"]
    assert "&lt;@U1&gt; &amp; co" in body["text"]


def test_a_header_is_one_that_every_server_takes() -> None:
    for device_id in (" dev", "d" * 5_000, "a\tb"):
        post, _ = posted(http_route(**WEBHOOK, signing_secret="k"), alert(device_id))
        assert post.headers["Idempotency-Key"] == post.headers["webhook-id"]
        assert post.headers["webhook-id"].isalnum()


@pytest.mark.parametrize("fields", [{}, {"group_by": ["alert"]}, {"template": '{"v": {{ alert.value | tojson }}}'}])
def test_an_infinite_number_is_no_json(fields: dict[str, Any]) -> None:
    post, _ = posted(http_route(**WEBHOOK, **fields), alert(value=float("inf"), threshold=float("nan")))
    assert b"Infinity" not in post.body
    assert b"NaN" not in post.body


def test_an_event_of_pagerduty_is_never_larger_than_it_takes() -> None:
    fields = {"kind": "pagerduty", "name": "p", "secret_routing_key": "k", "group_by": ["rule"]}
    route = http_route(**fields, send_resolved=False, max_alerts=1_000)
    post, body = posted(route, *(alert(f"d{number}", message="x" * 2_000) for number in range(1_000)))
    assert len(post.body) <= 512_000
    details = body["payload"]["custom_details"]
    assert (details["count"], len(details["alerts"]) + details["omitted"]) == (1_000, 1_000)
    assert len(details["alerts"]) > 100
