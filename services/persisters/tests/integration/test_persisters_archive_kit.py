"""The archive sinks pass the kit that every sink has to pass."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from kit_archives import IcebergUnderTest, ParquetBucketUnderTest, ParquetFilesUnderTest, ParquetLatestUnderTest

from isotherm.sink_testkit import SinkConformance, SinkUnderTest

pytestmark = pytest.mark.integration


class TestParquetFiles(SinkConformance):
    @pytest.fixture
    def under_test(self, tmp_path: Path) -> SinkUnderTest:
        return ParquetFilesUnderTest(tmp_path)


@pytest.mark.long
class TestParquetLatestRows(SinkConformance):
    @pytest.fixture
    def under_test(self, tmp_path: Path) -> SinkUnderTest:
        return ParquetLatestUnderTest(tmp_path)


@pytest.mark.long
class TestParquetOnS3(SinkConformance):
    @pytest.fixture
    def under_test(self, s3: Any) -> Iterator[SinkUnderTest]:
        with closing(ParquetBucketUnderTest(s3)) as made:
            yield made


@pytest.mark.long
class TestIceberg(SinkConformance):
    @pytest.fixture
    def under_test(self, postgresql: Any, tmp_path: Path) -> Iterator[SinkUnderTest]:
        with closing(IcebergUnderTest(postgresql, tmp_path)) as made:
            yield made
