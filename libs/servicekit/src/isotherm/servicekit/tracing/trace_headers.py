"""The names of a trace context in headers, MQTT user properties and CoAP options (W3C Trace Context). Pure."""

from __future__ import annotations

from collections.abc import Iterable

TRACEPARENT, TRACESTATE = "traceparent", "tracestate"
MAX_TRACESTATE_CHARS = 512
"""Of a `tracestate`; a longer one is not passed on (W3C Trace Context section 3.3.1.5)."""
_MAX_TRACEPARENT_CHARS = 128


def carrier_of(pairs: Iterable[tuple[str, str | bytes | None]]) -> dict[str, str]:
    """Return the trace context among headers, by name; nothing when there is none.

    Of several the last one counts, because whoever passes a record on appends its own.
    """
    found: dict[str, str] = {}
    for name, value in pairs:
        if name in (TRACEPARENT, TRACESTATE) and value is not None:
            most = _MAX_TRACEPARENT_CHARS if name == TRACEPARENT else MAX_TRACESTATE_CHARS
            if len(value) <= most:
                found[name] = value if isinstance(value, str) else value.decode("latin-1")
    return found if TRACEPARENT in found else {}
