"""Guessing of passwords is limited, one by one or all at once, and locks out no other client."""

from __future__ import annotations

import asyncio

import pytest

from isotherm.mqtt_proxy.access.login_throttle import LoginThrottle, TooManyFailuresError
from isotherm.servicekit.throttling.rates import Rate


class ThrottledLogin:
    """Logins against a limit; each password is checked in a turn of the loop of its own."""

    def __init__(self, rate: Rate, maximum: int = 10_000) -> None:
        self.now_s = 0.0
        self.checked = 0
        self._limit = LoginThrottle(rate, lambda: self.now_s, maximum)

    async def log_in(self, key: str, *, right: bool) -> bool | None:
        """Whether the password was right; None when it was not checked."""
        try:
            async with self._limit.attempt(key) as attempt:
                self.checked += 1
                await asyncio.sleep(0)
                attempt.failed = not right
        except TooManyFailuresError:
            return None
        return right

    async def all_at_once(self, key: str, *, right: bool, count: int) -> list[bool | None]:
        return await asyncio.gather(*(self.log_in(key, right=right) for _ in range(count)))


@pytest.fixture
def throttled() -> ThrottledLogin:
    return ThrottledLogin(Rate(10, 60))


async def test_five_thousand_guesses_at_once_are_as_limited_as_in_a_row(throttled: ThrottledLogin) -> None:
    found = await throttled.all_at_once("10.0.0.1 anna", right=False, count=5_000)
    assert throttled.checked == 10
    assert sorted(found, key=str) == [False] * 10 + [None] * 4_990
    assert await throttled.log_in("10.0.0.1 anna", right=True) is None
    assert await throttled.log_in("10.0.0.1 bert", right=True)
    throttled.now_s = 6.1
    assert await throttled.log_in("10.0.0.1 anna", right=True), "one more after a tenth of the time"


async def test_many_right_passwords_at_once_are_all_let_in(throttled: ThrottledLogin) -> None:
    assert await throttled.all_at_once("10.0.0.1", right=True, count=5_000) == [True] * 5_000


async def test_one_that_gives_up_while_it_waits_passes_its_turn_on(throttled: ThrottledLogin) -> None:
    logins = [asyncio.create_task(throttled.log_in("a", right=True)) for _ in range(40)]
    await asyncio.sleep(0)
    for login in logins[10:30]:
        login.cancel()
    found = await asyncio.gather(*logins, return_exceptions=True)
    assert [login for login in found if login is True] == [True] * 20


async def test_those_that_were_quiet_for_longest_are_forgotten_but_none_that_is_in_use() -> None:
    throttled = ThrottledLogin(Rate(1, 60), maximum=2)
    for key in ("a", "b", "c"):
        assert await throttled.log_in(key, right=False) is False
    assert await throttled.log_in("b", right=True) is None
    assert await throttled.log_in("a", right=True), "forgotten beyond the bound"
    await asyncio.gather(*(throttled.log_in(str(number), right=False) for number in range(50)))
    assert await throttled.all_at_once("x", right=False, count=3) == [False, None, None]
