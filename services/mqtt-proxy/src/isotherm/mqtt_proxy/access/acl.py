"""The rules of an ACL file in mosquitto's format (mosquitto.conf(5), `acl_file`): who may use which topic.

`write` rules are about publishing, `read` rules about subscribing, `readwrite` rules about both.

`user NAME` begins the rules of a user. `topic [read|write|readwrite|deny] FILTER` before the first `user` applies to
clients without a name. `pattern [ACCESS] FILTER` applies to all clients; in it `%c` is the client id and `%u` the user
name, each as a whole level. A topic that no rule allows is denied, and `deny` overrides every other rule.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest

from isotherm.kcql.filters import matches_levels
from isotherm.mqtt_proxy.codec.fields import has_misplaced_wildcard

_ACCESS = ("read", "write", "readwrite", "deny")


class AclLineError(ValueError):
    """A line of an ACL file is invalid."""


@dataclass(slots=True)
class AclRules:
    """Topic filters as their levels."""

    read: list[tuple[str, ...]] = field(default_factory=list)
    write: list[tuple[str, ...]] = field(default_factory=list)
    deny: list[tuple[str, ...]] = field(default_factory=list)

    def add(self, access: str, levels: tuple[str, ...]) -> None:
        """Add a rule with `access` read, write, readwrite or deny."""
        if access == "deny":
            self.deny.append(levels)
            return
        if access != "write":
            self.read.append(levels)
        if access != "read":
            self.write.append(levels)


class Acl:
    """The rules of a file."""

    def __init__(self) -> None:
        self._anonymous = AclRules()
        self._users: dict[str, AclRules] = {}
        self._patterns = AclRules()

    def may_publish(self, topic: str, *, client_id: str, username: str | None) -> bool:
        """Return whether this client may publish to `topic`."""
        levels = topic.split("/")
        rules = self._anonymous if username is None else self._users.get(username, AclRules())

        def matches(filters: list[tuple[str, ...]], *, is_pattern: bool) -> bool:
            return any(_matches(levels, rule, client_id, username, is_pattern=is_pattern) for rule in filters)

        if matches(rules.deny, is_pattern=False) or matches(self._patterns.deny, is_pattern=True):
            return False
        return matches(rules.write, is_pattern=False) or matches(self._patterns.write, is_pattern=True)

    def may_subscribe(self, topic_filter: str, *, client_id: str, username: str | None) -> bool:
        """Return whether one rule lets this client read all topics of a filter, and none of them is denied."""
        levels = tuple(topic_filter.split("/"))
        own = self._anonymous if username is None else self._users.get(username, AclRules())

        def filled(patterns: list[tuple[str, ...]]) -> list[tuple[str, ...]]:
            return [rule for one in patterns if (rule := _fill(one, client_id, username)) is not None]

        if any(overlaps(rule, levels) for rule in (*own.deny, *filled(self._patterns.deny))):
            return False
        return any(covers(rule, levels) for rule in (*own.read, *filled(self._patterns.read)))

    def rules_of(self, username: str | None) -> AclRules:
        """Return the rules of a user, or of clients without a name, to add to."""
        return self._anonymous if username is None else self._users.setdefault(username, AclRules())

    @property
    def patterns(self) -> AclRules:
        """The rules for all clients, to add to."""
        return self._patterns


def covers(rule: Sequence[str], topic_filter: Sequence[str]) -> bool:
    """Return whether every topic that matches a filter matches the filter of a rule, both as their levels."""
    if rule[0] in ("+", "#") and topic_filter[0].startswith("$"):
        return False
    for at, level in enumerate(rule):
        if level == "#":
            # It matches its parent level too.
            return True
        if at >= len(topic_filter) or topic_filter[at] == "#" or level not in ("+", topic_filter[at]):
            return False
    return len(rule) == len(topic_filter)


def overlaps(one: Sequence[str], other: Sequence[str]) -> bool:
    """Return whether a topic matches both filters, which are given as their levels."""
    if any(left[0] in ("+", "#") and right[0].startswith("$") for left, right in ((one, other), (other, one))):
        return False
    for left, right in zip_longest(one, other):
        if "#" in (left, right):
            return True
        if left is None or right is None or ("+" not in (left, right) and left != right):
            return False
    return True


def _matches(
    levels: list[str], rule: tuple[str, ...], client_id: str, username: str | None, *, is_pattern: bool
) -> bool:
    filled = _fill(rule, client_id, username) if is_pattern else rule
    return filled is not None and matches_levels(filled, levels)


def _fill(rule: tuple[str, ...], client_id: str, username: str | None) -> tuple[str, ...] | None:
    """Return a pattern with the client's names for `%c` and `%u`; None when it can match no topic."""
    if username is None and "%u" in rule:
        return None
    # A name stands for exactly one level, whatever it contains, so that it cannot add a level. A name that is a
    # wildcard is the level of no topic.
    names = {"%c": client_id, "%u": username or ""}
    if any(names.get(level) in ("+", "#") for level in rule):
        return None
    return tuple(names.get(level, level) for level in rule)


def parse_acl(lines: Iterable[str]) -> Acl:
    """Parse the lines of an ACL file. Raises AclLineError that names the line's number."""
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
    if has_misplaced_wildcard(text):
        raise AclLineError(f"line {number}: {text!r} has a misplaced wildcard")
    for level in levels:
        if keyword == "pattern" and ("%c" in level or "%u" in level) and level not in ("%c", "%u"):
            raise AclLineError(f"line {number}: {text!r}: %c and %u must be whole levels")
    return access, levels
