"""The step-time law, on steps whose making is known."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specamort.model.law import TERMS, Law, Points, candidates, chosen, terms

BATCH = np.repeat([1.0, 4.0], 4)
GAMMA = np.tile([0.0, 2.0, 4.0, 6.0], 2)
T_BASE = np.repeat([20.0, 30.0], 4)
INCREMENT = np.array([0, 0.2, 0.5, 0.9, 0, 2.0, 5.0, 9.0])


def made(law: Law, coverage=None, noise=0.0) -> Points:
    """Steps as a dial measures them: every one verifies, but at gamma 0."""
    c = (GAMMA > 0) * 1.0 if coverage is None else coverage
    given = {"t_base": T_BASE, "increment": INCREMENT, "batch": BATCH, "gamma": GAMMA}
    given |= {"coverage": c, "verify": 1 - (1 - c) ** BATCH}
    exact = law.step_ms(**given)
    return Points(step=exact * (1 + noise * np.sin(np.arange(8.0))), **given)


def test_a_step_by_hand():
    """10 ms, half of the steps with a draft of 2 ms more on the device, of which 80% show."""
    law = Law(0.8, {"step": 0.1, "verify": 0.5, "gamma": 0.01, "token": 0.001})
    step = law.step_ms(10.0, 2.0, batch=4, gamma=6, coverage=0.5, verify=0.9)
    assert step == pytest.approx(10 + 0.8 + 0.1 + 0.45 + 0.054 + 0.012)
    assert Law().step_ms(10.0, 2.0, 4, 6, 1.0, 1.0) == 12


def test_terms_are_per_step_verify_step_position_and_token():
    given = terms(batch=4, gamma=6, coverage=0.5, verify=0.9)
    assert given == {"step": 1.0, "verify": 0.9, "gamma": pytest.approx(5.4), "token": 12.0}
    assert tuple(given) == TERMS


@settings(deadline=None)  # the first imports scipy
@given(
    kappa=st.floats(0.05, 0.95),
    names=st.sets(st.sampled_from(TERMS), max_size=3),
    ms=st.floats(0.5, 3.0),
)
def test_a_law_is_recovered_from_its_own_steps(kappa, names, ms):
    law = Law(kappa, {t: ms if t in ("step", "verify") else ms / 10 for t in names})
    found = chosen(candidates(made(law)))
    assert found.kappa == pytest.approx(kappa, abs=1e-6)
    for name in TERMS:
        assert found.h_ms.get(name, 0) == pytest.approx(law.h_ms.get(name, 0), abs=1e-6)
    assert found.left_out_pct == pytest.approx(0, abs=1e-6)


def test_noise_takes_no_term_that_is_not_there():
    found = chosen(candidates(made(Law(h_ms={"verify": 2.0}), noise=0.002)))
    assert found.left_out_pct < 0.5
    predicted = made(Law()).predicted(found)
    assert predicted == pytest.approx(made(Law(h_ms={"verify": 2.0})).step, rel=0.01)


def test_kappa_stays_between_hidden_and_exposed():
    slower = made(Law())
    slower = Points(**vars(slower) | {"step": T_BASE + 3 * INCREMENT})
    faster = Points(**vars(slower) | {"step": T_BASE - 0.5 * INCREMENT})
    assert {law.kappa for _, free, law in candidates(slower) if free} == {1.0}
    assert {law.kappa for _, free, law in candidates(faster) if free} == {0.0}


def test_no_host_term_is_below_zero():
    """Steps that are faster than their increment says are the increment's fault."""
    faster = Points(**vars(made(Law())) | {"step": T_BASE + INCREMENT - 2.0})
    found = candidates(faster)
    assert len(found) > 8
    assert min(ms for *_, law in found for ms in law.h_ms.values()) == 0


def test_what_points_cannot_tell_is_no_candidate():
    """One batch, one draft length: a constant only, and with one point nothing at all."""
    whole = made(Law(h_ms={"step": 1.0}))
    one_batch = Points(**{k: v[:2] for k, v in vars(whole).items()})
    assert {names for names, *_ in candidates(one_batch)} == {(), ("step",)}
    single = Points(**{k: v[1:2] for k, v in vars(whole).items()})
    assert [(names, free) for names, free, _ in candidates(single)] == [((), False)]
    assert chosen(candidates(single)) == Law(left_out_pct=pytest.approx(100 / 21.2, rel=0.01))
