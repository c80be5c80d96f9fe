"""The closed form and its rivals. Numbers or arrays in, the same out; nothing of ours imported.

Units: `t_base` and results in ms per output token, `d` and `alpha` as fractions, `tau` in tokens
per decode step. Source, where not said otherwise: study section "A Closed-Form Per-Output-Token
Model".
"""

from typing import TYPE_CHECKING, TypeAlias

import numpy as np

if TYPE_CHECKING:  # a planner has no need of pandas
    import pandas as pd
    from numpy.typing import NDArray

Number: TypeAlias = "float | NDArray[np.float64] | pd.Series"


def verify_ms(t_base: Number, d: Number) -> Number:
    """A step that verifies gamma + 1 positions: t_ver = t_base (1 + d).

    >>> verify_ms(10, 0.5)
    15.0
    """
    return t_base * (1 + d)


def pot(t_base: Number, d: Number, alpha: Number, gamma: Number) -> Number:
    """Equation (1): pot = t_base (1 + d) / (alpha gamma + 1).

    Exact when every step verifies a full-length draft (coverage 1).

    A step of 15 ms gives 3 tokens:

    >>> pot(10, 0.5, alpha=0.5, gamma=4)
    5.0
    """
    return verify_ms(t_base, d) / (alpha * gamma + 1)


def pot_exact_divisor(t_base: Number, d: Number, coverage: Number, tau: Number) -> Number:
    """pot = t_base (1 + coverage d) / tau: steps without a draft pay no verify overhead.

    Args:
        coverage: drafts per decode step.
        tau: tokens per decode step.

    Half of the steps draft, and the mean step of 12 ms gives 1.5 tokens:

    >>> pot_exact_divisor(10, 0.4, coverage=0.5, tau=1.5)
    8.0
    """
    return t_base * (1 + coverage * d) / tau


def pot_host(t_base: Number, d: Number, h: Number, coverage: Number, divisor: Number) -> Number:
    """pot = (t_base (1 + coverage d) + h) / divisor: the refinement the study leaves undone.

    Args:
        h: host time per decode step beyond the baseline's, ms.
        divisor: tokens per step, alpha gamma + 1 (with coverage 1) or tau.

    >>> pot_host(10, 0.5, h=1, coverage=1, divisor=4)
    4.0
    """
    return (t_base * (1 + coverage * d) + h) / divisor


def pot_acceptance_blind(t_base: Number, d: Number, gamma: Number) -> Number:
    """The textbook device-pass view: every draft counts as accepted.

    >>> pot_acceptance_blind(10, 0.5, gamma=4)
    3.0
    """
    return verify_ms(t_base, d) / (gamma + 1)


def tokens_geometric(beta: Number, gamma: int) -> Number:
    """Tokens of a verify step if each position is accepted with probability beta.

    (1 - beta^(gamma+1)) / (1 - beta); Leviathan, Kalman and Matias 2023, equation (1).

    1 + 0.5 + 0.25:

    >>> float(tokens_geometric(0.5, gamma=2))
    1.75
    """
    tokens: Number = np.power.outer(beta, np.arange(gamma + 1)).sum(axis=-1)
    return tokens


def pot_geometric(t_base: Number, d: Number, beta: Number, gamma: int) -> Number:
    """Equation (1) with independent acceptances in place of a counter at every gamma.

    A step of 10.5 ms gives 1.75 tokens:

    >>> float(pot_geometric(10, 0.05, beta=0.5, gamma=2))
    6.0
    """
    return verify_ms(t_base, d) / tokens_geometric(beta, gamma)


def pot_ratio_transfer(t_base: Number, speedup: Number) -> Number:
    """Own baseline over a speedup measured on the calibration platform.

    >>> pot_ratio_transfer(8, 4)
    2.0
    """
    return t_base / speedup


def alpha_from_timing(pot_measured: Number, t_base: Number, d: Number, gamma: Number) -> Number:
    """Equation (1) solved for alpha. Circular as a predictor on its own platform.

    A step of 15 ms at 5 ms a token gave 3 tokens, so 2 of 4 drafted were accepted:

    >>> alpha_from_timing(5, 10, 0.5, gamma=4)
    0.5
    """
    return (verify_ms(t_base, d) / pot_measured - 1) / gamma


def host_residual_ms(
    pot_measured: Number, t_base: Number, d: Number, coverage: Number, tau: Number
) -> Number:
    """h = pot tau - t_base (1 + coverage d): what a step took beyond the modelled time.

    4 tokens of 4 ms are a step of 16 ms, of which 15 are explained:

    >>> host_residual_ms(4, 10, 0.5, coverage=1, tau=4)
    1.0
    """
    return pot_measured * tau - t_base * (1 + coverage * d)


def percentage_error(predicted: Number, measured: Number) -> Number:
    """Signed, in percent of the measured value.

    >>> percentage_error(9, 12)
    -25.0
    """
    return 100 * (predicted - measured) / measured
