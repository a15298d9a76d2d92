"""A Spark that somebody else has started: what the service verifies in its JVM. A stand-in is in the JVM's place."""

from __future__ import annotations

from typing import Any
from unittest.mock import MagicMock

import pyspark
import pytest

from isotherm.aggregator.spark import properties, session
from isotherm.servicekit.settings import SettingsError

LIMIT = properties.AVRO_LIMITS[0]


class GivenSpark:
    """The gateway to a JVM of some version, with some classes and system properties."""

    def __init__(self, version: str = pyspark.__version__, *, lacks: str = "", **system: str) -> None:
        self.system = {name.replace("_", "."): value for name, value in system.items()}
        self._lacks = lacks
        self.jvm = MagicMock()
        getattr(getattr(self.jvm.org.apache.spark, "package$"), "MODULE$").SPARK_VERSION.return_value = version
        self.jvm.java.lang.System.getProperty.side_effect = self.system.get
        self.jvm.java.lang.System.setProperty.side_effect = self.system.__setitem__

    def has_class(self, name: str) -> bool:
        return self._lacks not in name if self._lacks else True


def configuration(gateway: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Verify as at a start, up to the properties, which have tests of their own."""

    class Verified(Exception):
        pass

    def reached(*_arguments: object, **_options: object) -> None:
        raise Verified

    monkeypatch.setattr(session, "SparkConf", reached)
    with pytest.raises(Verified):
        session._configuration(MagicMock(), gateway)


def test_what_avro_allocates_is_bounded_before_it_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    given = GivenSpark()
    configuration(given, monkeypatch)
    assert {given.system[name] for name in properties.AVRO_LIMITS} == {str(properties.MAX_AVRO_FIELD_BYTES)}
    assert given.system[properties.FAST_READER] == "true"


def test_a_lower_bound_of_the_user_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    given = GivenSpark()
    given.system[LIMIT] = "1024"
    configuration(given, monkeypatch)
    assert given.system[LIMIT] == "1024"


@pytest.mark.parametrize("bound", ["16777217", "0", "-1", "many"])
def test_another_bound_is_refused(bound: str) -> None:
    given = GivenSpark()
    given.system[LIMIT] = bound
    with pytest.raises(SettingsError, match=f"-D{LIMIT}={bound} is not allowed: must be 1 to 16777216"):
        session._configuration(MagicMock(), given)  # type: ignore[arg-type]  # a stand-in


def test_a_spark_of_another_version_than_its_python_is_refused() -> None:
    with pytest.raises(SettingsError, match=rf"SPARK_HOME: Spark 3\.5\.1 is not allowed: .* {pyspark.__version__}"):
        session._configuration(MagicMock(), GivenSpark("3.5.1"))  # type: ignore[arg-type]  # a stand-in


@pytest.mark.parametrize(("lacks", "package"), [("kafka010", "spark-sql-kafka-0-10"), (".avro.", "spark-avro")])
def test_a_package_that_spark_lacks_is_named(lacks: str, package: str) -> None:
    with pytest.raises(SettingsError, match=rf"org\.apache\.spark:{package}_2\.13:{pyspark.__version__} \(--packages"):
        session._configuration(MagicMock(), GivenSpark(lacks=lacks))  # type: ignore[arg-type]  # a stand-in
