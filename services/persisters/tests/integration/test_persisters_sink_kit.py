"""The sinks of this package pass the kit that every sink has to pass."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from http_receiver import Receiver
from kit_stores import (
    CassandraUnderTest,
    ElasticsearchUnderTest,
    HttpBatchesUnderTest,
    HttpRecordsUnderTest,
    MapUnderTest,
    PostgresqlUnderTest,
    QueueUnderTest,
    RoutedUnderTest,
)

from isotherm.sink_testkit import SinkConformance, SinkUnderTest

pytestmark = pytest.mark.integration


class TestElasticsearch(SinkConformance):
    @pytest.fixture
    def under_test(self, elasticsearch: Any) -> Iterator[SinkUnderTest]:
        with closing(ElasticsearchUnderTest(elasticsearch)) as made:
            yield made


@pytest.mark.long
class TestElasticsearch9(SinkConformance):
    """The same connector as for Elasticsearch 8, but for its address."""

    @pytest.fixture
    def under_test(self, elasticsearch9: Any) -> Iterator[SinkUnderTest]:
        with closing(ElasticsearchUnderTest(elasticsearch9)) as made:
            yield made


@pytest.mark.long
class TestOpensearch(SinkConformance):
    @pytest.fixture
    def under_test(self, opensearch: Any) -> Iterator[SinkUnderTest]:
        with closing(RoutedUnderTest(opensearch)) as made:
            yield made


@pytest.mark.long
class TestOpensearch2(SinkConformance):
    @pytest.fixture
    def under_test(self, opensearch2: Any) -> Iterator[SinkUnderTest]:
        with closing(ElasticsearchUnderTest(opensearch2)) as made:
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


class TestHttpRecords(SinkConformance):
    @pytest.fixture
    def under_test(self) -> Iterator[SinkUnderTest]:
        with closing(Receiver()) as receiver, closing(HttpRecordsUnderTest(receiver)) as made:
            yield made


@pytest.mark.long
class TestHttpBatches(SinkConformance):
    @pytest.fixture
    def under_test(self) -> Iterator[SinkUnderTest]:
        with closing(Receiver()) as receiver, closing(HttpBatchesUnderTest(receiver)) as made:
            yield made
