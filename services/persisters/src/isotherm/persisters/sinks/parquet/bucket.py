"""Files in a bucket of S3, or of a store that speaks its protocol and knows `If-None-Match` (RFC 9110, 13.1.2)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from obstore import exceptions
from obstore.store import S3Store

from isotherm.connector.config.validation import Validated
from isotherm.persisters.api.sink import SinkConfigError, Unavailable
from isotherm.persisters.sinks.parquet.connector_keys import PREFIX
from isotherm.persisters.sinks.s3_errors import is_refused

_REFUSALS = (
    exceptions.PermissionDeniedError,
    exceptions.UnauthenticatedError,
    exceptions.UnknownConfigurationKeyError,
    PermissionError,
    # Of the bucket: what is read was listed before.
    exceptions.NotFoundError,
    FileNotFoundError,
    NotImplementedError,
)
_RETRIES = 2
"""Of a request, quickly; longer outages are the loop's."""


class Bucket:
    """A prefix in a bucket."""

    def __init__(self, config: Validated, bucket: str, prefix: str) -> None:
        self._where = f"s3://{bucket}/{prefix}"
        self._has_keys = bool(config.text(f"{PREFIX}.s3.access.key"))
        self._store = S3Store(bucket, prefix=prefix or None, **_options(config))

    def open(self) -> None:
        """Check that the bucket is there and may be listed."""
        with self._translated():
            next(iter(self._store.list(chunk_size=1)), None)

    def names(self, folder: str, prefix: str) -> Sequence[str]:
        """Return the names in a folder that begin with `prefix`; the bucket lists them in order, from there on."""
        found: list[str] = []
        with self._translated():
            for chunk in self._store.list(prefix=folder, offset=f"{folder}/{prefix}"):
                for entry in chunk:
                    name = entry["path"].rpartition("/")[2]
                    if not name.startswith(prefix):
                        return found
                    found.append(name)
        return found

    def read(self, path: str) -> bytes:
        """Return an object's bytes."""
        with self._translated():
            return bytes(self._store.get(path).bytes())

    def create(self, path: str, data: bytes) -> bool:
        """Put a new object; False if there is one of this name."""
        with self._translated():
            try:
                # In one request: the parts of an upload of several have no condition in all stores.
                self._store.put(path, data, mode="create", use_multipart=False)
            except exceptions.AlreadyExistsError:
                return False
            return True

    def close(self) -> None:
        """The client ends its connections by itself."""

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Raise the client's errors as those of the sink's interface."""
        try:
            yield
        except (exceptions.BaseError, NotImplementedError, OSError) as error:
            refused = is_refused(str(error), are_credentials_fixed=self._has_keys)
            if refused is None:
                refused = isinstance(error, _REFUSALS)
            raise (SinkConfigError if refused else Unavailable)(f"{self._where}: {_said(error)}") from error


def _said(error: BaseException) -> str:
    """Return the message of S3, else the client's first line."""
    message = re.search(r"<Code>(.+?)</Code>\s*<Message>(.+?)</Message>", str(error))
    return f"{message[1]}: {message[2]}" if message is not None else str(error).splitlines()[0][:500]


def _options(config: Validated) -> dict[str, Any]:
    timeout = timedelta(milliseconds=config.integer(f"{PREFIX}.write.timeout.ms"))
    endpoint = config.text(f"{PREFIX}.s3.endpoint")
    given = {
        "region": config.text(f"{PREFIX}.s3.region"),
        "endpoint": endpoint,
        "access_key_id": config.text(f"{PREFIX}.s3.access.key"),
        "secret_access_key": config.text(f"{PREFIX}.s3.secret.key"),
        "session_token": config.text(f"{PREFIX}.s3.session.token"),
    }
    return {
        **{name: value for name, value in given.items() if value},
        "virtual_hosted_style_request": not endpoint,
        "client_options": {"timeout": timeout, "connect_timeout": timeout, "allow_http": endpoint.startswith("http:")},
        "retry_config": {"max_retries": _RETRIES, "retry_timeout": timeout},
    }
