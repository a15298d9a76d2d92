"""Parquet files on S3: a write that the server executes late, when the rows have another owner."""

from __future__ import annotations

import io
import threading
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from kit_archives import s3_options
from obstore.store import S3Store
from persisters_relay import Relay
from test_persisters_parquet import TOPIC, reading, writing

from isotherm.persisters.api.sink import SinkConfigError, Unavailable

pytestmark = pytest.mark.integration


def keys(s3: Any, port: int, bucket: str) -> dict[str, str]:
    """The keys of a connector for a bucket of the server."""
    return {
        "url": f"s3://{bucket}/lake",
        "s3_endpoint": f"http://127.0.0.1:{port}",
        "s3_access_key": s3.access_key,
        "s3_secret_key": s3.secret_key,
    }


def test_a_late_write_of_a_former_owner_adds_nothing(tmp_path: Path, s3: Any) -> None:
    s3.create_bucket("late")
    relay = Relay(s3.port)
    former = writing(tmp_path, **keys(s3, relay.port, "late"))
    owner = writing(tmp_path, **keys(s3, s3.port, "late"))
    prepared = [former.prepare(reading(offset)) for offset in range(6)]
    former.write(*prepared[:2])
    relay.hold_next(b"PUT ")
    late = threading.Thread(target=former.write, args=prepared[2:4])
    late.start()
    assert relay.held.wait(60)
    # It begins before the first write, as after a kill between the file and the commit, and reads further.
    owner.write(*prepared[1:6])
    relay.release()
    late.join(60)
    assert not late.is_alive()
    relay.close()
    store = S3Store("late", **s3_options(s3))
    listed = [entry["path"] for chunk in store.list() for entry in chunk]
    found = [pq.read_table(io.BytesIO(bytes(store.get(path).bytes()))) for path in listed]
    assert sorted(offset for table in found for offset in table["kafka_offset"].to_pylist()) == list(range(6))


def test_what_is_wrong_with_the_bucket_is_said(tmp_path: Path, s3: Any, free_port: Any) -> None:
    task = writing(tmp_path, **keys(s3, s3.port, "nobody-made-it"))
    with pytest.raises(
        SinkConfigError, match="s3://nobody-made-it/lake: NoSuchBucket: The specified bucket does not exist"
    ):
        task.sink.open()
    away = writing(tmp_path, **keys(s3, free_port(), "away"), write_timeout_ms="1000")
    with pytest.raises(Unavailable, match="s3://away/lake"):
        away.sink.open()


def test_a_topic_may_have_any_name_that_kafka_allows(tmp_path: Path, s3: Any) -> None:
    """The folder is listed from the topic's names on: one that is a part of another must not hide it."""
    s3.create_bucket("names")
    task = writing(tmp_path, **keys(s3, s3.port, "names"))
    first, second = task.prepare(reading(0)), task.prepare(reading(1))
    store = S3Store("names", **s3_options(s3))
    store.put("lake/lake/date=2026-01-01/" + TOPIC[:-1] + "+0+1.parquet", b"")
    store.put("lake/lake/date=2026-01-01/" + TOPIC + "+00+1.parquet", b"")
    task.write(first)
    task.write(first, second)
    listed = [entry["path"] for chunk in store.list() for entry in chunk]
    assert len(listed) == 4
