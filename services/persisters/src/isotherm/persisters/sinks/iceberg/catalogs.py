"""The catalog that a configuration names, and what its errors, and those of the files behind it, mean."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import requests
import sqlalchemy
from pyiceberg import exceptions
from pyiceberg.catalog import Catalog, load_catalog
from sqlalchemy.exc import (
    ArgumentError,
    DBAPIError,
    IntegrityError,
    InterfaceError,
    OperationalError,
    SQLAlchemyError,
)

from isotherm.connector.config.validation import Validated
from isotherm.persisters.api.sink import SinkConfigError, Unavailable
from isotherm.persisters.sinks.iceberg import durable_io
from isotherm.persisters.sinks.iceberg.connector_keys import PREFIX
from isotherm.persisters.sinks.s3_errors import is_refused
from isotherm.persisters.sinks.sqlstates import is_transient

_REFUSED_CONNECTION = re.compile(
    r"authentication failed|role \"[^\"]*\" does not exist|database \"[^\"]*\" does not exist|no pg_hba\.conf entry"
    r"|no password supplied|permission denied",
    re.IGNORECASE,
)
_FORBIDDEN = (exceptions.UnauthorizedError, exceptions.ForbiddenError, exceptions.BadRequestError)
_QUICKER = frozenset(("42P07", "42P06"))
"""Another task has just made the same table or schema of the database (PostgreSQL, appendix A)."""
_POOL = {"pool_pre_ping": "true"}


def connect(config: Validated) -> Catalog:
    """Connect to the catalog. Raises Unavailable, SinkConfigError."""
    with translated(config):
        kind = config.text(f"{PREFIX}.catalog").lower()
        name = config.text(f"{PREFIX}.catalog.name")
        own = _sql(config) if kind == "sql" else _rest(config)
        warehouse = {"warehouse": config.text(f"{PREFIX}.warehouse")} if config.text(f"{PREFIX}.warehouse") else {}
        return load_catalog(name, type=kind, **own, **warehouse, **_files(config))


def _sql(config: Validated) -> dict[str, str]:
    url = sqlalchemy.make_url(config.text(f"{PREFIX}.catalog.uri"))
    user, password = config.text(f"{PREFIX}.catalog.username"), config.text(f"{PREFIX}.catalog.password")
    if user:
        url = url.set(username=user, password=password or None)
    timeout_ms = config.integer(f"{PREFIX}.write.timeout.ms")
    if url.get_backend_name() == "postgresql":
        limits = f"-c statement_timeout={timeout_ms} -c lock_timeout={timeout_ms}"
        url = url.update_query_dict({"connect_timeout": str(max(2, timeout_ms // 1_000)), "options": limits})
    return {"uri": url.render_as_string(hide_password=False), **_POOL}


def _rest(config: Validated) -> dict[str, str]:
    given = {"uri": config.text(f"{PREFIX}.catalog.uri"), "token": config.text(f"{PREFIX}.catalog.token")}
    user, password = config.text(f"{PREFIX}.catalog.username"), config.text(f"{PREFIX}.catalog.password")
    if user:
        given["credential"] = f"{user}:{password}"
    return {key: value for key, value in given.items() if value}


def _files(config: Validated) -> dict[str, str]:
    timeout_s = str(config.integer(f"{PREFIX}.write.timeout.ms") / 1_000)
    given = {
        "py-io-impl": durable_io.IMPLEMENTATION,
        "s3.endpoint": config.text(f"{PREFIX}.s3.endpoint"),
        "s3.region": config.text(f"{PREFIX}.s3.region"),
        "s3.access-key-id": config.text(f"{PREFIX}.s3.access.key"),
        "s3.secret-access-key": config.text(f"{PREFIX}.s3.secret.key"),
        "s3.session-token": config.text(f"{PREFIX}.s3.session.token"),
        "s3.connect-timeout": timeout_s,
        "s3.request-timeout": timeout_s,
    }
    return {key: value for key, value in given.items() if value}


def _is_transient(error: DBAPIError, message: str) -> bool:
    """Whether an error of the catalog's database may pass: by its SQLSTATE, else by its kind and text."""
    sqlstate: str | None = getattr(error.orig, "sqlstate", None)
    if sqlstate in _QUICKER:
        return True
    if sqlstate is not None:
        return is_transient(sqlstate)
    return isinstance(error, OperationalError | InterfaceError) and _REFUSED_CONNECTION.search(message) is None


@contextmanager
def translated(config: Validated) -> Iterator[None]:
    """Raise the errors of the catalog and of the files as those of the sink's interface."""
    try:
        yield
    except (exceptions.CommitFailedException, exceptions.NoSuchTableError):
        # Not an error of the catalog but its answer.
        raise
    except IntegrityError as error:
        # Another task makes the catalog's own tables, or a namespace, at the same time.
        raise Unavailable("Iceberg's catalog: another task was quicker") from error
    except DBAPIError as error:
        # Without SQLAlchemy's own words, which repeat the statement with its values.
        message = f"Iceberg's catalog: {str(error.orig).strip()}"
        raise (Unavailable if _is_transient(error, message) else SinkConfigError)(message) from error
    except (ArgumentError, SQLAlchemyError, ModuleNotFoundError) as error:
        raise SinkConfigError(f"Iceberg's catalog: {error}") from error
    except (exceptions.ValidationError, exceptions.ResolveError) as error:
        raise SinkConfigError(f"Iceberg's table does not take the rows' columns: {error}") from error
    except _FORBIDDEN as error:
        raise SinkConfigError(f"Iceberg's catalog: {error}") from error
    except (exceptions.RESTError, exceptions.CommitStateUnknownException, requests.RequestException) as error:
        # Whether an unknown commit was done, the next look at the table tells.
        raise Unavailable(f"Iceberg's catalog: {error}") from error
    except PermissionError as error:
        raise SinkConfigError(f"Iceberg's files: {error}") from error
    except OSError as error:
        refused = is_refused(str(error), are_credentials_fixed=bool(config.text(f"{PREFIX}.s3.access.key")))
        raise (SinkConfigError if refused else Unavailable)(f"Iceberg's files: {error}") from error
