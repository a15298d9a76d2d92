"""Fixtures of the Elasticsearch sink's tests, a pytest plugin of its test files."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from elasticsearch import Elasticsearch


@pytest.fixture
def client(elasticsearch: Any) -> Iterator[Elasticsearch]:
    """The server's own client."""
    with Elasticsearch(elasticsearch.url) as made:
        yield made


@pytest.fixture
def index() -> str:
    """A name that no other test uses."""
    return f"t{uuid.uuid4().hex[:10]}"
