"""The S3 server of the stack: a name is given once, and what it holds ends with it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from obstore.exceptions import AlreadyExistsError
from obstore.store import S3Store

from isotherm.stack.servers.storage.s3 import S3

pytestmark = pytest.mark.integration


def test_a_name_is_given_once_and_objects_end_with_the_server(
    stack: Any, tmp_path: Path, free_port: Callable[[], int]
) -> None:
    server = S3(tmp_path / "s3", stack.s3.runtime, port=free_port())
    server.start()
    server.wait_ready()
    server.create_bucket("bucket")
    server.create_bucket("bucket")
    store = S3Store(
        "bucket",
        region=server.region,
        endpoint=server.url,
        access_key_id=server.access_key,
        secret_access_key=server.secret_key,
        virtual_hosted_style_request=False,
        client_options={"allow_http": True},
    )
    store.put("one", b"data", mode="create", use_multipart=False)
    with pytest.raises(AlreadyExistsError):
        store.put("one", b"other", mode="create", use_multipart=False)
    server.kill()
    assert not server.is_ready()
    server.start()
    server.wait_ready()
    with pytest.raises(FileNotFoundError):
        store.get("one")
    server.stop()
