import threading

import pytest

from isotherm.demo.preparation import Preparation


def test_result_is_there_once_the_work_is_done() -> None:
    go_on = threading.Event()

    def work() -> str:
        go_on.wait()
        return "3 of 3 topics"

    preparation = Preparation("topics", {"kafka"}, work)
    preparation.start()

    assert not preparation.told.done()
    go_on.set()
    assert preparation.told.result(30.0) == "3 of 3 topics"


def test_error_of_the_work_is_raised_by_the_result() -> None:
    def work() -> str:
        raise LookupError("no such topic")

    preparation = Preparation("devices", set(), work)
    preparation.start()

    with pytest.raises(LookupError, match="no such topic"):
        preparation.told.result(30.0)
