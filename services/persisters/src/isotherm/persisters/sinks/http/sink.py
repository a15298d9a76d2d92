"""The HTTP sink: requests with rows, in the order of their partition."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from isotherm.connector.config.masking import mask_written
from isotherm.connector.config.validation import Validated
from isotherm.persisters.api.row import Batch, FailedRow
from isotherm.persisters.api.sink import SinkConfigError, Unavailable
from isotherm.persisters.sinks import tls
from isotherm.persisters.sinks.http import settings
from isotherm.persisters.sinks.http.connections import Answer, Connections, Limits
from isotherm.persisters.sinks.http.connector_keys import PREFIX
from isotherm.persisters.sinks.http.requests import Chunk, Request, Requests
from isotherm.persisters.sinks.http.responses import MISSING, Meaning, meaning_of, reason_of
from isotherm.servicekit.webhooks.retry_after import pause_ms


class RefusedByServerError(Exception):
    """The server refused a row; the text is its answer."""


class HttpSink:
    """Each row is part of a request that the server has answered with a status of success.

    A request whose answer is lost is sent again with the same key, so a server that remembers keys takes it once; see
    docs/adr/0207.
    """

    def __init__(self, config: Validated) -> None:
        self._settings = settings.read(config)
        self._requests = Requests(self._settings, config.name)
        address = self._settings.address
        limits = Limits(
            config.integer(f"{PREFIX}.concurrent.requests"),
            config.integer(f"{PREFIX}.connect.timeout.ms") / 1000,
            config.integer(f"{PREFIX}.write.timeout.ms") / 1000,
        )
        context = tls.context(config, PREFIX) if address.origin.is_tls else None
        mask = mask_written({f"secret {one}": text for one, text in enumerate(self._settings.secrets)})
        self._connections = Connections(address.origin, self._settings.proxy, context, limits, mask)
        self._has_row_in_address = address.names_id or address.names_target

    def open(self) -> None:
        """Connect to the server once, without a request."""
        self._connections.check()

    def write(self, batch: Batch) -> Sequence[FailedRow]:
        """Send the rows in as many requests as they need; return those that the server refused.

        If the server takes no more after some requests, the other rows are returned as failed for now.
        """
        failed: list[FailedRow] = []
        is_begun, away = False, None
        for chunk in self._requests.chunks(batch, failed):
            if away is None:
                try:
                    self._send(chunk, batch, failed)
                    is_begun = True
                    continue
                except Unavailable as error:
                    if not is_begun:
                        raise
                    away = error
            failed += [FailedRow(index, "unavailable", away, transient=True) for index in chunk.indices]
        return failed

    def close(self) -> None:
        """Close the connections."""
        self._connections.close()

    def _send(self, chunk: Chunk, batch: Batch, failed: list[FailedRow]) -> None:
        def request() -> Request:
            batch.ownership.check()
            return self._requests.request(chunk, batch, datetime.now(UTC))

        answer = self._connections.send(request)
        meaning = meaning_of(
            answer.status, self._settings.transient, self._settings.of_row, names_row=self._has_row_in_address
        )
        if meaning is Meaning.WRITTEN or (chunk.method == "DELETE" and answer.status in MISSING):
            return
        if meaning is Meaning.TRANSIENT:
            raise Unavailable(_told(answer), pause_ms(answer.retry_after))
        if meaning is Meaning.CONFIGURATION:
            raise SinkConfigError(f"{PREFIX}.url: {chunk.method} {chunk.path}: {_told(answer)}")
        if len(chunk.indices) == 1:
            refused = RefusedByServerError(_told(answer))
            failed.append(FailedRow(chunk.indices[0], reason_of(answer.status), refused))
            return
        for half in chunk.halves():
            self._send(half, batch, failed)


def _told(answer: Answer) -> str:
    return f"the server answered {answer.status}" + (f": {answer.text}" if answer.text else "")
