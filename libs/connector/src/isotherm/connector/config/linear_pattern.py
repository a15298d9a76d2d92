"""Regular expressions that match in time linear in the text: an automaton instead of Python's backtracking. Pure.

The patterns come from configurations and the texts from anybody, and `(a+)+b` keeps Python's `re` busy for hours while
no other thread runs. The syntax is that of `re` without what no automaton can do: groups that are referred to,
lookaround, word boundaries, atomic groups. Source: R. Cox, "Regular Expression Matching Can Be Simple And Fast".
"""

from __future__ import annotations

import copy
import re
from re import _compiler, _constants, _parser  # type: ignore[attr-defined]  # the parser has no public name
from typing import Any

MAX_STEPS = 2_000
"""Maximum size of a pattern in steps of its automaton; `[a-z]{1,249}` has 748."""
_MAX_STATES, _MAX_EDGES = 1_000, 20_000
"""How many sets of steps, and of transitions between them, are remembered."""

_CHARACTERS = (_constants.LITERAL, _constants.NOT_LITERAL, _constants.ANY, _constants.IN)
_START = (_constants.AT_BEGINNING, _constants.AT_BEGINNING_STRING)
_END = (_constants.AT_END, _constants.AT_END_STRING)
_ACCEPT = 0


class _State:
    """The steps that the automaton may be at: characters it waits for, and ends of the text."""

    __slots__ = ("accepts", "after", "steps")

    def __init__(self, steps: frozenset[int], accepts: bool) -> None:
        self.steps = steps
        self.accepts = accepts
        self.after: dict[str, _State] = {}


class LinearPattern:
    """A compiled pattern; `fullmatch` may be called from several threads."""

    def __init__(self, pattern: str, flags: re.RegexFlag = re.NOFLAG) -> None:
        """Compile `pattern`. Raises re.error, also for what only backtracking can match and for a large pattern."""
        self.pattern = pattern
        try:
            parsed = _parser.parse(pattern, flags)
            self._parse_state = parsed.state
            # A step is a character's test, or None, and the steps behind it.
            self._tests: list[re.Pattern[str] | None] = [None]
            self._next: list[tuple[int, ...]] = [()]
            self._is_start: set[int] = set()
            self._is_end: set[int] = set()
            first = self._sequence(parsed, _ACCEPT, parsed.state.flags)
        except (ValueError, OverflowError, RecursionError) as error:
            # Python raises these for flags that exclude each other and for numbers that are too large.
            raise re.error(str(error)) from error
        self._states: dict[frozenset[int], _State] = {}
        self._edges = 0
        steps = self._closure((first,), at_start=True)
        accepts = _ACCEPT in self._closure((first,), at_start=True, at_end=True)
        self._first = _State(steps, accepts)

    def fullmatch(self, text: str) -> bool:
        """Return whether the whole text matches."""
        state = self._first
        for character in text:
            after = state.after.get(character)
            if after is None:
                after = self._advance(state, character)
            state = after
            if not state.steps:
                return False
        return state.accepts

    def _advance(self, state: _State, character: str) -> _State:
        reached = [
            target
            for step in state.steps
            if (test := self._tests[step]) is not None and test.match(character)
            for target in self._next[step]
        ]
        if self._edges >= _MAX_EDGES or len(self._states) >= _MAX_STATES:
            # States that a thread still holds stay usable; they are only not found again.
            self._states, self._edges = {}, 0
            self._first.after.clear()
        after = self._state(self._closure(reached))
        state.after[character] = after
        self._edges += 1
        return after

    def _state(self, steps: frozenset[int]) -> _State:
        known = self._states.get(steps)
        if known is None:
            known = self._states[steps] = _State(steps, _ACCEPT in self._closure(steps, at_end=True))
        return known

    def _closure(self, steps: Any, *, at_start: bool = False, at_end: bool = False) -> frozenset[int]:
        """Return the steps that are reached from `steps` without a character."""
        found: set[int] = set()
        left = list(steps)
        while left:
            step = left.pop()
            if step in found or (step in self._is_start and not at_start):
                continue
            found.add(step)
            if self._tests[step] is None and (step not in self._is_end or at_end):
                left += self._next[step]
        return frozenset(found)

    def _add(self, after: tuple[int, ...], test: re.Pattern[str] | None = None) -> int:
        if len(self._next) >= MAX_STEPS:
            raise re.error(f"the pattern has more than {MAX_STEPS} steps")
        self._tests.append(test)
        self._next.append(after)
        return len(self._next) - 1

    def _sequence(self, nodes: Any, after: int, flags: int) -> int:
        """Add the steps of `nodes`, which lead to the step `after`; return the first one."""
        for node in reversed(list(nodes)):
            after = self._node(node, after, flags)
        return after

    def _node(self, node: Any, after: int, flags: int) -> int:
        operation, argument = node
        if operation in _CHARACTERS:
            state = copy.copy(self._parse_state)
            state.flags = flags
            return self._add((after,), _compiler.compile(_parser.SubPattern(state, [node]), flags))
        if operation is _constants.BRANCH:
            return self._add(tuple(self._sequence(branch, after, flags) for branch in argument[1]))
        if operation is _constants.SUBPATTERN:
            _, added, removed, inner = argument
            return self._sequence(inner, after, _compiler._combine_flags(flags, added, removed))
        if operation in (_constants.MAX_REPEAT, _constants.MIN_REPEAT):
            least, most, inner = argument
            return self._repetition(least, most, inner, after, flags)
        if operation is _constants.AT and argument in (*_START, *_END) and not flags & re.MULTILINE:
            step = self._add((after,))
            (self._is_start if argument in _START else self._is_end).add(step)
            return step
        raise re.error(f"{operation.name.lower()} is not supported: it cannot be matched in linear time")

    def _repetition(self, least: int, most: int, inner: Any, after: int, flags: int) -> int:
        if most is _constants.MAXREPEAT:
            loop = self._add(())
            self._next[loop] = (self._sequence(inner, loop, flags), after)
            first = loop
        else:
            first = after
            for _ in range(most - least):
                first = self._add((self._sequence(inner, first, flags), after))
        for _ in range(least):
            before, first = first, self._sequence(inner, first, flags)
            if first == before:
                break  # An empty group: each repetition is the same.
        return first
