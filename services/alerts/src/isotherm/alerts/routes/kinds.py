"""The kinds of notification routes as models of the settings."""

from __future__ import annotations

import re
import ssl
from typing import Annotated, ClassVar, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, SecretStr, ValidationInfo, field_validator, model_validator

from isotherm.alerts.routes import templates
from isotherm.alerts.routes.matching import Label, RouteFilter
from isotherm.servicekit.settings import Settings
from isotherm.servicekit.webhooks.signature import signing_key

_NAME = r"^[a-z][a-z0-9-]{0,62}$"
_HTTP = r"^https?://[^\s/]+"
_MAILBOX = r"^[!#-'*+./-9=?A-Z^-~-]+@[A-Za-z0-9.-]+$"
"""An address without quotes (RFC 5322, 3.2.3): in any other one a list of addresses could hide."""


def _verified(template: str, others: ValidationInfo) -> str:
    return templates.verify(template, _labels(others))


def _labels(others: ValidationInfo) -> list[str]:
    """Return the names that `group` has in a template of a route."""
    return [label for label in others.data.get("group_by", ()) if label != "alert"]


def _has_a_host(url: str) -> str:
    parts = urlsplit(url)
    # Reading the port raises ValueError for one that is no number, or too large.
    if not parts.hostname or parts.port == 0 or any(letter.isspace() for letter in url):
        raise ValueError("it is no address with a host, a port of 1 to 65535 or none, and no spaces")
    return url


def _fits_a_header(secret: SecretStr) -> SecretStr:
    if not re.fullmatch(r"[\x21-\x7e]+", secret.get_secret_value()):
        raise ValueError("a token has visible ASCII letters only, no spaces or line breaks")
    return secret


TextTemplate = Annotated[str, AfterValidator(_verified)]
HttpUrl = Annotated[str, Field(pattern=_HTTP), AfterValidator(_has_a_host)]
Token = Annotated[SecretStr, AfterValidator(_fits_a_header)]

_SUMMARY = (
    "{% if count == 1 %}[{{ status }}] {{ alert.severity }}: {{ alert.device_id }} {{ alert.rule }}"
    "{% if alert.message %}: {{ alert.message }}{% endif %}"
    "{% else %}[{{ status }}] {{ severity }}: {{ opened }} opened, {{ closed }} closed"
    "{% for name, value in group.items() if value %}, {{ name }} {{ value }}{% endfor %}{% endif %}"
)
_LIST = (
    "{% for one in alerts %}{{ one.state }} {{ one.severity }} {{ one.device_id }} {{ one.rule }} "
    "since {{ one.opened_at }}{% if one.message %}: {{ one.message }}{% endif %}\n{% endfor %}"
    "{% if omitted %}and {{ omitted }} more\n{% endif %}"
)
DEFAULT_SUMMARY = _SUMMARY
DEFAULT_TEXT = _SUMMARY + "\n" + _LIST


class BaseRoute(Settings):
    """The part that all routes share. Times are in ms."""

    keeps_alerts: ClassVar[bool] = False
    """Whether the target keeps an alert open until it is told of the end, however late."""

    kind: str
    name: str = Field(
        pattern=_NAME,
        description="Name of the route in logs and metrics, and of its consumer group, `<name>-route-...`.",
    )
    filter: RouteFilter = Field(RouteFilter(), description="Which alerts the route takes; empty: all.")
    send_resolved: bool = Field(True, description="Whether the end of an alert is told too.")
    group_by: list[Label] = Field(
        ["rule", "severity", "region"],
        description="Alerts that are equal in these are told in one notification; `alert`: each alert by itself.",
    )
    group_wait_ms: int = Field(
        5_000, ge=0, le=3_600_000, description="How long the first alert of a group waits for others of the group."
    )
    group_interval_ms: int = Field(
        60_000, ge=0, le=86_400_000, description="Least time between two notifications of a group."
    )
    storm_limit: int = Field(
        20,
        ge=0,
        le=1_000,
        description='With `group_by = ["alert"]`: when it reads more openings of a severity within a minute, one '
        "notification tells all further ones, with `group_wait_ms` and `group_interval_ms`. 0: never.",
    )
    max_alerts: int = Field(20, ge=1, le=1_000, description="Most alerts that a text lists; it counts all of them.")
    timeout_ms: int = Field(10_000, ge=100, le=120_000, description="How long one attempt may take, from end to end.")
    retry_for_ms: int = Field(
        600_000,
        ge=0,
        description="How long a notification that can still succeed is repeated; then its alerts become dead-letter "
        "records. Pauses after 429 do not count.",
    )
    max_age_ms: int = Field(
        86_400_000,
        ge=60_000,
        description="An alert that was written longer ago is not told any more, only counted; its end is, to "
        "`webhook`, `alertmanager` and `pagerduty`.",
    )

    @property
    def tells_each(self) -> bool:
        """Whether every alert is a notification by itself, sent at once."""
        return "alert" in self.group_by

    @field_validator("group_by")
    @classmethod
    def _groups_one_way(cls, labels: list[Label]) -> list[Label]:
        if "alert" in labels and len(labels) > 1:
            raise ValueError("`alert` stands alone")
        return labels


class WebhookRoute(BaseRoute):
    """Posts JSON, or what a template makes, to any address."""

    keeps_alerts: ClassVar[bool] = True

    kind: Literal["webhook"]
    url: HttpUrl = Field(description="Address to post to.")
    authorization_token: Token | None = Field(None, description="Sent as `Authorization: Bearer ...`.")
    signing_secret: SecretStr | None = Field(
        None, description="Signs each post by HMAC-SHA256 in the headers of Standard Webhooks; `whsec_...` is base64."
    )
    content_type: str = Field(
        "application/json", pattern=r"^[\x21-\x7e]+/[\x20-\x7e]+$", description="Content type of the body."
    )
    template: str | None = Field(None, description="Jinja template of the body; empty: the alert or the group as JSON.")

    @field_validator("template")
    @classmethod
    def _is_sound(cls, template: str | None, others: ValidationInfo) -> str | None:
        if template is not None:
            templates.verify(
                template, _labels(others), is_json=str(others.data.get("content_type")).startswith("application/json")
            )
        return template

    @field_validator("signing_secret")
    @classmethod
    def _is_a_key(cls, secret: SecretStr | None) -> SecretStr | None:
        if secret is not None and not signing_key(secret.get_secret_value()):
            raise ValueError("a key is not empty, and what follows whsec_ is base64")
        return secret


class AlertmanagerRoute(BaseRoute):
    """Posts alerts to Prometheus Alertmanager (API v2), which groups, silences and routes them itself."""

    keeps_alerts: ClassVar[bool] = True

    kind: Literal["alertmanager"]
    url: HttpUrl = Field(description="Base address of Alertmanager, without `/api/v2/alerts`.")
    username: str | None = Field(None, description="User for HTTP's basic authentication.")
    password: SecretStr | None = Field(None, description="Its password.")
    authorization_token: Token | None = Field(None, description="Sent as `Authorization: Bearer ...`.")
    labels: dict[Annotated[str, Field(pattern=r"^[a-zA-Z_][a-zA-Z0-9_]*$")], str] = Field(
        default_factory=dict, description="Labels that every alert gets, besides those of the alert and its device."
    )
    group_by: list[Label] = Field([], description="Alertmanager groups by itself; all alerts that wait go in one post.")
    group_wait_ms: int = Field(500, ge=0, le=3_600_000, description="How long the first alert waits for others.")
    group_interval_ms: int = Field(500, ge=0, le=86_400_000, description="Least time between two posts.")

    @field_validator("send_resolved")
    @classmethod
    def _resolves(cls, send_resolved: bool) -> bool:
        if not send_resolved:
            raise ValueError("Alertmanager would show each alert for a year; its receivers have send_resolved")
        return send_resolved


class SlackRoute(BaseRoute):
    """Posts a text to an incoming webhook of Slack, or of a server that speaks its format (Mattermost, Discord)."""

    kind: Literal["slack"]
    secret_url: SecretStr = Field(description="The address of the incoming webhook; it is a secret.")
    text: TextTemplate = Field(DEFAULT_TEXT, description="Jinja template of the text.")
    channel: str | None = Field(None, description="Channel, where the server lets a post choose it.")

    @field_validator("secret_url")
    @classmethod
    def _is_an_address(cls, url: SecretStr) -> SecretStr:
        return _address(url)


class PagerDutyRoute(BaseRoute):
    """Triggers and resolves incidents of PagerDuty (Events API v2).

    An incident belongs to an alert. With groups it belongs to a group, and people resolve it: the end of some alerts of
    a group is not the end of its incident.
    """

    keeps_alerts: ClassVar[bool] = True

    kind: Literal["pagerduty"]
    secret_routing_key: SecretStr = Field(min_length=1, description="The integration key of the service.")
    url: HttpUrl = Field("https://events.pagerduty.com/v2/enqueue", description="Address of the API.")
    summary: TextTemplate = Field(DEFAULT_SUMMARY, description="Jinja template of the incident's title.")
    group_by: list[Label] = Field(
        ["alert"],
        description="`alert`: an incident for each alert. Others: one for each group; `send_resolved` is false then.",
    )

    @model_validator(mode="after")
    def _resolves_what_it_triggers(self) -> Self:
        if self.send_resolved and not self.tells_each:
            raise ValueError("send_resolved = true is not allowed with group_by other than ['alert']: set it to false")
        return self


class EmailRoute(BaseRoute):
    """Sends mail by SMTP (RFC 5321)."""

    kind: Literal["email"]
    host: str = Field(min_length=1, description="The SMTP server.")
    port: int = Field(587, ge=1, le=65535, description="Its port.")
    security: Literal["starttls", "tls", "none"] = Field(
        "starttls", description="STARTTLS, which is required then (RFC 3207), TLS from the start (RFC 8314), or none."
    )
    ca_location: str | None = Field(None, description="PEM file of the authorities to trust; empty: the system's.")
    username: str | None = Field(None, pattern=r"^[\x20-\x7e]+$", description="User for AUTH (RFC 4954).")
    password: SecretStr | None = Field(None, validate_default=True, description="Its password.")
    sender: Annotated[str, Field(pattern=_MAILBOX)] = Field(description="Address of the sender.")
    recipients: list[Annotated[str, Field(pattern=_MAILBOX)]] = Field(
        min_length=1, description="Addresses; each mail goes to all of them."
    )
    subject: TextTemplate = Field(DEFAULT_SUMMARY, description="Jinja template of the subject.")
    text: TextTemplate = Field(DEFAULT_TEXT, description="Jinja template of the text.")

    @field_validator("ca_location")
    @classmethod
    def _holds_authorities(cls, location: str | None) -> str | None:
        if location is not None:
            try:
                ssl.create_default_context(cafile=location)
            except OSError as error:  # also an SSLError
                raise ValueError(f"it is no readable PEM file of authorities: {error.strerror or error}") from None
        return location

    @field_validator("password")
    @classmethod
    def _is_kept(cls, password: SecretStr | None, others: ValidationInfo) -> SecretStr | None:
        if (others.data.get("username") is None) != (password is None):
            raise ValueError("username and password are given together or not at all")
        if password is not None and not re.fullmatch(r"[\x20-\x7e]+", password.get_secret_value()):
            raise ValueError("it has visible ASCII letters and spaces only")
        if password is not None and others.data.get("security") == "none":
            raise ValueError("with security = 'none' anybody could read it; use starttls or tls")
        return password


Route = Annotated[
    WebhookRoute | AlertmanagerRoute | SlackRoute | PagerDutyRoute | EmailRoute,
    Field(discriminator="kind"),
]


def _address(url: SecretStr) -> SecretStr:
    scheme, separator, rest = url.get_secret_value().partition("://")
    if scheme not in ("http", "https") or not separator or not rest or any(letter.isspace() for letter in rest):
        raise ValueError("it is not an address that begins with http:// or https://")
    _has_a_host(url.get_secret_value())
    return url
