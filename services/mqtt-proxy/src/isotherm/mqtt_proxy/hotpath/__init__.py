"""The compiled way of plain publishes: it handles a buffer of them at a time, from bytes to records and PUBACKs.

It takes only what it treats exactly as `protocol`, `ingest` and `delivery` do, which define what is right, and leaves
everything else to them. Without it, or with ISOTHERM_PURE_PYTHON in the environment, they handle everything (ADR 114).
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from isotherm.connector.attestation.attester import RunBook
from isotherm.connector.attestation.runs import Runs
from isotherm.mqtt_proxy.delivery.pipeline import IngestPipeline
from isotherm.mqtt_proxy.sessions.dormant import Skim
from isotherm.mqtt_proxy.sessions.records import EncodeSession
from isotherm.mqtt_proxy.sessions.skimming import SessionSkim
from isotherm.mqtt_proxy.sessions.store import StoredState
from isotherm.servicekit import logs

if TYPE_CHECKING:
    from isotherm.mqtt_proxy.hotpath.plain_ingest import PlainIngest

_log = logs.logger(__name__)


def compiled_ingest(pipeline: IngestPipeline, topic_cache_bytes: int) -> PlainIngest | None:
    """Return the compiled way into `pipeline`; None when it is not built, or switched off.

    `topic_cache_bytes` bounds the memory of the topics that its connections remember.
    """
    if os.environ.get("ISOTHERM_PURE_PYTHON"):
        _log.info("plain publishes are not compiled", reason="ISOTHERM_PURE_PYTHON is set")
        return None
    try:
        from isotherm.mqtt_proxy.hotpath.plain_ingest import PlainIngest
    except ImportError as error:
        # Nothing else shows it: an image without the compiled code would only be several times as slow.
        _log.warning("plain publishes are not compiled", reason=str(error))
        return None
    _log.info("plain publishes are compiled")
    return PlainIngest(pipeline, topic_cache_bytes)


def producer_plugin() -> dict[str, str]:
    """Return the properties, in the form of `clients.producer`, of a producer into which there is a direct way."""
    if os.environ.get("ISOTHERM_PURE_PYTHON"):
        return {}
    try:
        from isotherm.mqtt_proxy.hotpath.librdkafka import plugin_path
    except ImportError:
        # `compiled_ingest` warns of it.
        return {}
    path = plugin_path()
    return {} if path is None else {"plugin_library_paths": path}


def attested_runs(most: int) -> RunBook:
    """Return what collects the runs of a topic, at most so many of each partition."""
    if os.environ.get("ISOTHERM_PURE_PYTHON"):
        return Runs(most)
    try:
        from isotherm.mqtt_proxy.hotpath.compiled import AttestedRuns
    except ImportError:
        # `compiled_ingest` warns of it.
        return Runs(most)
    return AttestedRuns(most)


def session_skim(schema_id: int) -> Skim:
    """Return the compiled `SessionSkim`; the other one when it is not built, or switched off."""
    if os.environ.get("ISOTHERM_PURE_PYTHON"):
        return SessionSkim(schema_id)
    try:
        from isotherm.mqtt_proxy.hotpath.compiled import CompiledSkim
    except ImportError:
        # `compiled_ingest` warns of it.
        return SessionSkim(schema_id)
    return CompiledSkim(schema_id)


_PROBE = StoredState(3, 60, 5, {7: 70}, username="u")
"""A session with everything that the compiled code writes."""


def session_encoder(otherwise: EncodeSession, schema_id: int) -> EncodeSession:
    """Return the compiled way of `otherwise`; that itself when it is not built, switched off, or writes other bytes."""
    if os.environ.get("ISOTHERM_PURE_PYTHON"):
        return otherwise
    try:
        from isotherm.mqtt_proxy.hotpath.compiled import SessionEncoder
    except ImportError:
        # `compiled_ingest` warns of it.
        return otherwise
    compiled = SessionEncoder(schema_id, otherwise)
    return compiled if compiled("c", _PROBE, 1, 2) == otherwise("c", _PROBE, 1, 2) else otherwise
