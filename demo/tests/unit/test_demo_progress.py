from isotherm.demo.progress import (
    Hop,
    Rates,
    families_of,
    line,
    total,
)

PAGE = """\
# HELP isotherm_x_records_total Records.
# TYPE isotherm_x_records_total counter
isotherm_x_records_total{outcome="written",partition="0"} 3.0
isotherm_x_records_total{outcome="written",partition="1"} 4.0
isotherm_x_records_total{outcome="read",partition="0"} 100.0
# TYPE isotherm_x_lag gauge
isotherm_x_lag 7.0
"""


def page(written: int) -> str:
    return f'# TYPE isotherm_x_records_total counter\nisotherm_x_records_total{{outcome="written"}} {written}.0\n'


HOP = Hop("Store", "x", "isotherm_x_records", {"outcome": "written"})


def test_samples_with_the_labels_are_added_up() -> None:
    assert total(families_of(PAGE), "isotherm_x_records", {"outcome": "written"}) == 7.0
    assert total(families_of(PAGE), "isotherm_x_records", {}) == 107.0
    assert total(families_of(PAGE), "isotherm_y_records", {}) == 0.0


def test_rate_is_what_came_between_two_looks() -> None:
    rates = Rates([HOP])

    assert rates.look(lambda _service: page(100), 10.0) == [("Store", None)]
    assert rates.look(lambda _service: page(150), 15.0) == [("Store", 10.0)]


def test_service_that_was_started_again_begins_anew() -> None:
    rates = Rates([HOP])
    rates.look(lambda _service: page(100), 10.0)

    assert rates.look(lambda _service: page(5), 15.0) == [("Store", None)]
    assert rates.look(lambda _service: page(25), 20.0) == [("Store", 4.0)]


def test_service_that_does_not_answer_has_no_rate_and_its_last_count_is_kept() -> None:
    rates = Rates([HOP])
    rates.look(lambda _service: page(100), 10.0)

    assert rates.look(lambda _service: None, 15.0) == [("Store", None)]
    assert rates.look(lambda _service: page(200), 20.0) == [("Store", 10.0)]


def test_line_shows_every_hop() -> None:
    assert line([("MQTT in", 200.4), ("Store", None)]) == "MQTT in 200/s · Store -/s"


BURSTS = Hop("Store", "x", "isotherm_x_records", {"outcome": "written"}, average_s=30.0)


def look(rates: Rates, now_s: float, written: int) -> float | None:
    ((_title, rate),) = rates.look(lambda _service: page(written), now_s)
    return rate


def test_rate_of_bursts_is_an_average() -> None:
    rates = Rates([BURSTS])
    looks = {0.0: 0, 5.0: 60, 10.0: 60, 15.0: 120, 20.0: 120, 25.0: 180, 30.0: 180, 35.0: 240, 40.0: 240}

    shown = [look(rates, now_s, written) for now_s, written in looks.items()]

    # While there is less to look back to, the average is of all that there is.
    assert shown[:4] == [None, 12.0, 6.0, 8.0]
    # From then on each look sees 30 s.
    assert shown[6:] == [6.0, 6.0, 6.0]


def test_average_begins_anew_with_a_service_that_was_started_again() -> None:
    rates = Rates([BURSTS])
    for now_s, written in ((0.0, 100), (5.0, 200), (10.0, 0)):
        look(rates, now_s, written)

    assert look(rates, 20.0, 50) == 5.0


def test_small_rates_have_a_decimal() -> None:
    assert line([("windows", 0.44), ("nothing", 0.0), ("many", 10.2)]) == "windows 0.4/s · nothing 0/s · many 10/s"
