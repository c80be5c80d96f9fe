"""The closed form and its rivals. Numbers or arrays in, the same out; nothing of ours imported.

Units: `t_base` and results in ms per output token, `d` and `alpha` as fractions, `tau` in tokens
per decode step. Source, where not said otherwise: study section "A Closed-Form Per-Output-Token
Model".
"""

import numpy as np


def verify_ms(t_base, d):
    """A step that verifies gamma + 1 positions: t_ver = t_base (1 + d)."""
    return t_base * (1 + d)


def pot(t_base, d, alpha, gamma):
    """Equation (1): pot = t_base (1 + d) / (alpha gamma + 1).

    Exact when every step verifies a full-length draft (coverage 1).
    """
    return verify_ms(t_base, d) / (alpha * gamma + 1)


def pot_exact_divisor(t_base, d, coverage, tau):
    """pot = t_base (1 + coverage d) / tau: steps without a draft pay no verify overhead.

    Args:
        coverage: drafts per decode step.
        tau: tokens per decode step.
    """
    return t_base * (1 + coverage * d) / tau


def pot_host(t_base, d, h, coverage, divisor):
    """pot = (t_base (1 + coverage d) + h) / divisor: the refinement the study leaves undone.

    Args:
        h: host time per decode step beyond the baseline's, ms.
        divisor: tokens per step, alpha gamma + 1 (with coverage 1) or tau.
    """
    return (t_base * (1 + coverage * d) + h) / divisor


def pot_acceptance_blind(t_base, d, gamma):
    """The textbook device-pass view: every draft counts as accepted."""
    return verify_ms(t_base, d) / (gamma + 1)


def tokens_geometric(beta, gamma):
    """Tokens of a verify step if each position is accepted with probability beta.

    (1 - beta^(gamma+1)) / (1 - beta); Leviathan, Kalman and Matias 2023, equation (1).
    """
    return np.power.outer(beta, np.arange(gamma + 1)).sum(axis=-1)


def pot_geometric(t_base, d, beta, gamma):
    """Equation (1) with independent acceptances in place of a counter at every gamma."""
    return verify_ms(t_base, d) / tokens_geometric(beta, gamma)


def pot_ratio_transfer(t_base, speedup):
    """Own baseline over a speedup measured on the calibration platform."""
    return t_base / speedup


def alpha_from_timing(pot_measured, t_base, d, gamma):
    """Equation (1) solved for alpha. Circular as a predictor on its own platform."""
    return (verify_ms(t_base, d) / pot_measured - 1) / gamma


def host_residual_ms(pot_measured, t_base, d, coverage, tau):
    """h = pot tau - t_base (1 + coverage d): what a step took beyond the modelled time."""
    return pot_measured * tau - t_base * (1 + coverage * d)


def percentage_error(predicted, measured):
    """Signed, in percent of the measured value."""
    return 100 * (predicted - measured) / measured
