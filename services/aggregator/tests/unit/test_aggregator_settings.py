from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from isotherm.aggregator.settings import AggregatorSettings
from isotherm.aggregator.spark.gateway import JARS, find_jars, find_java
from isotherm.servicekit import settings as loading
from isotherm.servicekit.settings import SettingsError


def load(*overrides: str) -> AggregatorSettings:
    return loading.load(
        AggregatorSettings, "aggregator", environ={}, overrides=["checkpoint_dir=c", "jars_dir=j", *overrides]
    )


def test_lists_come_from_text() -> None:
    assert load("input_topics=a, b").input_topics == ["a", "b"]
    assert load("group_attributes=").group_attributes == []


@pytest.mark.parametrize(
    ("override", "text"),
    [
        ("slide_ms=90000", "leaves gaps between windows"),
        ("window_ms=10", "window_ms .*greater than or equal to 1000"),
        ("input_pattern=a(?i)b", "is not allowed: use only letters, digits"),
        ("input_pattern=a[b", "is not allowed: use only letters, digits"),
        ("input_pattern=(a", "not a regular expression"),
        ("input_pattern=thermostat[.].+", "input_pattern includes thermostat.late"),
        ("input_topics=a,devices", "input_topics includes devices"),
        ("group_attributes=colour", "must be home, room, region, model or attributes.<name>"),
        ("group_attributes=attributes.", "must be home, room, region, model or attributes.<name>"),
        ("group_attributes=attributes.a`b", "must be home, room, region, model or attributes.<name>"),
        ("group_attributes=home,home", "'home' is there twice"),
        ("spark.driver_memory=lots", "spark.driver_memory"),
        ("windows_ms=1", "did you mean window_ms"),
    ],
)
def test_what_cannot_be_used_is_named(override: str, text: str) -> None:
    with pytest.raises(SettingsError, match=text):
        load(override)


def test_the_input_is_a_list_or_a_pattern() -> None:
    with pytest.raises(SettingsError, match="either input_topics or input_pattern"):
        load("input_topics=a", "input_pattern=b")
    assert load("input_topics=a, b").subscription == {"subscribe": "a,b"}


def test_a_pattern_has_to_match_the_whole_name() -> None:
    settings = load(r"input_pattern=site-\d{2}\.data|plant")
    assert [
        name for name in ("site-01.data", "plant", "site-01.data.old", "plants", "my-plant") if settings.reads(name)
    ] == [
        "site-01.data",
        "plant",
    ]
    assert settings.subscription == {"subscribePattern": r"^(?:site-\d{2}\.data|plant)$"}


def test_missing_jars_are_named(tmp_path: Path) -> None:
    for jar in JARS[1:]:
        (tmp_path / f"{jar}1.jar").touch()
    with pytest.raises(SettingsError, match=r"0 files spark-sql-kafka-0-10_2\.13-\*\.jar"):
        find_jars(tmp_path)
    (tmp_path / f"{JARS[0]}1.jar").touch()
    assert len(find_jars(tmp_path)) == len(JARS)


def test_a_missing_java_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(SettingsError, match=r"JAVA_HOME=.* has no bin/java"):
        find_java()


@pytest.mark.parametrize("command", [["run"], ["recompute", "--from", "1", "--to", "2"]])
def test_a_broken_promise_ends_every_command_before_spark_starts(tmp_path: Path, command: list[str]) -> None:
    given = {"checkpoint_dir": tmp_path, "jars_dir": tmp_path, "spark.properties": "spark.sql.ansi.enabled=true"}
    settings = [part for name, value in given.items() for part in ("--set", f"{name}={value}")]
    arguments = [sys.executable, "-m", "isotherm.aggregator", *command, *settings]
    ended = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert "spark.properties: spark.sql.ansi.enabled: 'true' is not allowed (only false)" in ended.stderr


def test_a_refusal_is_exit_code_2() -> None:
    command = [sys.executable, "-m", "isotherm.aggregator", "run", "--set", "window_ms=1"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert "window_ms (--set)" in ended.stderr
    assert "checkpoint_dir" in ended.stderr
