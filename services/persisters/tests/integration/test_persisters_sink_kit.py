"""The sinks of this package pass the kit that every sink has to pass."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from kit_stores import (
    CassandraUnderTest,
    ElasticsearchUnderTest,
    MapUnderTest,
    PostgresqlUnderTest,
    QueueUnderTest,
)

from isotherm.sink_testkit import SinkConformance, SinkUnderTest

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]


class TestElasticsearch(SinkConformance):
    @pytest.fixture
    def under_test(self, elasticsearch: Any) -> Iterator[SinkUnderTest]:
        with closing(ElasticsearchUnderTest(elasticsearch)) as made:
            yield made


class TestCassandra(SinkConformance):
    @pytest.fixture
    def under_test(self, cassandra: Any) -> Iterator[SinkUnderTest]:
        with closing(CassandraUnderTest(cassandra)) as made:
            yield made


class TestHazelcastMap(SinkConformance):
    @pytest.fixture
    def under_test(self, hazelcast: Any) -> Iterator[SinkUnderTest]:
        with closing(MapUnderTest(hazelcast)) as made:
            yield made


class TestHazelcastQueue(SinkConformance):
    @pytest.fixture
    def under_test(self, hazelcast: Any) -> Iterator[SinkUnderTest]:
        with closing(QueueUnderTest(hazelcast)) as made:
            yield made


class TestPostgresql(SinkConformance):
    @pytest.fixture
    def under_test(self, postgresql: Any) -> Iterator[SinkUnderTest]:
        with closing(PostgresqlUnderTest(postgresql)) as made:
            yield made
