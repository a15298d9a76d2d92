"""No secret of a configuration in a trace."""

from __future__ import annotations

from pathlib import Path

from connector.config import ConnectorConfig
from connector.masking import mask_of


def test_secrets_are_masked_wherever_they_come_from(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("elastic.password=from-file\nhost=db\n")
    config = {
        "name": "n",
        "db.password": "hunter2",
        "api.key": "${env:KEY}",
        "connect.elastic.url": f"https://${{env:USER_NAME}}:${{file:{keys}:elastic.password}}@${{env:HOST}}/",
        "nothing.password": "",
        "short.secret": "a",
        "lost.token": "${env:NOWHERE}",
    }
    environ = {"KEY": "k-1+", "USER_NAME": "elastic", "HOST": "es.example"}
    mask = mask_of(ConnectorConfig("n", "x", config), environ)
    said = "https://elastic:from-file@es.example/ refused hunter2, hunter2! and k-1+ a"
    assert mask(said) == "https://elastic:******@es.example/ refused ******, ******! and ****** a"


def test_without_secrets_nothing_changes() -> None:
    assert mask_of(ConnectorConfig("n", "x", {"topics": "t"}), {})("t and n") == "t and n"
