"""Finds the librdkafka that confluent-kafka has loaded, for the compiled module to call it directly (ADR 230)."""

from __future__ import annotations

import ctypes
from functools import cache

from confluent_kafka import Producer, cimpl, libversion

from isotherm.mqtt_proxy.hotpath import compiled
from isotherm.servicekit import logs
from isotherm.servicekit.producer.report_signal import handle_of, is_available

_log = logs.logger(__name__)


@cache
def plugin_path() -> str | None:
    """Return the path of the module as a plugin of librdkafka; None where librdkafka cannot be called directly."""
    if not is_available():
        _log.info("plain publishes are produced through confluent-kafka", reason="its version is not the verified one")
        return None
    library = ctypes.CDLL(cimpl.__file__)
    try:
        functions = [getattr(library, name) for name in compiled.FUNCTIONS]
    except AttributeError as error:
        _log.warning("plain publishes are produced through confluent-kafka", reason=f"{error} in {libversion()[0]}")
        return None
    compiled.bind([ctypes.cast(function, ctypes.c_void_p).value or 0 for function in functions])
    return compiled.__file__


def direct_producer(producer: Producer) -> compiled.DirectProducer | None:
    """Return the direct way into a producer that was made with the plugin; None into another one."""
    if plugin_path() is None or not isinstance(producer, Producer):
        return None
    try:
        made = compiled.DirectProducer(producer, handle_of(producer))
    except LookupError as error:
        # Nothing else shows it, and operators who load a plugin of their own should know what it costs.
        _log.warning("plain publishes are produced through confluent-kafka", reason=str(error))
        return None
    _log.info("plain publishes are produced by librdkafka directly")
    return made
