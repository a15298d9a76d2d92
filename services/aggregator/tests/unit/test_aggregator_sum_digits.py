"""Sums that do not depend on the order of their terms, at the edges of their digits; without Spark."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isotherm.aggregator.exact_sum import WEIGHTS, exact_sum

SMALLEST = 5e-324


def test_each_digit_counts_two_to_the_32nd_of_the_one_below() -> None:
    assert (WEIGHTS[0], WEIGHTS[1], len(WEIGHTS)) == (SMALLEST, 2.0**-1042, 66)
    assert all(above == below * 2.0**32 for below, above in itertools.pairwise(WEIGHTS))


@pytest.mark.parametrize("sign", [1, -1])
def test_every_power_of_two_and_its_neighbours_are_their_own_sum_to_two_units(sign: int) -> None:
    for exponent in range(-1074, 1023):
        power = sign * math.ldexp(1.0, exponent)
        for term in (power, math.nextafter(power, 0.0), math.nextafter(power, sign * math.inf)):
            assert abs(exact_sum([term]) - term) <= 2 * math.ulp(term)
            assert abs(exact_sum([term, term / 2]) - math.fsum([term, term / 2])) <= 2 * math.ulp(term)
        assert exact_sum([power]) == power


@given(st.lists(st.floats(-1e150, 1e150), max_size=30), st.floats(-1e150, 1e150))
def test_what_is_taken_away_again_leaves_nothing(terms: list[float], rest: float) -> None:
    back = [-term for term in terms]
    assert exact_sum([*terms, rest, *back]) == rest
    assert exact_sum([*terms, *back]) == 0.0


def test_no_terms_are_zero_and_the_sum_of_zeros_has_no_sign() -> None:
    assert exact_sum([]).hex() == exact_sum([-0.0]).hex() == exact_sum([0.0, -0.0]).hex() == (0.0).hex()


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_sum_that_is_no_finite_double_is_none(sign: float) -> None:
    large = sign * 2.0**1023
    assert exact_sum([large]) == large
    assert exact_sum([large, large, large, -large, -large]) == large
    for terms in ([large] * 3, [large] * 5_000):
        with pytest.raises(OverflowError):
            exact_sum(terms)
