"""What is recorded, in the working tree and in releases, beside what every provider writes: the aggregator, too."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from isotherm.contracts import deploy
from isotherm.contracts.consumers import NEEDS
from isotherm.contracts.harness import Harness
from isotherm.contracts.pact import pins, recordings
from isotherm.contracts.paths import RECORDINGS, ROOT
from isotherm.contracts.providers import Messages

# pyspark leaves the socket of every collect() to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed .socket:ResourceWarning")


def test_the_recordings_are_what_the_providers_write(harness: Harness, produced: Mapping[str, Messages]) -> None:
    kept = recordings.read(RECORDINGS, harness)
    assert set(kept) == {need.provider for need in NEEDS}
    for provider in kept:
        needs = [need for need in NEEDS if need.provider == provider]
        found = pins.differences(needs, kept[provider], produced[provider], harness)
        assert found == [], 'a number that consumers use changed; if it must: make contracts-update REASON="..."'


@pytest.mark.parametrize("release", sorted(path.name for path in (ROOT / "contracts-tests" / "releases").iterdir()))
def test_the_aggregator_fits_every_recorded_release(release: str, harness: Harness) -> None:
    with deploy.deployed(release) as (_, folder):
        verdict = deploy.can_deploy("aggregator", folder, spark_of=harness)
    assert verdict.problems == []
    assert verdict.allowed
    assert any(" needs of the deployed mqtt-proxy" in line for line in verdict.checked)
