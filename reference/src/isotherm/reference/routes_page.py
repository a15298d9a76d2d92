"""The page of notification routes: every kind with its keys."""

from __future__ import annotations

from collections.abc import Iterator
from typing import get_args

from pydantic.fields import FieldInfo

from isotherm.alerts.routes.kinds import BaseRoute, Route
from isotherm.alerts.routes.matching import RouteFilter
from isotherm.reference import markdown
from isotherm.servicekit.settings import Settings

_INTRODUCTION = """Routes are `[[routes]]` tables in the alerts service's TOML file. Each tells alerts to one target,
with a consumer group, a thread and retries of its own: a route that hangs or fails holds up no other route, and no
alert in its topic. How routes group, repeat and give up: [alerts](../explanation/alerts.md#notifications).

```toml
[[routes]]
kind = "webhook"
name = "operations"
url = "https://alarms.example/isotherm"
signing_secret = "${env:ALARMS_SECRET}"      # secrets by environment or file, never in the file itself
group_by = ["rule", "region"]

[[routes]]
kind = "slack"
name = "chat"
secret_url = "${file:/run/secrets/slack}"
filter = { severities = ["critical"], groups = { region = ["north*"] } }

[[routes]]
kind = "email"
name = "post"
host = "mail.example"
username = "isotherm"
password = "${env:MAIL_PASSWORD}"
sender = "isotherm@example.org"
recipients = ["on-call@example.org"]
send_resolved = false
```"""

_TEMPLATES = """## Templates

Templates are [Jinja](https://jinja.palletsprojects.com/templates/). They may use `route`, `status` (`opened` while one
alert of the notification is open, else `closed`), `severity` (the highest), `group` (values by label), `count`,
`opened`, `closed`, `omitted` (how many are not listed), `alerts` (at most `max_alerts`, open ones first), `alert` (the
first), `key`, and `storm` (its `name`, and `open`, how many of its alerts are; empty but in a storm). An alert has the
fields of its [record](topics.md), times in ISO 8601, and `attributes` (`home`, `region`, `model`). A field may be
empty: a silent device has no `value`. The attributes are those that the device had when the alert opened, so that an
alert ends with the labels of its begin
([ADR 161](../adr/0161-alerts-keep-the-attributes-of-their-opening.md)).

The service renders each template at its start, and stops if that fails, if a name is unknown, or if a webhook whose
`content_type` is `application/json` would not post JSON. Quote texts with `| tojson`:

```toml
template = '{"title": {{ alert.message | tojson }}, "devices": {{ count }}}'
```

## Signatures

With `signing_secret` a webhook's posts have the headers of [Standard Webhooks](https://www.standardwebhooks.com/):
`webhook-id`, `webhook-timestamp` (s since 1970) and `webhook-signature`, `v1,` and the base64 of HMAC-SHA256 over
`<id>.<timestamp>.<body>`. A receiver compares the signature, refuses old times, and drops an id that it has seen."""


def text() -> str:
    """The page."""
    return markdown.page("Alert routes", _INTRODUCTION, _lines())


def _lines() -> Iterator[str]:
    kinds: tuple[type[BaseRoute], ...] = get_args(get_args(Route)[0])
    yield from ("## Every route", "", *_table(BaseRoute, {"kind"}), "")
    yield from ("## filter", "", (RouteFilter.__doc__ or "").split("\n")[0], "", *_table(RouteFilter, set()), "")
    for kind in kinds:
        (name,) = get_args(kind.model_fields["kind"].annotation)
        own = {key for key in BaseRoute.model_fields if _shown(BaseRoute, key) == _shown(kind, key)} | {"kind"}
        yield from (f"## {name}", "", (kind.__doc__ or "").split("\n")[0], "", *_table(kind, own), "")
    yield _TEMPLATES


def _shown(model: type[Settings], key: str) -> tuple[str, str]:
    field = model.model_fields[key]
    return _default(field), field.description or ""


def _table(model: type[Settings], without: set[str]) -> list[str]:
    rows = [
        (markdown.code(key), _default(field), field.description or "")
        for key, field in model.model_fields.items()
        if key not in without
    ]
    return markdown.table(["key", "default", "meaning"], rows)


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    if value is None or value in ("", [], {}) or isinstance(value, Settings):
        return "empty"
    if isinstance(value, str) and "{%" in value:
        return "one line, then the alerts" if "\n" in value else "one line"
    return markdown.code(str(value))
