"""Compiles mqtt-proxy's module with sanitizers, and says how a process loads it."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

MODULE = "isotherm.mqtt_proxy.hotpath.compiled"
_SERVICE = Path(__file__).resolve().parents[6] / "services" / "mqtt-proxy"
_SANITIZERS = "-fsanitize=address,undefined"
_PRELOADED = ("libasan.so", "libubsan.so", "libstdc++.so.6")
"""AddressSanitizer must come first of all libraries, and finds the exceptions of C++ (re2) only when that is loaded."""
FINDING_CODE = 77
"""With this code a process ends in which a sanitizer found something."""
_MAX_RESIDENT_MB = 2_048
"""A process that takes more has a finding: an input of 4 KiB must not, though freed memory is kept for a while."""


class BuildError(Exception):
    """The module cannot be compiled with sanitizers on this machine."""


def build(folder: Path) -> Path:
    """Compile the module into `folder` and return its path. Raises BuildError with what the compiler says."""
    counters = folder / "coverage.o"
    _run(["gcc", "-O2", "-fPIC", "-c", str(Path(__file__).with_name("coverage.c")), "-o", str(counters)], os.environ)
    flags = f"{_SANITIZERS} -fno-sanitize-recover=all -fno-omit-frame-pointer -g -O1"
    environment = {
        **os.environ,
        "CFLAGS": f"{flags} -fsanitize-coverage=trace-pc",
        "LDFLAGS": f"{_SANITIZERS} {counters}",
        # A failed assertion of CPython and of Cython is a finding too.
        "CPPFLAGS": "-UNDEBUG",
    }
    setup = ["-W", "ignore", "-c", "import setuptools; setuptools.setup()", "--quiet", "build_ext", "--force"]
    _run(
        [sys.executable, *setup, "--build-lib", str(folder), "--build-temp", str(folder / "objects")],
        environment,
        _SERVICE,
    )
    (built,) = folder.glob(f"{MODULE.replace('.', '/')}.*.so")
    return built


def environment() -> Mapping[str, str]:
    """Return the environment of a process that loads the module.

    Raises BuildError without the sanitizers' libraries.
    """
    found = []
    for name in _PRELOADED:
        path = _run(["gcc", f"-print-file-name={name}"], os.environ).strip()
        if not Path(path).is_absolute():
            raise BuildError(f"gcc has no {name}")
        found.append(path)
    return {
        **os.environ,
        "LD_PRELOAD": ":".join(found),
        # Objects in memory of their own, so that reading past the end of one is seen.
        "PYTHONMALLOC": "malloc",
        "ASAN_OPTIONS": ":".join(
            (
                # CPython does not free everything at its end.
                "detect_leaks=0",
                f"exitcode={FINDING_CODE}",
                f"hard_rss_limit_mb={_MAX_RESIDENT_MB}",
                "quarantine_size_mb=64",
                "allocator_may_return_null=1",
                "handle_segv=1",
                "handle_abort=1",
            )
        ),
        "UBSAN_OPTIONS": f"print_stacktrace=1:halt_on_error=1:exitcode={FINDING_CODE}",
    }


def load(path: Path) -> None:
    """Let this process import the module from `path`."""
    spec = importlib.util.spec_from_file_location(MODULE, path)
    assert spec is not None
    assert spec.loader is not None
    sys.modules[MODULE] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)


def _run(command: list[str], environment: Mapping[str, str], folder: Path | None = None) -> str:
    try:
        done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise BuildError(f"{command[0]} is not installed") from error
    if done.returncode:
        raise BuildError(f"{' '.join(command)}: exit code {done.returncode}\n{done.stderr[-4_000:]}")
    return done.stdout
