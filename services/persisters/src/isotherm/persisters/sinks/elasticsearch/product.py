"""The two servers that speak Elasticsearch's REST API, and what both say."""

from __future__ import annotations

from enum import StrEnum

BLOCKED = "cluster_block_exception"
"""An index, or the whole cluster, takes no writes now: read-only, out of disk space, without a master."""


class Product(StrEnum):
    """A server's product, by its name."""

    ELASTICSEARCH = "Elasticsearch"
    OPENSEARCH = "OpenSearch"
