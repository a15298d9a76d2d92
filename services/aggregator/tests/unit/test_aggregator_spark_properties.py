"""Which properties Spark gets: the service's own, those of Spark's user, and those on which a promise rests."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isotherm.aggregator.settings import AggregatorSettings
from isotherm.aggregator.spark import gateway, promised_properties, properties
from isotherm.servicekit import settings as loading
from isotherm.servicekit.settings import SettingsError

JAR = Path("/jars/hadoop-bare-naked-local-fs-1.jar")
FILE_SYSTEM = promised_properties.FILE_SYSTEM
LOCAL, REMOTE = "file:///c", "s3a://bucket/c"
PROMISED = promised_properties.promised(LOCAL)
BROKEN_PROMISES = {
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    "spark.sql.ansi.enabled": "true",
    "spark.sql.shuffle.partitions": "3",
    FILE_SYSTEM: "org.apache.hadoop.fs.LocalFileSystem",
    promised_properties.FILE_MANAGER: promised_properties.CONTEXT_FILE_MANAGER,
}
SETTINGS_ONLY = {"spark.driver.extraJavaOptions": "-Xss2m"}


def load(*overrides: str) -> AggregatorSettings:
    return loading.load(AggregatorSettings, "aggregator", environ={}, overrides=["checkpoint_dir=c", *overrides])


def of_new_jvm(*overrides: str) -> dict[str, str]:
    return properties.of_new_jvm(load(*overrides), Path("/work"), Path("/work/log4j2.properties"), [JAR])


def has_all(_name: str) -> bool:
    """A JVM with every jar."""
    return True


def has_none(_name: str) -> bool:
    """A JVM with no jar but Spark's own."""
    return False


def of_session(*overrides: str, has_class: Callable[[str], bool] = has_all, **started_with: str) -> dict[str, str]:
    named = {name.replace("_", "."): value for name, value in started_with.items()}
    return properties.of_session(load(*overrides), named, has_class)


def given_properties(**given: str) -> str:
    return "spark.properties=" + json.dumps({name.replace("_", "."): value for name, value in given.items()})


def test_what_is_not_set_is_left_to_the_user_s_spark() -> None:
    assert not {"spark.master", "spark.driver.memory"} & of_new_jvm().keys()
    chosen = of_new_jvm("spark.master=spark://host:7077", "spark.driver_memory=3g")
    assert (chosen["spark.master"], chosen["spark.driver.memory"]) == ("spark://host:7077", "3g")


def test_the_options_of_the_setting_come_last() -> None:
    assert of_new_jvm("spark.java_options=-Xss2m")["spark.driver.extraJavaOptions"].endswith(" -Xss2m")


@pytest.mark.parametrize(
    ("given", "collectors"),
    [("-Xss2m", ["-XX:+UseParallelGC"]), ("-XX:+UseSerialGC", ["-XX:+UseSerialGC"])],
)
def test_the_jvm_gets_one_collector(given: str, collectors: list[str]) -> None:
    options = of_new_jvm(f"spark.java_options={given}")["spark.driver.extraJavaOptions"]
    assert [option for option in options.split() if "GC" in option] == collectors


def test_the_driver_has_the_file_system_before_spark_submit_adds_the_jars() -> None:
    """The class path of the user stays."""
    assert of_new_jvm()["spark.driver.extraClassPath"] == str(JAR)
    assert of_new_jvm()[FILE_SYSTEM] == promised_properties.NAKED_FILE_SYSTEM
    chosen = of_new_jvm(given_properties(spark_driver_extraClassPath="/mine/*"))
    assert chosen["spark.driver.extraClassPath"] == f"{JAR}:/mine/*"
    assert chosen["spark.jars"] == str(JAR)


@given(
    own=st.sampled_from(["spark.scheduler.mode", "spark.cleaner.periodicGC.interval", "spark.sql.adaptive.enabled"]),
    submitted=st.none() | st.text(min_size=1),
    setting=st.none() | st.text(min_size=1),
)
def test_the_setting_wins_over_spark_submit_and_that_over_the_service(
    own: str, submitted: str | None, setting: str | None
) -> None:
    chosen = load(f"spark.properties={json.dumps({} if setting is None else {own: setting})}")
    started_with = {"spark.master": "yarn"} | ({} if submitted is None else {own: submitted})
    effective = started_with | properties.of_session(chosen, started_with, has_all)
    unset = properties.of_session(load(), {}, has_all)[own]
    assert effective[own] == next(value for value in (setting, submitted, unset) if value is not None)


def test_the_driver_listens_on_loopback_where_there_are_no_executors_elsewhere() -> None:
    assert of_session(spark_master="local[4]")["spark.driver.host"] == "127.0.0.1"
    assert "spark.driver.host" not in of_session(spark_master="spark://host:7077")


def test_the_page_of_spark_is_off_until_somebody_wants_it() -> None:
    assert of_session()["spark.ui.enabled"] == "false"
    assert of_session("spark.ui_port=4040").items() >= {"spark.ui.enabled": "true", "spark.ui.port": "4040"}.items()
    for chosen in (
        of_session("spark.ui_port=0"),
        of_session(spark_ui_enabled="true"),
        of_session(given_properties(spark_ui_enabled="true")),
    ):
        assert "spark.ui.retainedJobs" not in chosen


def test_a_spark_without_the_jar_renames_files_alike() -> None:
    assert of_session()[FILE_SYSTEM] == promised_properties.NAKED_FILE_SYSTEM
    assert of_session(has_class=has_none)[FILE_SYSTEM] == promised_properties.RAW_FILE_SYSTEM
    submitted = {FILE_SYSTEM: promised_properties.RAW_FILE_SYSTEM}
    assert FILE_SYSTEM not in properties.of_session(load(), submitted, has_all)


def test_a_remote_checkpoint_is_written_as_its_file_system_can() -> None:
    """What replaces by rename(2) would fail on S3 and HDFS when a batch is run again."""
    name = promised_properties.FILE_MANAGER
    assert of_session()[name] == promised_properties.LOCAL_FILE_MANAGER
    assert name not in of_session("checkpoint_dir=hdfs://host/c")
    assert name not in of_session(f"checkpoint_dir={REMOTE}", has_class=has_none)
    assert of_session(f"checkpoint_dir={REMOTE}")[name] == promised_properties.ABORTABLE_FILE_MANAGER
    assert of_session(f"checkpoint_dir={REMOTE}")["spark.hadoop.fs.s3a.input.stream.type"] == "classic"
    for allowed in (promised_properties.CONTEXT_FILE_MANAGER, promised_properties.ABORTABLE_FILE_MANAGER):
        promised_properties.verify({name: allowed}, REMOTE)
    with pytest.raises(SettingsError, match=name):
        promised_properties.verify({name: promised_properties.LOCAL_FILE_MANAGER}, REMOTE)


def test_a_remote_checkpoint_leaves_the_files_of_this_machine_to_hadoop() -> None:
    """S3A keeps parts of objects in files, for which it wants the file system that Hadoop has by itself."""
    for remote in (f"checkpoint_dir={REMOTE}", "checkpoint_dir=hdfs://host/c"):
        assert FILE_SYSTEM not in of_new_jvm(remote)
        assert FILE_SYSTEM not in of_session(remote)


def test_rocksdb_gets_defaults_that_were_measured_wherever_it_was_chosen() -> None:
    rocksdb = properties.ROCKSDB
    chosen = of_session(given_properties(**{properties.STATE_STORE: rocksdb}))
    submitted = properties.of_session(load(), {properties.STATE_STORE: rocksdb}, has_all)
    name = "spark.sql.streaming.stateStore.rocksdb.blockCacheSizeMB"
    assert chosen[name] == submitted[name] == "512"
    assert name not in of_session()
    assert of_session(given_properties(**{properties.STATE_STORE: rocksdb, name: "64"}))[name] == "64"
    theirs = properties.of_session(load(), {properties.STATE_STORE: rocksdb, name: "32"}, has_all)
    assert name not in theirs, "Spark's user has set it"

    with pytest.raises(SettingsError, match="without the jar hadoop-bare-naked-local-fs"):
        properties.of_session(load(), {properties.STATE_STORE: rocksdb}, has_none)
    raw = {FILE_SYSTEM: promised_properties.RAW_FILE_SYSTEM}
    with pytest.raises(SettingsError, match="without the jar hadoop-bare-naked-local-fs"):
        properties.of_session(load(), {properties.STATE_STORE: rocksdb, **raw}, has_all)
    assert properties.of_session(load(f"checkpoint_dir={REMOTE}"), {properties.STATE_STORE: rocksdb}, has_none)

    assert properties.is_rocksdb(chosen)
    assert not properties.counts_state_rows(chosen)
    assert properties.counts_state_rows({**chosen, properties.COUNTS_STATE_ROWS: "true"})
    assert properties.counts_state_rows(of_session())


def test_executors_get_the_limits_and_the_user_s_options() -> None:
    name = "spark.executor.extraJavaOptions"
    submitted = properties.of_session(load(), {name: "-Xss2m"}, has_all)
    for chosen in (submitted, of_session(f'spark.properties={{"{name}": "-Xss2m"}}')):
        options = chosen[name].split()
        assert options[-1] == "-Xss2m"
        assert {option.partition("=")[0] for option in options} >= {f"-D{limit}" for limit in properties.AVRO_LIMITS}


def test_settings_that_break_a_promise_are_refused_all_at_once() -> None:
    broken = {**BROKEN_PROMISES, **SETTINGS_ONLY}
    with pytest.raises(SettingsError) as refused:
        promised_properties.verify({**broken, "spark.ui.enabled": "true"}, LOCAL)
    assert BROKEN_PROMISES.keys() == PROMISED.keys()
    assert len(refused.value.problems) == len(broken)
    for problem, (name, value) in zip(refused.value.problems, broken.items(), strict=True):
        assert problem.startswith(f"spark.properties: {name}: {value!r} is not allowed (")
    for problem, promised in zip(refused.value.problems, PROMISED.values(), strict=False):
        assert problem.endswith(promised.why)
        assert all(value in problem for value in promised.allowed)


def test_spark_submit_that_breaks_a_promise_is_refused_all_at_once() -> None:
    """The JVM's own options are verified in the JVM."""
    with pytest.raises(SettingsError) as refused:
        properties.of_session(load(), {**BROKEN_PROMISES, **SETTINGS_ONLY}, has_all)
    assert [problem.split(":")[0] for problem in refused.value.problems] == list(BROKEN_PROMISES)


def test_spark_submit_may_repeat_what_the_service_sets() -> None:
    fixed = promised_properties.fixed(LOCAL)
    promised_properties.verify({**fixed, "spark.sql.ansi.enabled": "False"}, LOCAL)
    same = {**fixed, "spark.sql.shuffle.partitions": "2"}
    chosen = properties.of_session(load(), same, has_all)
    assert fixed.items() <= chosen.items()


def test_what_only_spark_submit_can_choose_is_refused_under_it() -> None:
    given = ["spark.master=local[2]", "spark.driver_memory=2g", "spark.java_options=-Xss2m", "spark.class_archive=a"]
    with pytest.raises(SettingsError) as refused:
        gateway.verify_jvm_is_free_to_choose(load(*given, given_properties(spark_jars="a.jar")))
    for problem, option in zip(
        refused.value.problems,
        ("--master", "--driver-memory", "--driver-java-options", "-XX:SharedArchiveFile", "give it to spark-submit"),
        strict=True,
    ):
        assert "is not allowed: spark-submit has started the JVM" in problem
        assert option in problem
    gateway.verify_jvm_is_free_to_choose(load("jars_dir=j", "spark.ui_port=0"))
