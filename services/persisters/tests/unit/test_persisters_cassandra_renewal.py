"""A driver that does not find back to its servers gets new connections, and no other one."""

from __future__ import annotations

import threading

import pytest

from isotherm.persisters.api.sink import Unavailable
from isotherm.persisters.sinks.cassandra.renewal import RENEW_AFTER_S, Renewal


class Driver:
    def __init__(self) -> None:
        self.now_s, self.connected, self.is_away = 0.0, 0, False

    def connect(self) -> None:
        if self.is_away:
            raise Unavailable("away")
        self.connected += 1


@pytest.fixture
def driver() -> Driver:
    return Driver()


@pytest.fixture
def renewal(driver: Driver) -> Renewal:
    return Renewal(driver.connect, lambda: driver.now_s)


def test_only_what_lasts_leads_to_new_connections(driver: Driver, renewal: Renewal) -> None:
    for second in range(1, 301):
        driver.now_s = float(second)
        if second % 20 == 0:
            renewal.succeeded()
        else:
            renewal.failed()
    assert driver.connected == 0
    for second in range(301, 361):
        driver.now_s = float(second)
        renewal.failed()
    assert driver.connected == 1, "and once more only when these do not help for as long"
    driver.now_s += RENEW_AFTER_S
    renewal.failed()
    assert driver.connected == 2


def test_a_server_that_is_away_is_asked_again(driver: Driver, renewal: Renewal) -> None:
    driver.is_away = True
    for second in range(100):
        driver.now_s = float(second)
        renewal.failed()
    driver.is_away = False
    driver.now_s += RENEW_AFTER_S
    renewal.failed()
    assert driver.connected == 1


def test_of_several_writers_one_connects(driver: Driver) -> None:
    begun, goes_on = threading.Event(), threading.Event()

    def connect() -> None:
        driver.connect()
        begun.set()
        assert goes_on.wait(60)

    renewal = Renewal(connect, lambda: driver.now_s)
    renewal.failed()
    driver.now_s = 2 * RENEW_AFTER_S
    first = threading.Thread(target=renewal.failed)
    first.start()
    assert begun.wait(60)
    driver.now_s = 4 * RENEW_AFTER_S
    renewal.failed()
    goes_on.set()
    first.join()
    assert driver.connected == 1


def test_at_the_end_nothing_is_connected(driver: Driver, renewal: Renewal) -> None:
    renewal.failed()
    renewal.close()
    driver.now_s = 2 * RENEW_AFTER_S
    renewal.failed()
    assert driver.connected == 0
