"""What the whole costs follows from a measurement."""

from __future__ import annotations

import pytest

from isotherm.reference.whole_page import RESULTS, stages

MEASURED = """== rest 220 ==

commit      old

60 s each, after 120 s under load

                                      rest
readings/s
  came in                              1.0
processor time, % of a core
  mqtt-proxy                           9.0

== 1000 max ==

commit      abc

60 s each, after 120 s under load

                                     1000                    max
readings/s
  asked for                         1,000  as many as are taken
  came in                         1,000.0                2,000.0
processor time, % of a core
  everything                        150.0                  190.0
  all servers                        20.0                   30.0
  alerts                             20.0                   30.0
  kafka                              10.0                   20.0
  mqtt-devices                       11.0                   12.0
memory (PSS), MiB
  alerts                               99                     99
behind: records and seconds, first, last, most seconds
  aggregator, rejects   1 0.0 s, 2 0.0 s, 0.1 s  1 0.0 s, 2 0.0 s, 0.1 s
  isotherm-alerts  7 0.1 s, 7 0.1 s, 0.2 s  600 1.0 s, 60,600 60.0 s, 61.5 s

== broken ==
"""


def test_a_consumer_that_falls_behind_is_charged_for_what_it_read() -> None:
    held, most = stages(MEASURED)
    assert (held.asked, held.came_in_per_s, most.asked) == ("1,000", 1_000.0, "as many as are taken")
    assert held.shares == {"alerts": 20.0, "kafka": 10.0}
    assert held.us_of("alerts") == pytest.approx(200)
    assert most.handled_per_s("alerts") == pytest.approx(1_000)
    assert most.us_of("alerts") == pytest.approx(300)
    assert most.us_of("kafka") == pytest.approx(100)
    assert most.most_behind_s["isotherm-alerts"] == 61.5


def test_the_last_measurement_can_be_read() -> None:
    found = stages(RESULTS.read_text(encoding="utf-8"))
    assert all(stage.came_in_per_s > 0 and len(stage.shares) > 10 for stage in found)
