"""Typed settings of a service: defaults < file < environment < command line.

A settings class is a frozen pydantic model that refuses unknown keys. The file is TOML; a variable is
`ISOTHERM_<SERVICE>__<KEY>` with `__` between the levels; the command line gives `--set key=value` with dots.
Every problem is reported at once, each naming the key, where it came from, the value and what is allowed.
"""

from __future__ import annotations

import difflib
import json
import tomllib
import typing
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError, field_validator, model_validator
from pydantic_core import PydanticCustomError

from isotherm.servicekit import secrets
from isotherm.servicekit.promised_properties import broken_promise

_BROKEN_PROMISE = "broken_promise"


class Settings(BaseModel):
    """Base of every settings class and of every group of settings inside one."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _texts_to_collections(cls, values: object) -> object:
        """Read lists and maps from text, because the environment and the command line give only text."""
        if not isinstance(values, Mapping):
            return values
        read = dict(values)
        for name, field in cls.model_fields.items():
            if isinstance(read.get(name), str):
                read[name] = _read_collection(read[name], field.annotation)
        return read


class KafkaSettings(Settings):
    """How to reach Kafka."""

    bootstrap_servers: str = Field("127.0.0.1:9092", description="Brokers, `host:port` separated by commas.")
    properties: dict[str, str] = Field(
        default_factory=dict,
        description="librdkafka properties passed through unchanged: `security.protocol`, `ssl.*`, `sasl.*`...",
    )

    @field_validator("properties")
    @classmethod
    def _keeps_promises(cls, properties: dict[str, str]) -> dict[str, str]:
        """Refuse properties on which a promise of the suite rests (acks, idempotence, isolation, commits, group)."""
        broken = [f"{key}: {why}" for key, value in properties.items() if (why := broken_promise(key, value))]
        if broken:
            raise hidden_problem("; ".join(broken))
        return properties


class RegistrySettings(Settings):
    """How to reach the schema registry (Confluent's REST API)."""

    url: str = Field("http://127.0.0.1:8081/apis/ccompat/v7", description="Base address of the registry.")
    basic_auth_user_info: SecretStr | None = Field(None, description="`user:password`.")
    ssl_ca_location: str | None = Field(None, description="PEM file of the authority to trust.")
    ssl_certificate_location: str | None = Field(None, description="PEM file of the client certificate.")
    ssl_key_location: str | None = Field(None, description="PEM file of the client's key.")
    timeout_ms: int = Field(10_000, ge=100, description="How long one request may take.")


class HttpSettings(Settings):
    """The address of `/live`, `/ready` and `/metrics`."""

    host: str = Field("127.0.0.1", description="Address to listen on.")
    port: int = Field(0, ge=0, le=65535, description="Port to listen on; 0 picks a free one and logs it.")


class LogSettings(Settings):
    """What is logged to stderr, and how."""

    level: typing.Literal["debug", "info", "warning", "error"] = Field("info", description="Lowest level shown.")
    format: typing.Literal["json", "text"] = Field("json", description="One JSON object a line, or text.")


class ServiceSettings(Settings):
    """Settings of every service."""

    kafka: KafkaSettings = KafkaSettings()
    registry: RegistrySettings = RegistrySettings()
    http: HttpSettings = HttpSettings()
    log: LogSettings = LogSettings()
    shutdown_timeout_ms: int = Field(
        25_000, ge=100, description="Time after SIGTERM to drain and exit, ms; then the process is ended."
    )


def hidden_problem(why: str) -> PydanticCustomError:
    """Return an error of a validator whose text does not show the value, which may hold a secret."""
    return PydanticCustomError(_BROKEN_PROMISE, "{why}", {"why": why})


class SettingsError(Exception):
    """The settings cannot be used; `problems` holds one line for each problem."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = tuple(problems)


S = TypeVar("S", bound=Settings)


def load(
    cls: type[S],
    service: str,
    *,
    environ: Mapping[str, str],
    file: Path | None = None,
    overrides: Sequence[str] = (),
) -> S:
    """Read the settings of `service` from all their sources.

    `service` is the name with dashes (`mqtt-proxy` reads `ISOTHERM_MQTT_PROXY__...`); `overrides` are
    `key=value` texts. References `${env:X}` and `${file:path:key}` in values are resolved.

    Raises SettingsError with every problem found.
    """
    origins: dict[str, str] = {}
    merged: dict[str, Any] = {}
    problems: list[str] = []
    for key, value, origin in _entries(service, environ, file, overrides, problems):
        try:
            _put(merged, key, _resolved(value, environ))
            origins[key] = origin
        except (secrets.SecretError, KeyError) as error:
            problems.append(f"{key} ({origin}): {error.args[0]}")
    if problems:
        raise SettingsError(problems)
    try:
        return cls.model_validate(merged)
    except ValidationError as error:
        raise SettingsError([_explain(cls, dict(e), origins) for e in error.errors()]) from None


def _entries(
    service: str,
    environ: Mapping[str, str],
    file: Path | None,
    overrides: Sequence[str],
    problems: list[str],
) -> Iterator[tuple[str, Any, str]]:
    if file is not None:
        try:
            yield from ((k, v, str(file)) for k, v in _flat(tomllib.loads(file.read_text(encoding="utf-8"))))
        except UnicodeDecodeError as error:
            problems.append(f"{file}: not UTF-8 at byte {error.start}")
        except RecursionError:
            problems.append(f"{file}: nested too deeply")
        except (OSError, ValueError) as error:
            # tomllib lets the ValueError of a number with more than 4,300 digits through.
            problems.append(f"{file}: {error}")
    prefix = f"ISOTHERM_{service.upper().replace('-', '_')}__"
    for name in sorted(environ):
        if name.startswith(prefix):
            yield name.removeprefix(prefix).lower().replace("__", "."), environ[name], name
    for override in overrides:
        key, separator, value = override.partition("=")
        if not separator:
            problems.append(f"--set {override}: expected key=value")
        else:
            yield key.strip(), value.strip(), "--set"


def _resolved(value: Any, environ: Mapping[str, str]) -> Any:
    if isinstance(value, dict):
        return {key: _resolved(inner, environ) for key, inner in value.items()}
    if isinstance(value, list):
        return [_resolved(inner, environ) for inner in value]
    return secrets.resolve(value, environ) if isinstance(value, str) else value


def _flat(table: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        path = f"{above}{key}"
        # A quoted TOML key may hold dots ("security.protocol"): such a table is the value of one setting, a map.
        if isinstance(value, dict) and not any("." in inner for inner in value):
            yield from _flat(value, f"{path}.")
        else:
            yield path, value


def _put(tree: dict[str, Any], path: str, value: object) -> None:
    *above, last = path.split(".")
    for part in above:
        tree = tree.setdefault(part, {})
        if not isinstance(tree, dict):
            raise KeyError(f"{part!r} is a value and cannot have keys of its own")
    tree[last] = value


def _read_collection(text: str, annotation: object) -> object:
    origin = typing.get_origin(annotation)
    if origin not in (list, tuple, dict, set, frozenset):
        return text
    stripped = text.strip()
    if stripped[:1] in ("[", "{"):
        try:
            return json.loads(stripped)
        except (ValueError, RecursionError):
            return text
    parts = [part.strip() for part in stripped.split(",") if part.strip()]
    if origin is dict:
        pairs = [part.partition("=") for part in parts]
        return {k.strip(): v.strip() for k, _, v in pairs} if all(s for _, s, _ in pairs) else text
    return parts


def _explain(cls: type[Settings], error: Mapping[str, Any], origins: Mapping[str, str]) -> str:
    key = ".".join(str(part) for part in error["loc"])
    origin = next((f" ({o})" for k, o in origins.items() if k == key or key.startswith(f"{k}.")), "")
    if error["type"] == "extra_forbidden":
        known = [known_key for known_key, _ in fields(cls)]
        near = difflib.get_close_matches(key, known, n=1, cutoff=0.6)
        hint = f"did you mean {near[0]}?" if near else f"known keys: {', '.join(known)}"
        return f"{key}{origin}: unknown key; {hint}"
    if error["type"] == _BROKEN_PROMISE:
        # Without the input, which may hold `sasl.password` beside the wrong property.
        return f"{key}{origin}: {error['msg']}"
    is_secret = secrets.is_secret(key) or _holds_secrets(cls, key)
    value = secrets.MASK if is_secret else repr(secrets.masked(error["input"]))
    return f"{key}{origin}: {value} is not allowed: {error['msg']}"


def _holds_secrets(cls: type[Settings], key: str) -> bool:
    """Whether a key is that of a secret, or one below a map of secrets."""
    return any(
        key == known or key.startswith(f"{known}.")
        for known, field in fields(cls)
        if "SecretStr" in str(field.annotation)
    )


def fields(cls: type[Settings], above: str = "") -> Iterator[tuple[str, Any]]:
    """Every key of a settings class with its pydantic field, those of groups included, in order of declaration."""
    for name, field in cls.model_fields.items():
        annotation = field.annotation
        if isinstance(annotation, type) and issubclass(annotation, Settings):
            yield from fields(annotation, f"{above}{name}.")
        else:
            yield f"{above}{name}", field


def table(cls: type[Settings], service: str) -> str:
    """The settings as a Markdown table (key, variable, default, meaning) for `SERVICE settings` and the reference."""
    prefix = f"ISOTHERM_{service.upper().replace('-', '_')}__"
    lines = ["| key | variable | default | meaning |", "|---|---|---|---|"]
    for key, field in fields(cls):
        default = "required" if field.is_required() else f"`{_shown(field.get_default(call_default_factory=True))}`"
        variable = f"`{prefix}{key.upper().replace('.', '__')}`"
        lines.append(f"| `{key}` | {variable} | {default} | {(field.description or '').replace('|', chr(92) + '|')} |")
    return "\n".join(lines)


def _shown(default: object) -> str:
    if default is None or default in ("", [], {}, ()):
        return "empty"
    return str(default)
