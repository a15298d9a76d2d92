"""What operators write: connector files, references and masking, topic patterns, ACL and password files."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from functools import partial

from isotherm.alerts.rules.catalog import Rule, definition_of, rule_of, rules_in
from isotherm.alerts.rules.rule_book import RuleBook
from isotherm.connector.config import files
from isotherm.connector.config.files import ConfigError, ConnectorConfig
from isotherm.connector.config.masking import mask_of, masked_value
from isotherm.connector.config.topic_patterns import matching
from isotherm.mqtt_proxy.access.acl import AclLineError, parse_acl
from isotherm.mqtt_proxy.access.passwords import PasswordLineError, parse_passwords
from isotherm.mqtt_proxy.ingest.routes import RouteError, Router, regex_routes
from isotherm.proofs.fuzzing.target import Target, expect, split

_ENVIRON = {"A": "secret-of-a", "B": "é\"\\\n'%"}


def connector_target(form: str) -> Callable[[bytes], None]:
    """Return the check that entries survive as properties, and that their secrets are masked."""

    def run(data: bytes) -> None:
        try:
            values = files.entries(data.decode("utf-8", "replace"), form=form)
        except ConfigError as error:
            expect(bool(error.problems), "an error without a reason")
            return
        expect(files.entries(files.to_properties(values), form="properties") == values, "entries change as properties")
        config = ConnectorConfig("n", "c", {key: value for key, value in values.items() if "${file:" not in value})
        mask = mask_of(config, _ENVIRON)
        for key, value in config.config.items():
            masked_value(key, value)
            mask(value)
        try:
            config.resolved(_ENVIRON)
        except ConfigError:
            return

    return run


def masking_target() -> Callable[[bytes], None]:
    """Return the check that a secret is in no text after masking, however the text writes it."""

    def run(data: bytes) -> None:
        secret, text = (part.decode("utf-8", "replace") for part in split(data, 2))
        if "$" in secret or "*" in secret or len(secret) < 3:
            return
        mask = mask_of(ConnectorConfig("n", "c", {"db.password": secret}), {})
        for written in (text + secret, f"{text} {secret!r}", f"http://u:{secret}@h {text}"):
            expect(secret not in mask(written), "a secret is shown")

    return run


def pattern_target() -> Callable[[bytes], None]:
    """Return the check that patterns of topics match or are refused, in linear time."""

    def run(data: bytes) -> None:
        pattern, text = (part.decode("utf-8", "replace") for part in split(data, 2))
        with contextlib.suppress(re.error):
            matching(pattern, [text, text * 2, "a" * 249])
        with contextlib.suppress(RouteError):
            Router(regex_routes(pattern, device_level=None), first_match_only=False).resolve(text)

    return run


def acl_target() -> Callable[[bytes], None]:
    """Return the check that rules are parsed or refused, and that a denied topic stays denied."""

    def run(data: bytes) -> None:
        rules, topic, client = (part.decode("utf-8", "replace") for part in split(data, 3))
        lines = rules.split("\n")
        try:
            acl = parse_acl(lines)
        except AclLineError:
            return
        acl.may_publish(topic, client_id=client, username=None)
        denying = parse_acl([*lines, "pattern deny #"])
        if not topic.startswith("$"):
            expect(not denying.may_publish(topic, client_id=client, username="u"), "a denied topic is allowed")

    return run


def password_target() -> Callable[[bytes], None]:
    """Return the check that a password file is parsed, or refused without showing a hash."""

    def run(data: bytes) -> None:
        try:
            parse_passwords(data.decode("utf-8", "replace").split("\n"))
        except PasswordLineError as error:
            expect(str(error).startswith("line "), "an error names its line")

    return run


def rule_target() -> Callable[[bytes], None]:
    """Return the check that a rule of alerts, as JSON or in a file, is refused with a reason or survives its form."""

    def run(data: bytes) -> None:
        text = data.decode("utf-8", "replace")
        rules: list[Rule] = []
        readers: tuple[Callable[[str], list[Rule]], ...] = (lambda one: [rule_of(one)], rules_in)
        for read in readers:
            try:
                rules += read(text)
            except ValueError as error:
                expect(bool(str(error)), "an error without a reason")
        for rule in rules:
            again = rule_of(definition_of(rule))
            expect((again, again.version) == (rule, rule.version), "a rule changes in its form")
            RuleBook([rule]).overridden([])

    return run


_FORMS: dict[str, tuple[bytes, ...]] = {
    "json": (b'{"name": "n", "config": {', b'"connector.class": "c"', b"\\ud800", b"1e999", b"[[", b"null"),
    "toml": (b"a = 1\n", b"[a.b]\n", b'"""', b"1979-05-27", b"0x", b"[[a]]\n"),
    "properties": (b"name=n\n", b"\\\n", b"\\u0041", b" : ", b"#", b"db.password=${env:A}"),
}
_HASH = b"u:$6$YWJj$" + b"A" * 86 + b"=="

TARGETS = (
    *(
        Target(name=f"connector-{form}", make=partial(connector_target, form), dictionary=words)
        for form, words in _FORMS.items()
    ),
    Target(
        name="alert-rule",
        make=rule_target,
        dictionary=(
            b'[[rules]]\nkind = "above"\nmetric = "t"\nthreshold = 1\n',
            b'{"kind": "any", "name": "x", "conditions": [{"kind": "below", "metric": "t", "threshold": 1}]}',
            b'"schedule": {"timezone": "UTC", "periods": [{"begin": "08:00", "end": "24:00"}]}',
            b'"text": "{value:.1f} {unit}"',
            b"1e999",
            b"[[[[",
        ),
    ),
    Target(name="masking", make=masking_target, dictionary=(b"://", b"@", b"${env:", b"%", b"\\")),
    Target(
        name="topic-patterns",
        make=pattern_target,
        dictionary=(b"(a+)+", b"{1,9}", b"[^", b"(?:", b"(?i)", b"\\d", b"a:", b"\0", b"|", b"$"),
        max_bytes=256,
        quick_inputs=60,
    ),
    Target(
        name="mqtt-acl",
        make=acl_target,
        dictionary=(b"user u\n", b"topic write ", b"pattern deny %c/%u/#\n", b"+", b"\0"),
    ),
    Target(
        name="mqtt-passwords",
        make=password_target,
        dictionary=(_HASH, b"u:$7$101$", b"$", b"\n"),
    ),
)
