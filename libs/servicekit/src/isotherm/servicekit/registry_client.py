"""The schema registry's client of confluent_kafka, imported without the OAuth library that it brings along.

Its modules import authlib and with it joserfc and cryptography: a sixth of the time that mqtt-proxy needs for all its
imports (1.2 of 7.2 s on a busy machine). Only the client's OAuth uses it, to which no setting of the suite leads.
Import the client from here and not from confluent_kafka.
"""

from __future__ import annotations

import sys
from types import ModuleType

_OAUTH = "authlib.integrations.httpx_client"


class _NoOAuthClient:
    """Takes the place of authlib's clients."""

    def __init__(self, **_options: object) -> None:
        raise NotImplementedError("the suite's client of the registry has no OAuth")


_is_replaced = _OAUTH not in sys.modules
if _is_replaced:
    _replacement = ModuleType(_OAUTH)
    vars(_replacement).update(OAuth2Client=_NoOAuthClient, AsyncOAuth2Client=_NoOAuthClient)
    sys.modules[_OAUTH] = _replacement
try:
    from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
    from confluent_kafka.schema_registry.error import SchemaRegistryError
finally:
    if _is_replaced:
        # Whoever else imports authlib gets authlib.
        del sys.modules[_OAUTH]

__all__ = ["Schema", "SchemaRegistryClient", "SchemaRegistryError"]
