"""The two servers that speak Elasticsearch's REST API."""

from __future__ import annotations

from enum import StrEnum


class Product(StrEnum):
    """A server's product, by its name."""

    ELASTICSEARCH = "Elasticsearch"
    OPENSEARCH = "OpenSearch"
