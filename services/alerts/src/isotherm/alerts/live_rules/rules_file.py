"""The file of rules, read again when it has changed."""

from __future__ import annotations

from pathlib import Path

from isotherm.alerts.metrics import Metrics
from isotherm.alerts.rules.catalog import MAX_FILE, Rule, rules_in
from isotherm.alerts.rules.rule_sources import FILE, RuleSources
from isotherm.servicekit import logs

_log = logs.logger(__name__)

_Mark = tuple[int, int, int]


def read_rules(path: Path) -> list[Rule]:
    """Return the rules of a file. Raises ValueError, which names the file and what is wrong."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE + 1)
    except OSError as error:
        raise ValueError(f"rules_file = {str(path)!r} cannot be read: {error.strerror}") from None
    if len(content) > MAX_FILE:
        raise ValueError(f"rules_file = {str(path)!r} has more than {MAX_FILE} bytes")
    try:
        return rules_in(content.decode())
    except ValueError as error:  # TOML, UTF-8, or a rule
        raise ValueError(f"rules_file = {str(path)!r}: {error}") from None


class RulesFile:
    """Watches the file. One that cannot be used is an error in the log, and the former rules stay."""

    def __init__(self, path: Path, sources: RuleSources, metrics: Metrics) -> None:
        """The rules that `sources` has by now are those of the file, or were: the first look reads it again."""
        self._path, self._sources, self._metrics = path, sources, metrics
        self._mark: _Mark | None = (0, 0, 0)

    def reload_if_changed(self) -> None:
        """Read the file when it is another one or was written since the last call."""
        mark = self._mark_of()
        if mark == self._mark:
            return
        self._mark = mark
        try:
            problem = self._sources.replace_base(read_rules(self._path))
        except ValueError as error:
            problem = str(error)
            self._sources.refuse_base(problem)
        if problem:
            self._metrics.rules_refused.labels(FILE).inc()
            _log.error("the file of rules cannot be used, the former rules stay", reason=problem)
        else:
            _log.info("the file of rules was read", rules=len(self._sources.book.keys))

    def _mark_of(self) -> _Mark | None:
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino
