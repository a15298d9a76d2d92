"""A route to a real Alertmanager (Debian: the package prometheus-alertmanager)."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from route_targets import alert

from isotherm.alerts.notifications.http_target import HttpTarget
from isotherm.alerts.routes.kinds import AlertmanagerRoute
from isotherm.alerts.routes.notification import Notification

pytestmark = pytest.mark.alertmanager

LIMIT_S = 60.0


def until(what: str, holds: Callable[[], bool]) -> None:
    limit = time.monotonic() + LIMIT_S
    while not holds():
        assert time.monotonic() < limit, what
        threading.Event().wait(0.05)


@pytest.fixture
def url(tmp_path: Path, free_port: Callable[[], int]) -> Iterator[str]:
    (tmp_path / "am.yml").write_text("route: {receiver: none, group_by: [region]}\nreceivers: [{name: none}]\n")
    port = free_port()
    command = [
        "prometheus-alertmanager",
        f"--config.file={tmp_path / 'am.yml'}",
        f"--storage.path={tmp_path / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--cluster.listen-address=",
    ]
    with (tmp_path / "am.log").open("wb") as log:
        process = subprocess.Popen(command, stderr=log)
    address = f"http://127.0.0.1:{port}"
    try:
        until("Alertmanager is ready", lambda: _is_ready(address))
        yield address
    finally:
        process.kill()
        process.wait(LIMIT_S)


def _is_ready(address: str) -> bool:
    try:
        return httpx.get(f"{address}/-/ready").status_code == 200
    except httpx.HTTPError:
        return False


def active(url: str) -> dict[str, dict[str, Any]]:
    """The active alerts by device, as Alertmanager has them."""
    answer = httpx.get(f"{url}/api/v2/alerts").raise_for_status().json()
    return {one["labels"]["device"]: one for one in answer if one["status"]["state"] == "active"}


def test_alerts_open_and_are_resolved(url: str) -> None:
    target = HttpTarget(AlertmanagerRoute.model_validate({"kind": "alertmanager", "name": "am", "url": url}))
    # Alertmanager shows no alert that ended long ago.
    times: dict[str, Any] = {
        "opened_at": datetime.now(UTC).replace(microsecond=0) - timedelta(minutes=2),
        "closed_at": None,
    }
    awkward = alert('dév "2"\n', message=None, metric=None, **times)
    target.send(Notification("am", {}, (alert("dev-1", **times), awkward)))
    until("both are active", lambda: active(url).keys() == {"dev-1", 'dév "2"\n'})
    shown = active(url)["dev-1"]
    assert shown["labels"] == {
        "alertname": "above",
        "severity": "warning",
        "device": "dev-1",
        "metric": "temperature",
        "home": "home-1",
        "region": "north",
    }
    assert shown["annotations"]["summary"] == "temperature 31.0 Cel is above 30.0 Cel"
    assert datetime.fromisoformat(shown["startsAt"]) == times["opened_at"]
    closed = alert("dev-1", "closed", **times | {"closed_at": datetime.now(UTC) - timedelta(minutes=1)})
    target.send(Notification("am", {}, (closed,)))
    until("one is resolved", lambda: active(url).keys() == {'dév "2"\n'})
    target.close()
