"""Where a checkpoint lies: a folder of this machine, or a URI of a file system that Hadoop reaches. Pure."""

from __future__ import annotations

import re
from pathlib import Path

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
_FILE = "file"
_OLD = {"s3": "s3a", "s3n": "s3a", "wasb": "abfs", "wasbs": "abfss"}
"""Schemes that Hadoop has no file system for any more, or that mean another one; by what to write instead."""
_ALLOWED = (
    "a path, or a URI with a folder: s3a://bucket/folder, hdfs://host:8020/folder, abfs://..., gs://..., file:///..."
)


def normalized(text: str) -> str:
    """Return a location as an absolute URI without a slash at its end. Raises ValueError naming what is allowed."""
    text = text.strip()
    scheme = _SCHEME.match(text)
    if scheme is None:
        if not text:
            raise ValueError(f"{text!r} is not allowed: must be {_ALLOWED}")
        return f"file://{Path(text).absolute()}"
    name = scheme[1].lower()
    if name in _OLD:
        raise ValueError(f"{text!r} is not allowed: write {_OLD[name]}: instead of {scheme[1]}:")
    rest = text[scheme.end() :]
    if name == _FILE:
        path = re.sub(r"^//(?=/)", "", rest)
        if not path.startswith("/") or path.startswith("//"):
            raise ValueError(f"{text!r} is not allowed: must be {_ALLOWED}")
        return f"file://{Path(path)}"
    authority, _, folder = rest.removeprefix("//").partition("/")
    if not rest.startswith("//") or not folder.strip("/"):
        raise ValueError(f"{text!r} is not allowed: must be {_ALLOWED}")
    return f"{name}://{authority}/{folder.strip('/')}"


def local_folder(location: str) -> Path | None:
    """Return the folder on this machine that a normalized location names; None for any other file system."""
    return Path(location.removeprefix("file://")) if location.startswith("file://") else None
