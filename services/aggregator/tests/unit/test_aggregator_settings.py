from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from isotherm.aggregator.settings import AggregatorSettings
from isotherm.aggregator.spark import promised_properties
from isotherm.aggregator.spark.session import (
    JARS,
    configuration,
    find_jars,
    find_java,
)
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
        ("group_attributes=colour", "'home', 'room', 'region' or 'model'"),
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


def test_own_spark_properties_win(tmp_path: Path) -> None:
    for jar in JARS:
        (tmp_path / f"{jar}1.jar").touch()
    settings = load(
        f"jars_dir={tmp_path}", 'spark.properties={"spark.ui.enabled": "true"}', "spark.java_options=-Xss2m"
    )
    properties = configuration(settings, tmp_path, tmp_path / "log4j2.properties")
    assert properties["spark.ui.enabled"] == "true"
    assert properties["spark.driver.bindAddress"] == "127.0.0.1"
    assert properties["spark.driver.extraJavaOptions"].endswith(" -Xss2m")


def test_local_files_need_no_process(tmp_path: Path) -> None:
    """The driver needs the file system before spark-submit adds the jars; the class path of the user stays."""
    for jar in JARS:
        (tmp_path / f"{jar}1.jar").touch()
    settings = load(f"jars_dir={tmp_path}", 'spark.properties={"spark.driver.extraClassPath": "/mine/*"}')
    properties = configuration(settings, tmp_path, tmp_path / "log4j2.properties")
    assert properties["spark.driver.extraClassPath"] == f"{tmp_path}/hadoop-bare-naked-local-fs-1.jar:/mine/*"
    assert properties["spark.hadoop.fs.file.impl"].endswith(".NakedLocalFileSystem")


BROKEN_PROMISES = {
    "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.LocalFileSystem",
    "spark.sql.streaming.checkpointFileManagerClass": "FileContextBasedCheckpointFileManager",
    "spark.hadoop.fs.defaultFS": "hdfs://names",
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    "spark.sql.ansi.enabled": "true",
    "spark.sql.shuffle.partitions": "3",
    "spark.driver.extraJavaOptions": "-Xss2m",
}


def test_spark_properties_that_break_a_promise_are_refused_all_at_once() -> None:
    with pytest.raises(SettingsError) as refused:
        promised_properties.verify({**BROKEN_PROMISES, "spark.ui.enabled": "true"})
    assert BROKEN_PROMISES.keys() == promised_properties.PROMISED.keys()
    problems = dict(zip(promised_properties.PROMISED, refused.value.problems, strict=True))
    for name, promised in promised_properties.PROMISED.items():
        assert problems[name].startswith(f"spark.properties: {name}: {BROKEN_PROMISES[name]!r} is not allowed (")
        assert problems[name].endswith(promised.why)
        assert all(value in problems[name] for value in promised.allowed)


def test_spark_properties_that_keep_the_promises_are_accepted() -> None:
    promised_properties.verify({**promised_properties.FIXED, "spark.sql.ansi.enabled": "False"})


def test_the_service_sets_what_a_promise_rests_on_and_the_user_adds_options_of_executors(tmp_path: Path) -> None:
    for jar in JARS:
        (tmp_path / f"{jar}1.jar").touch()
    given = {"spark.sql.ansi.enabled": "False", "spark.executor.extraJavaOptions": "-Xss2m"}
    settings = load(f"jars_dir={tmp_path}", f"spark.properties={json.dumps(given)}")
    properties = configuration(settings, tmp_path, tmp_path / "log4j2.properties")
    assert promised_properties.FIXED.items() <= properties.items()
    options = properties["spark.executor.extraJavaOptions"].split()
    assert options[-1] == "-Xss2m"
    assert any(option.startswith("-Dorg.apache.avro.limits.bytes.maxLength=") for option in options)


@pytest.mark.parametrize("command", [["run"], ["recompute", "--from", "1", "--to", "2"]])
def test_a_broken_promise_ends_every_command_before_spark_starts(tmp_path: Path, command: list[str]) -> None:
    given = {"checkpoint_dir": tmp_path, "jars_dir": tmp_path, "spark.properties": "spark.sql.ansi.enabled=true"}
    settings = [part for name, value in given.items() for part in ("--set", f"{name}={value}")]
    arguments = [sys.executable, "-m", "isotherm.aggregator", *command, *settings]
    ended = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert "spark.properties: spark.sql.ansi.enabled: 'true' is not allowed (only false)" in ended.stderr


@pytest.mark.parametrize(
    ("given", "collectors"),
    [("-Xss2m", ["-XX:+UseParallelGC"]), ("-XX:+UseSerialGC", ["-XX:+UseSerialGC"])],
)
def test_the_jvm_gets_one_collector(tmp_path: Path, given: str, collectors: list[str]) -> None:
    for jar in JARS:
        (tmp_path / f"{jar}1.jar").touch()
    settings = load(f"jars_dir={tmp_path}", f"spark.java_options={given}")
    options = configuration(settings, tmp_path, tmp_path / "log4j2.properties")["spark.driver.extraJavaOptions"]
    assert [option for option in options.split() if "GC" in option] == collectors


def test_a_refusal_is_exit_code_2() -> None:
    command = [sys.executable, "-m", "isotherm.aggregator", "run", "--set", "window_ms=1"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert "window_ms (--set)" in ended.stderr
    assert "checkpoint_dir" in ended.stderr
