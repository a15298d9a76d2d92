"""The REST API of Elasticsearch and OpenSearch, as far as the sink needs it, and what failed requests mean.

Requests carry plain JSON media types, which every version of both takes. The official clients ask for the API of their
own major version and refuse other servers: see docs/adr/0205.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import quote

from elastic_transport import (
    ApiResponseMeta,
    NodeConfig,
    OrjsonSerializer,
    Serializer,
    Transport,
    TransportError,
)

from isotherm.persisters.api.sink import SinkConfigError, Unavailable
from isotherm.persisters.sinks import tls
from isotherm.persisters.sinks.elasticsearch.product import BLOCKED, Product

_JSON, _NDJSON = "application/json", "application/x-ndjson"
_TRANSIENT = frozenset((429, 500, 502, 503, 504))
"""Statuses of a whole request that concern the server and not the request."""
_GZIP_LEVEL = 1
"""Documents shrink to about a tenth already; higher levels cost several times the processor time."""
_PRODUCT_HEADER = "x-elastic-product"
"""Every response of Elasticsearch since 7.14 has it, and none of OpenSearch."""


class NotAllowedError(SinkConfigError):
    """The connector's user may not do this."""


class RequestRefusedError(Exception):
    """The server refused one request for what it asks; the text is the server's."""

    def __init__(self, product: Product, status: int, kind: str, reason: str) -> None:
        super().__init__(f"{product}: {status} {kind}: {reason}" if kind else f"{product}: {status}: {reason}")
        self.status = status
        self.kind = kind
        """The server's name of the error, such as `mapper_parsing_exception`; empty if it gives none."""


class _Response(NamedTuple):
    status: int
    body: Any
    meta: ApiResponseMeta


class _EncodedLines(Serializer):
    """Bulk requests are put together as bytes: they are sent as they are, without a copy."""

    mimetype = _NDJSON

    def dumps(self, data: Any) -> bytes:
        """Return the bytes themselves."""
        assert isinstance(data, bytes)
        return data


class SearchServer:
    """A cluster of Elasticsearch or OpenSearch; safe for several threads. It retries nothing by itself.

    Every method raises Unavailable, SinkConfigError (NotAllowedError among them), or RequestRefusedError if the server
    refused this very request.
    """

    def __init__(self, nodes: Sequence[NodeConfig], headers: Mapping[str, str], *, compresses: bool = False) -> None:
        """`headers` go with every request; `compresses` sends bulk requests gzipped."""
        self._transport = Transport(
            list(nodes),
            max_retries=0,
            meta_header=False,
            serializers={_NDJSON: _EncodedLines(), _JSON: OrjsonSerializer()},
        )
        self._headers = {"accept": _JSON, **({"accept-encoding": "gzip"} if compresses else {}), **headers}
        self._headers_json = {**self._headers, "content-type": _JSON}
        encoding = {"content-encoding": "gzip"} if compresses else {}
        self._headers_bulk = {**self._headers, "content-type": _NDJSON, **encoding}
        self._compresses = compresses
        self.product = Product.ELASTICSEARCH
        """Which of the two it is, once `identify` was called."""

    def close(self) -> None:
        """Close the connections."""
        self._transport.close()

    def identify(self) -> str:
        """Find out which product this is, and return the name of the cluster."""
        response = self._request("GET", "/_cluster/health?timeout=5s")
        if not isinstance(response.body, dict) or "cluster_name" not in response.body:
            raise SinkConfigError("the server at this address is neither Elasticsearch nor OpenSearch")
        self.product = self._product_of(response.meta)
        return str(response.body["cluster_name"])

    def bulk(self, *, index: str | None, operations: bytes, filter_path: str) -> Any:
        """Send a bulk request, its lines as bytes, and return the filtered response."""
        body = gzip.compress(operations, _GZIP_LEVEL) if self._compresses else operations
        place = "" if index is None else f"/{_quoted(index)}"
        path = f"{place}/_bulk?filter_path={filter_path}"
        return self._request("POST", path, body=body, headers=self._headers_bulk).body

    def versions(self, *, index: str | None, asked: Mapping[str, Any], filter_path: str) -> Any:
        """Return what `_mget` says of documents, filtered, without their contents.

        `asked` is the request's body: `ids` in `index`, or `docs`, each with what it needs of `_index` and `routing`.
        """
        place = "" if index is None else f"/{_quoted(index)}"
        path = f"{place}/_mget?_source=false&filter_path={filter_path}"
        return self._request("POST", path, body=asked).body

    def document(self, *, index: str, id: str, routing: str | None) -> Mapping[str, Any] | None:
        """Return a document with its `_source` and `_version`, as the last write left it; None if there is none."""
        query = "" if routing is None else f"?routing={_quoted(routing)}"
        found = self._request("GET", f"/{_quoted(index)}/_doc/{_quoted(id)}{query}", accepted=(404,)).body
        return found if isinstance(found, dict) and found.get("found") else None

    def streamed_document(self, *, data_stream: str, id: str) -> Mapping[str, Any] | None:
        """Return a document of any of a data stream's indices, likewise; None also if there is no such stream."""
        try:
            (stream,) = self.get(f"/_data_stream/{_quoted(data_stream)}")["data_streams"] or [{"indices": ()}]
        except RequestRefusedError as refused:
            if refused.status != 404:
                raise
            return None
        asked = [{"_index": index["index_name"], "_id": id} for index in stream["indices"]]
        answers = self.post("/_mget", {"docs": asked})["docs"] if asked else ()
        found = next((one for one in answers if one.get("found")), None)
        failed = next((one["error"] for one in answers if "error" in one), None)
        if found is None and failed is not None:
            raise Unavailable(f"{self.product}: {failed.get('reason', failed)}")
        return found

    def exists(self, index: str) -> bool:
        """Whether there is an index, alias or data stream of this name."""
        return self._request("HEAD", f"/{_quoted(index)}", accepted=(404,)).status != 404

    def mappings(self, index: str) -> Mapping[str, Any]:
        """Return the mappings of the indices behind a name, by index."""
        found: Mapping[str, Any] = self.get(f"/{_quoted(index)}/_mapping")
        return {name: described["mappings"] for name, described in found.items()}

    def put_mapping(self, index: str, fields: Mapping[str, Any]) -> None:
        """Add fields to an index."""
        self.put(f"/{_quoted(index)}/_mapping", {"properties": fields})

    def create_index(self, index: str, fields: Mapping[str, Any]) -> None:
        """Create an index with these fields, and what its template says."""
        self.put(f"/{_quoted(index)}", {"mappings": {"properties": fields}})

    def put_index_template(self, name: str, template: Mapping[str, Any]) -> None:
        """Create or replace an index template."""
        self.put(f"/_index_template/{_quoted(name)}", template)

    def write_index(self, data_stream: str) -> str:
        """Return the index that a data stream writes; RequestRefusedError with status 404 without such a stream."""
        found = self.get(f"/_data_stream/{_quoted(data_stream)}")["data_streams"]
        if not found:
            # OpenSearch does not say 404 if there is an index of this name.
            raise RequestRefusedError(self.product, 404, "", "there is no such data stream")
        return str(found[0]["indices"][-1]["index_name"])

    def create_data_stream(self, name: str) -> None:
        """Create a data stream; its template must be there."""
        self.put(f"/_data_stream/{_quoted(name)}", None)

    def close_index(self, index: str) -> None:
        """Close an index, if it is there."""
        self._request("POST", f"/{_quoted(index)}/_close?ignore_unavailable=true")

    def delete_index(self, index: str) -> None:
        """Delete an index, if it is there."""
        self._request("DELETE", f"/{_quoted(index)}?ignore_unavailable=true")

    def list_indices(self, pattern: str) -> Iterable[Mapping[str, str]]:
        """Return `index` and `status` of the open and closed indices of a pattern."""
        query = "h=index,status&format=json&expand_wildcards=open,closed"
        found: Iterable[Mapping[str, str]] = self.get(f"/_cat/indices/{_quoted(pattern, '*')}?{query}")
        return found

    def clock_ms(self) -> int:
        """Return the server's time in epoch milliseconds, in whole seconds."""
        (row,) = self.get("/_cat/health?h=epoch&format=json")
        return int(row["epoch"]) * 1000

    def get(self, path: str) -> Any:
        """Return the body of the response to a GET."""
        return self._request("GET", path).body

    def put(self, path: str, body: Mapping[str, Any] | None) -> Any:
        """Return the body of the response to a PUT."""
        return self._request("PUT", path, body=body).body

    def post(self, path: str, body: Mapping[str, Any] | None) -> Any:
        """Return the body of the response to a POST."""
        return self._request("POST", path, body=body).body

    def _product_of(self, meta: ApiResponseMeta) -> Product:
        if meta.headers.get(_PRODUCT_HEADER) == Product.ELASTICSEARCH:
            return Product.ELASTICSEARCH
        # A proxy may have taken the header away, so the server is asked; not every user may ask.
        try:
            version = self.get("/").get("version", {})
        except (NotAllowedError, RequestRefusedError):
            return Product.OPENSEARCH
        return Product.OPENSEARCH if version.get("distribution") == "opensearch" else Product.ELASTICSEARCH

    def _request(
        self,
        method: str,
        path: str,
        *,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
        accepted: Sequence[int] = (),
    ) -> _Response:
        if headers is None:
            headers = self._headers if body is None else self._headers_json
        try:
            meta, answer = self._transport.perform_request(method, path, headers=headers, body=body)
        except TransportError as error:
            doubt = tls.distrust(error)
            if doubt is not None:
                raise SinkConfigError(f"{self.product}: {doubt}") from error
            raise Unavailable(f"{self.product}: {error}") from error
        if 200 <= meta.status < 300 or meta.status in accepted:
            return _Response(meta.status, answer, meta)
        raise self._refusal(meta.status, answer)

    def _refusal(self, status: int, body: Any) -> Exception:
        error = body.get("error", "") if isinstance(body, dict) else body or ""
        kind = str(error.get("type", "")) if isinstance(error, dict) else ""
        reason = error.get("reason", "") if isinstance(error, dict) else error
        refused = RequestRefusedError(self.product, status, kind, str(reason)[:1_000])
        if status in _TRANSIENT or kind == BLOCKED:
            return Unavailable(str(refused))
        if status == 403:
            return NotAllowedError(str(refused))
        return SinkConfigError(str(refused)) if status == 401 else refused


def _quoted(name: str, safe: str = "") -> str:
    return quote(name, safe=safe)
