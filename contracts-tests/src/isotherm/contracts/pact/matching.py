"""Matches contents against an interaction of a pact with pact's own engine, in this process.

The verifier asks for each message over HTTP, and starts a server and a client for each provider. The engine behind it
is the same (`pactffi_sync_message_match_response_contents`: "as the verifier applies them"). A unit test compares both.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import pact_ffi
from pact import Pact

from isotherm.contracts.harness import text_of

JSON = "application/json"


class PactMatcher:
    """The interactions of one pact file, by description."""

    def __init__(self, content: Mapping[str, Any]) -> None:
        self.consumer, self.provider = str(content["consumer"]["name"]), str(content["provider"]["name"])
        self._pact = Pact(self.consumer, self.provider).with_specification("V4")
        self.interactions: Mapping[str, Mapping[str, Any]] = {
            one["description"]: one for one in content["interactions"]
        }
        self._handles = {name: self._handle(name, one) for name, one in self.interactions.items()}

    def _handle(self, name: str, interaction: Mapping[str, Any]) -> pact_ffi.InteractionHandle:
        expected = self._pact.upon_receiving(name, "Sync").will_respond_with()
        expected.with_body(json.dumps(interaction["contents"]["content"]), JSON)
        rules = interaction.get("matchingRules", {})
        if rules:
            expected.with_matching_rules(json.dumps(rules))
        return expected._handle

    def mismatches(self, name: str, contents: Any) -> list[str]:
        """Each difference between JSON `contents` and what the interaction asks for, with its path.

        Bytes count as texts that have one character for each byte.
        """
        text = json.dumps(contents, default=text_of)
        found = pact_ffi.sync_message_match_response_contents(self._handles[name], 0, JSON, text)
        return [f"{one.get('path', one['type'])}: {one['mismatch']}" for one in found]


@lru_cache(maxsize=512)
def matcher(text: str) -> PactMatcher:
    """The matcher of a pact file's text."""
    return PactMatcher(json.loads(text))
