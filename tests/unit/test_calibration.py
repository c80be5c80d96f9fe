import random

import numpy as np
import pytest

from cases import host_case
from specamort.analysis import (
    calibration,
)


def test_acceptance_band_is_judged(made, local):
    assert made["acceptance"]["in_band"].all()


def test_a_constant_host_term_is_found_and_carries_over(local):
    jitter = iter(random.Random(1).uniform(-0.05, 0.05) for _ in range(1000))
    host, error = host_case(local, lambda gamma: 2.0 + next(jitter))
    assert host["h0_ms"].to_list() == pytest.approx([2, 2], abs=0.05)
    assert (host["h1_ms"] == 0).all() and (host["aicc_constant"] < host["aicc_linear"]).all()
    assert error["equation"] > 10 and error["equation_host"] < 1


def test_a_host_term_that_grows_with_gamma_is_told_apart(local):
    jitter = iter(random.Random(1).uniform(-0.05, 0.05) for _ in range(1000))
    host, error = host_case(local, lambda gamma: 1.0 + 0.5 * gamma + next(jitter))
    assert (host["aicc_linear"] < host["aicc_constant"]).all()
    assert host["h0_ms"].to_list() == pytest.approx([1, 1], abs=0.1)
    assert host["h1_ms"].to_list() == pytest.approx([0.5, 0.5], abs=0.03)
    assert error["exact_divisor_host"] < 1 < error["exact_divisor"]


def test_too_few_cells_choose_a_constant():
    (h0, h1), criterion = calibration._fit(np.array([1.0, 3.0]), np.array([2, 2]), np.ones(2), 1)
    assert (h0, h1) == (pytest.approx(2), 0) and criterion == np.inf
    assert calibration._fit(np.array([1.0, 3.0]), np.array([2, 2]), np.ones(2), 2)[1] == np.inf
