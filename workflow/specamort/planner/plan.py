"""Which draft length should a server run, and should it speculate at all?

A library as well as a command: no engine is imported, and everything but `server` is pure.

    from specamort import plan

    answer = plan.plan(plan.Calibration(t_base_ms=9.4, d={6: 0.022}), plan.Acceptance.of(0.6, 4))
    answer.best.gamma

The step-time law (`model/law.py`): `pot(gamma) = (t_base + c kappa increment(gamma) + c gamma draft
+ h(gamma)) / tau(gamma)` with coverage c, drafting time per token, host terms h and `tau = 1 +
c (a_1 + ... + a_gamma)`, where a_k is the share of drafts of which at least k tokens are accepted.
With increment = d t_base it is the study's equation (1) for c = kappa = 1, a_k = alpha, draft =
h = 0.
"""

from dataclasses import asdict, dataclass
from math import isfinite, sqrt
from typing import Any

from ..errors import SpecamortError
from .acceptance import LONGEST, Acceptance
from .calibration import Calibration
from .server_metrics import ServerMetrics

_WORTH = 0.005  # a smaller gain is lost in a server's noise
_SILENT = 0.5  # a drafter that proposes on fewer steps has nothing to look up
_REFUSED = 0.3  # a first draft token that holds less often is refused, by and large
_NEVER = 1e-9  # a coverage below that is none
_FEW_DRAFTS = 100


@dataclass(frozen=True)
class Choice:
    """One draft length.

    Attributes:
        pot_ms, speedup: with intervals; speedup over no speculation.
        next_token_ms: what drafting one token more would save per output token; below 0 it costs.
        break_even: accepted tokens per draft at which this length costs what no speculation does,
            null where no step has a draft.
        known: measured, modelled (from fewer numbers), or extrapolated acceptance.
    """

    gamma: int
    pot_ms: float
    pot_low_ms: float
    pot_high_ms: float
    speedup: float
    speedup_low: float
    speedup_high: float
    next_token_ms: float
    accepted: float
    break_even: float | None
    known: str


@dataclass(frozen=True)
class Plan:
    choices: list[Choice]
    best: Choice
    worth_it: bool
    advice: str
    assumed: list[str]
    warnings: list[str]
    calibration: Calibration
    acceptance: Acceptance

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def tau(acceptance: Acceptance, gamma: int, accepted: float) -> float:
    """Tokens per decode step when a draft has `accepted` of its tokens accepted."""
    return 1 + (acceptance.coverage * accepted if gamma else 0.0)


def pot_ms(calibration: Calibration, acceptance: Acceptance, gamma: int, accepted: float) -> float:
    """Latency per output token; see the module's equation."""
    step_ms = calibration.t_base_ms + calibration.extra_ms(gamma, acceptance.coverage)
    return step_ms / tau(acceptance, gamma, accepted)


def plan(
    calibration: Calibration,
    acceptance: Acceptance,
    max_gamma: int | None = None,
    server: ServerMetrics | None = None,
) -> Plan:
    """The answer for draft lengths 0 to `max_gamma` (by default what is calibrated, at least 6).

    Args:
        server: what the server in question does now, to hold the calibration against.

    Raises:
        SpecamortError: the longest draft length is out of range, or the calibration has a step
            take no time.
    """
    longest = max_gamma
    if longest is None:
        longest = max([6, len(acceptance.survival), *calibration.gammas])
    if not 1 <= longest <= LONGEST:
        raise SpecamortError(f"the longest draft length is {longest}, and not 1 to {LONGEST}")
    choices = [_choice(calibration, acceptance, g) for g in range(longest + 1)]
    best = min(choices, key=lambda c: c.pot_ms)
    worth_it = best.gamma > 0 and best.speedup > 1 + max(_WORTH, calibration.error)
    if not worth_it:
        best = choices[0]
    return Plan(
        choices=choices,
        best=best,
        worth_it=worth_it,
        advice=_advice(calibration, acceptance, best, choices),
        assumed=_assumed(calibration, acceptance),
        warnings=_warnings(calibration, acceptance, best, server),
        calibration=calibration,
        acceptance=acceptance,
    )


def _choice(calibration: Calibration, acceptance: Acceptance, gamma: int) -> Choice:
    mean, low, high = acceptance.accepted(gamma) if gamma else (0.0, 0.0, 0.0)
    base = calibration.t_base_ms
    value = pot_ms(calibration, acceptance, gamma, mean)
    if not (isfinite(value) and value > 0):
        raise SpecamortError(
            f"{calibration.source}: a step with gamma {gamma} would take {value:.3g} ms a token; "
            "mend the host term, which may not make up for the step"
        )
    scatter = 0.0  # of t_base, relative
    if calibration.t_base_range_ms:
        a, b = calibration.t_base_range_ms
        scatter = (b - a) / 2 / base
    by_acceptance = [pot_ms(calibration, acceptance, gamma, x) for x in (high, low)]
    error = calibration.error if gamma else 0.0
    below, above = (
        sqrt((value - x) ** 2 + (scatter * value) ** 2 + (error * value) ** 2)
        for x in by_acceptance
    )
    # t_base is in numerator and denominator, so its scatter cancels
    slower, faster = (sqrt((x / value - 1) ** 2 + error**2) for x in reversed(by_acceptance))
    following = pot_ms(calibration, acceptance, gamma + 1, acceptance.accepted(gamma + 1)[0])
    measured = gamma <= acceptance.measured_to
    modelled = "modelled" if gamma <= len(acceptance.survival) else "extrapolated"
    return Choice(
        gamma=gamma,
        pot_ms=value,
        pot_low_ms=value - below,
        pot_high_ms=value + above,
        speedup=base / value,
        speedup_low=base / value / (1 + slower),
        speedup_high=base / value * (1 + faster),
        next_token_ms=value - following,
        accepted=mean,
        break_even=max(
            calibration.extra_ms(gamma, acceptance.coverage) / (acceptance.coverage * base), 0.0
        )
        if acceptance.coverage > _NEVER
        else None,
        known="measured" if measured else modelled,
    )


def _advice(
    calibration: Calibration, acceptance: Acceptance, best: Choice, choices: list[Choice]
) -> str:
    if best.gamma:
        advice = f"Speculate with gamma {best.gamma}: {best.speedup:.2f}x as fast per token"
        near = [c.gamma for c in choices if 0 < c.gamma < best.gamma]
        close = [g for g in near if choices[g].pot_ms < 1.01 * best.pot_ms]
        return advice + (f" (gamma {close[0]} is within 1% of it)." if close else ".")
    tried = min(choices[1:], key=lambda c: c.pot_ms)
    advice = (
        f"Do not speculate: the best draft length, {tried.gamma}, would be {tried.speedup:.2f}x as "
    )
    if tried.speedup > 1:
        advice += f"fast, and predictions are good to {100 * max(_WORTH, calibration.error):.1f}%."
    elif tried.break_even is None:
        return f"{advice}fast, and no step has a draft: another drafter, or none, for this traffic."
    else:
        advice += (
            f"fast; it needs {tried.break_even:.2f} accepted tokens a draft to break even and gets "
            f"{tried.accepted:.2f}."
        )
    silent = f"The drafter is silent on {100 * (1 - acceptance.coverage):.0f}% of the steps"
    if acceptance.survival[0] < _REFUSED:
        refused = "Its drafts are refused"
        if acceptance.coverage < _SILENT:
            refused = f"{silent}, and refused on most others"
        return f"{advice} {refused}: another drafter, or none, for this traffic."
    if acceptance.coverage < _SILENT:
        return (
            f"{advice} {silent}, though what it proposes holds: give it more to look up (a wider "
            "window, a draft model)."
        )
    return f"{advice} Drafts hold, but verifying or drafting costs more than they save."


def _assumed(calibration: Calibration, acceptance: Acceptance) -> list[str]:
    sentences = [
        f"cost of a step: {calibration.source}; t_base {calibration.t_base_ms:.3g} ms",
        f"acceptance: {acceptance.source}; coverage {acceptance.coverage:.2f}",
    ]
    if calibration.error:
        sentences.append(
            f"predictions are good to {100 * calibration.error:.1f}%, the calibration's held-out "
            "error, which the intervals include"
        )
    if not (calibration.d or calibration.increment_ms):
        sentences.append("verifying costs nothing (no d was given)")
    if calibration.draft_ms == 0:
        sentences.append("drafting costs nothing (n-gram); a draft model's time is --draft-ms")
    measured, known = acceptance.measured_to, len(acceptance.survival)
    if measured:
        sentences.append(f"acceptance is measured up to gamma {measured}, extrapolated beyond")
    else:
        sentences.append(
            f"acceptance by position is modelled from one number up to gamma {known} (one "
            "probability per token), extrapolated beyond"
        )
    sentences.append("traffic and batch stay as they are")
    return sentences


def _warnings(
    calibration: Calibration, acceptance: Acceptance, best: Choice, server: ServerMetrics | None
) -> list[str]:
    sentences = []
    if acceptance.drafts is not None and acceptance.drafts < _FEW_DRAFTS:
        sentences.append(f"only {acceptance.drafts} drafts were seen; watch for longer")
    if best.gamma and best.speedup_low <= 1:
        sentences.append(
            "the gain is within the uncertainty: "
            f"{best.speedup_low:.2f} to {best.speedup_high:.2f}x"
        )
    if calibration.gammas and best.gamma > max(calibration.gammas):
        sentences.append(
            f"gamma {best.gamma} is beyond the calibrated {max(calibration.gammas)}: d is "
            "extrapolated"
        )
    if calibration.increment(max(best.gamma, 1)) > 0.5 * calibration.t_base_ms:
        sentences.append(
            "verifying adds more than half a step: the step is bound by the device, and "
            "speculation pays less the larger the batch"
        )
    if server is None:
        return sentences
    if calibration.batches and server.batch > 1.25 * max(calibration.batches):
        sentences.append(
            f"the server decodes {server.batch:.1f} requests at once, the calibration goes up to "
            f"{max(calibration.batches)}: outside it, steps are longer and verifying costs more "
            "than predicted; calibrate at this batch"
        )
    if server.tpot_ms is not None:
        accepted = acceptance.accepted(server.gamma)[0]
        expected = pot_ms(calibration, acceptance, server.gamma, accepted)
        off = server.tpot_ms / expected - 1
        if abs(off) > 0.25:
            eager = (
                " (calibrated without CUDA graphs: with them a step is shorter)"
                if calibration.eager and off < 0
                else ""
            )
            sentences.append(
                f"the server takes {server.tpot_ms:.1f} ms a token at gamma {server.gamma}, the "
                f"calibration says {expected:.1f} ({100 * off:+.0f}%): it is not of this server, "
                f"model or load{eager}; calibrate there before trusting milliseconds"
            )
    return sentences
