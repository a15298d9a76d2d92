"""The HTTP sink's keys, the meaning of statuses, and how long a server may ask to wait."""

from __future__ import annotations

import pytest

from isotherm.connector.config import files
from isotherm.connector.config.validation import InvalidConfigError
from isotherm.persisters.configuration import check
from isotherm.persisters.sinks.catalog import installed_sinks
from isotherm.persisters.sinks.http import settings
from isotherm.persisters.sinks.http.responses import Meaning, meaning_of, reason_of, status_ranges
from isotherm.persisters.sinks.http.settings import HttpSettings

SECRET = "s3cr3t-v4lue"
ALL = "INSERT INTO things SELECT * FROM t"


def checked(kcql: str = ALL, **more: str) -> HttpSettings:
    given = {"name": "n", "connector.class": "http", "topics": "t", "url": "http://h/in", "kcql": kcql}
    given |= {key.replace("__", "."): value for key, value in more.items()}
    return settings.read(check(installed_sinks()["http"], files.from_mapping(given)))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"url": "ftp://h/in"}, "'ftp://h/in' is not allowed; expected http://host"),
        ({"url": f"https://u:{SECRET}@h/in"}, "contains a user or a password"),
        ({"url": "http://h:99999/"}, "is not allowed; expected http://host"),
        ({"url": "http://h/{device}"}, r"\{device\} is not allowed in it; known are \{target\} and \{id\}"),
        ({"url": "http://{target}/in"}, "the host is the same for all rows"),
        ({"url": "http://h/a b"}, "is not allowed; expected http://host"),
        ({"url": "http://h/{id}"}, r"needs connect\.http\.request\.format=RECORD"),
        ({"proxy.url": "https://p:3128"}, "expected http://host:port"),
        ({"proxy.url": "http://p:3128/path"}, "expected http://host:port"),
        ({"headers": "X-Site north"}, "expected `Name: value`"),
        ({"headers": "Host: other"}, "'Host' is not allowed"),
        ({"secret.headers": f"X-Key: {SECRET}\r\nX-Other: 1"}, "the value of X-Key is not allowed"),
        ({"bearer.token": f"{SECRET}\n"}, "holds a character that no header carries"),
        ({"idempotency.header": "two words"}, "'two words' is not allowed; expected the name of a header"),
        ({"password": SECRET}, r"connect\.http\.username is missing"),
        ({"username": "u", "bearer.token": SECRET}, r"not allowed together with connect\.http\.username"),
        ({"signing.secret": f"whsec_{SECRET}!"}, "is no key; what follows whsec_ is base64"),
        ({"body.template": "{}"}, r"expected \{\{rows\}\} once in it"),
        ({"retry.statuses": "often"}, "'often' is not allowed; expected a status such as 429"),
        ({"bad.record.statuses": "100-204"}, "expected statuses from 300 to 599"),
        ({"method": "GET"}, "expected one of POST, PUT, PATCH"),
        ({"ssl.certificate.authorities": "/ca.pem"}, r"connect\.http\.url is not reached with TLS"),
        ({"kcql": "UPSERT INTO a SELECT * FROM t PK id"}, "UPSERT is not allowed"),
        ({"kcql": "INSERT INTO _value.place SELECT * FROM t"}, r"has no effect without \{target\}"),
        (
            {"kcql": "INSERT INTO a SELECT * FROM t PK _key PROPERTIES('behavior.on.null.values'='DELETE')"},
            r"DELETE needs \{id\}",
        ),
    ],
)
def test_a_bad_configuration_is_told_and_its_secrets_are_not(given: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidConfigError, match=message) as wrong:
        checked(**given)
    assert SECRET not in str(wrong.value)


def test_references_are_checked_when_they_are_resolved() -> None:
    base = {"name": "n", "connector.class": "http", "topics": "t", "kcql": ALL}
    given = base | {"url": "${env:URL}", "secret.headers": "${file:/run/h}", "signing.secret": "${env:KEY}"}
    assert check(installed_sinks()["http"], files.from_mapping(given)).text("connect.http.url") == "${env:URL}"


def test_settings_show_no_secret() -> None:
    shown = repr(checked(bearer__token=SECRET, signing__secret=SECRET, secret__headers=f"X-Key: {SECRET}"))
    assert SECRET not in shown


@pytest.mark.parametrize(
    ("status", "names_row", "expected"),
    [
        (200, False, Meaning.WRITTEN),
        (299, False, Meaning.WRITTEN),
        (302, True, Meaning.CONFIGURATION),
        (400, False, Meaning.ROW),
        (401, True, Meaning.CONFIGURATION),
        (404, False, Meaning.CONFIGURATION),
        (404, True, Meaning.ROW),
        (410, True, Meaning.ROW),
        (413, False, Meaning.ROW),
        (429, False, Meaning.TRANSIENT),
        (500, False, Meaning.TRANSIENT),
        (599, False, Meaning.TRANSIENT),
    ],
)
def test_what_a_status_means(status: int, names_row: bool, expected: Meaning) -> None:
    read = checked()
    assert meaning_of(status, read.transient, read.of_row, names_row=names_row) is expected


def test_statuses_as_they_are_written() -> None:
    assert status_ranges(["429", "500-599"]) == (range(429, 430), range(500, 600))
    assert (reason_of(413), reason_of(422)) == ("too_large", "rejected")
    for wrong in ("", "a", "600", "599-500", "5-", "-5", "200-300"):
        with pytest.raises(ValueError, match="is not allowed"):
            status_ranges([wrong])
