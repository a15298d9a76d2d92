"""Who may publish to which topic, from an ACL file in mosquitto's format (mosquitto.conf(5), `acl_file`). Pure.

`user NAME` begins the rules of a user; `topic [read|write|readwrite|deny] FILTER` before the first `user` is for
clients without a name; `pattern [ACCESS] FILTER` is for all, with `%c` for the client id and `%u` for the user name as
whole levels. What no rule allows is denied, and `deny` wins over everything.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

_ACCESS = ("read", "write", "readwrite", "deny")


class AclLineError(ValueError):
    """A line that cannot be read."""


@dataclass(slots=True)
class Rules:
    """Filters, each as its levels; rules that only allow to read are left out, nobody reads here."""

    write: list[tuple[str, ...]] = field(default_factory=list)
    deny: list[tuple[str, ...]] = field(default_factory=list)

    def add(self, access: str, levels: tuple[str, ...]) -> None:
        if access == "deny":
            self.deny.append(levels)
        elif access != "read":
            self.write.append(levels)


class Acl:
    """The rules of a file, as far as they concern publishing."""

    def __init__(self) -> None:
        self._anonymous = Rules()
        self._users: dict[str, Rules] = {}
        self._patterns = Rules()

    def may_write(self, topic: str, *, client_id: str, username: str | None) -> bool:
        """Whether this client may publish to `topic`."""
        levels = topic.split("/")
        rules = self._anonymous if username is None else self._users.get(username, Rules())

        def matches(filters: list[tuple[str, ...]], *, is_pattern: bool) -> bool:
            return any(_matches(levels, wanted, client_id, username, is_pattern=is_pattern) for wanted in filters)

        if matches(rules.deny, is_pattern=False) or matches(self._patterns.deny, is_pattern=True):
            return False
        return matches(rules.write, is_pattern=False) or matches(self._patterns.write, is_pattern=True)

    def rules_of(self, username: str | None) -> Rules:
        """The rules of a user, or of clients without a name; for reading a file."""
        return self._anonymous if username is None else self._users.setdefault(username, Rules())

    @property
    def patterns(self) -> Rules:
        """The rules for all; for reading a file."""
        return self._patterns


def _matches(
    levels: list[str], wanted: tuple[str, ...], client_id: str, username: str | None, *, is_pattern: bool
) -> bool:
    # A wildcard at the beginning does not match topics of the server's own (MQTT 4.7.2).
    if levels[0].startswith("$") and wanted[0] in ("+", "#"):
        return False
    for index, level in enumerate(wanted):
        if level == "#":
            return True
        if index == len(levels):
            return False
        if level == "+":
            continue
        # Compared level by level, so that no client id or user name can bring a wildcard or a level of its own.
        if is_pattern and level == "%c":
            level = client_id
        elif is_pattern and level == "%u":
            if username is None:
                return False
            level = username
        if level != levels[index]:
            return False
    return len(levels) == len(wanted)


def parse_acl(lines: Iterable[str]) -> Acl:
    """The rules in an ACL file. Raises AclLineError naming the line's number."""
    acl = Acl()
    username: str | None = None
    for number, line in enumerate(lines, start=1):
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            continue
        keyword, _, rest = stripped.partition(" ")
        rest = rest.strip()
        if keyword == "user" and rest:
            username = rest
            acl.rules_of(username)
        elif keyword in ("topic", "pattern") and rest:
            access, levels = _rule(number, keyword, rest)
            (acl.patterns if keyword == "pattern" else acl.rules_of(username)).add(access, levels)
        else:
            raise AclLineError(f"line {number}: expected user NAME, topic [ACCESS] FILTER or pattern [ACCESS] FILTER")
    return acl


def _rule(number: int, keyword: str, rest: str) -> tuple[str, tuple[str, ...]]:
    first, _, following = rest.partition(" ")
    access, text = (first, following.strip()) if first in _ACCESS and following.strip() else ("readwrite", rest)
    levels = tuple(text.split("/"))
    for index, level in enumerate(levels):
        if ("#" in level and (level != "#" or index != len(levels) - 1)) or ("+" in level and level != "+"):
            raise AclLineError(f"line {number}: {text!r} has a wildcard where none may be")
        if keyword == "pattern" and ("%c" in level or "%u" in level) and level not in ("%c", "%u"):
            raise AclLineError(f"line {number}: {text!r}: %c and %u must be whole levels")
    return access, levels
