"""References to secrets in configuration: `${env:NAME}`, `${file:PATH}` and `${file:PATH:KEY}`.

The syntax is that of Kafka's ConfigProviders (KIP-297): a configuration can be stored, shown and compared with
its references, and only the process that opens the connection ever sees the value.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

_REFERENCE = re.compile(r"\$\{(env|file):([^{}:]+)(?::([^{}]+))?\}")
"""Without `{` inside, so that a text full of `${env:` takes linear time."""
_MAX_FILE_BYTES = 1024 * 1024
"""Size of the largest file of secrets; `/dev/zero` has no end."""

SECRET_WORDS = (
    "password",
    "passwd",
    "secret",
    "token",
    "passphrase",
    "store_pass",
    "api_key",
    "credential",
    "psk",
    "user_info",
    "jaas",
    "key_pem",
    "keystore_key",
)
"""A key that contains one of these, `.` and `-` read as `_`, holds a secret: its value is never printed.

Kafka's passwords (type PASSWORD of its `SslConfigs` and `SaslConfigs`) and librdkafka's sensitive properties are among
them, except certificates, which anybody may see.
"""


MASK = "******"
"""What is shown in the place of a secret."""


class SecretError(ValueError):
    """A reference names a missing variable, file or key; the text names the reference and never a value."""


def is_secret(key: str) -> bool:
    """Whether the value of configuration key `key` must never be shown."""
    folded = key.lower().replace("-", "_").replace(".", "_")
    return any(word in folded for word in SECRET_WORDS)


def masked(value: object) -> object:
    """Return a value as it may be shown: what maps inside it hold under the keys of secrets is masked.

    A text that could be such a map, as JSON with a mistake in it, is masked whole when it names a secret.
    """
    if isinstance(value, Mapping):
        return {key: MASK if is_secret(str(key)) else masked(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [masked(inner) for inner in value]
    if isinstance(value, str) and value.lstrip()[:1] in ("[", "{") and is_secret(value):
        return MASK
    return value


def resolve(text: str, environ: Mapping[str, str]) -> str:
    """Replace every reference in `text` by its value.

    `${env:NAME}` is a variable of `environ`; `${file:PATH}` the whole file without the final line break;
    `${file:PATH:KEY}` one key of a properties file.

    Raises SecretError when a reference cannot be resolved.
    """
    return _REFERENCE.sub(lambda match: _value(match, environ), text)


def _value(match: re.Match[str], environ: Mapping[str, str]) -> str:
    kind, name, key = match.groups()
    if kind == "env":
        if name not in environ:
            raise SecretError(f"{match.group(0)}: the environment has no variable {name}")
        if not _is_unicode(environ[name]):
            raise SecretError(f"{match.group(0)}: the variable is not UTF-8")
        return environ[name]
    content = _content(match.group(0), name)
    if key is None:
        return content.rstrip("\r\n")
    for line in content.splitlines():
        left, separator, right = line.partition("=")
        if separator and left.strip() == key:
            return right.strip()
    raise SecretError(f"{match.group(0)}: the file has no key {key}")


def _content(reference: str, path: str) -> str:
    # No error is chained: that of a decoder holds the file's bytes.
    try:
        with Path(path).open("rb") as file:
            data = file.read(_MAX_FILE_BYTES + 1)
    except OSError as error:
        raise SecretError(f"{reference}: {error.strerror or error}") from None
    except ValueError:
        raise SecretError(f"{reference}: this cannot be the path of a file") from None
    if len(data) > _MAX_FILE_BYTES:
        raise SecretError(f"{reference}: the file has more than {_MAX_FILE_BYTES} bytes")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise SecretError(f"{reference}: the file is not UTF-8 at byte {error.start}") from None
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _is_unicode(text: str) -> bool:
    """Whether UTF-8 can encode the text: Python keeps undecodable bytes of the environment as lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
