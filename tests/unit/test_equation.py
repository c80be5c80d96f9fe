import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specamort.model import equation

ms = st.floats(0.1, 100)
fraction = st.floats(0, 1)
gammas = st.integers(1, 16)


def test_equation_one_by_hand():
    # 10 ms (1 + 0.05) / (0.5 * 4 + 1) = 3.5 ms
    assert equation.pot(10, 0.05, 0.5, 4) == pytest.approx(3.5)


def test_limits_of_the_study():
    assert equation.pot(10, 0, 1, 6) == pytest.approx(10 / 7)  # full acceptance: gamma + 1
    assert equation.pot(10, 0.02, 0, 6) == pytest.approx(10.2)  # none: slower by d


def test_exact_divisor_by_hand():
    # half the steps draft: 10 (1 + 0.5 * 0.4) / 1.5 = 8
    assert equation.pot_exact_divisor(10, 0.4, 0.5, 1.5) == pytest.approx(8)


def test_acceptance_blind_by_hand():
    assert equation.pot_acceptance_blind(10, 0.05, 4) == pytest.approx(2.1)


def test_geometric_by_hand():
    # 1 + 0.5 + 0.25 = 1.75 tokens
    assert equation.tokens_geometric(0.5, 2) == pytest.approx(1.75)
    assert equation.pot_geometric(7, 0, 0.5, 2) == pytest.approx(4)
    assert equation.tokens_geometric(1.0, 6) == 7
    assert equation.tokens_geometric(0.0, 6) == 1


def test_ratio_transfer_and_host_residual_by_hand():
    assert equation.pot_ratio_transfer(8, 4) == 2
    # a 3 ms token, 4 to a step, is a 12 ms step; 10 (1 + 0.1) of it is explained
    assert equation.host_residual_ms(3, 10, 0.1, 1, 4) == pytest.approx(1)


def test_study_contradiction_acceptance_blind_on_open():
    # with no acceptance the error is gamma / (gamma + 1): 77.5% mean and 85.7% at most
    gamma = np.array([2, 4, 6])
    error = -equation.percentage_error(equation.pot_acceptance_blind(10, 0, gamma), 10)
    assert error.mean() == pytest.approx(77.5, abs=0.05)
    assert error.max() == pytest.approx(85.7, abs=0.05)


@given(ms, st.floats(0, 2), fraction, gammas)
def test_timing_alpha_inverts_the_equation(t_base, d, alpha, gamma):
    measured = equation.pot(t_base, d, alpha, gamma)
    assert equation.alpha_from_timing(measured, t_base, d, gamma) == pytest.approx(alpha, abs=1e-9)


@given(ms, st.floats(0, 2), fraction, gammas)
def test_exact_divisor_is_equation_one_at_full_coverage(t_base, d, alpha, gamma):
    exact = equation.pot_exact_divisor(t_base, d, 1, alpha * gamma + 1)
    assert exact == pytest.approx(equation.pot(t_base, d, alpha, gamma))
