"""Which draft length should a server run, and should it speculate at all?

A library as well as a command: no engine is imported, and everything but `serving` is pure.

    from specamort import plan

    answer = plan.plan(plan.Calibration(t_base_ms=9.4, d={6: 0.022}), plan.Acceptance.of(0.6, 4))
    answer.best.gamma

Equation: `pot(gamma) = (t_base (1 + c d(gamma)) + c gamma draft + h(gamma)) / tau(gamma)` with
coverage c, drafting time per token, host term h and `tau = 1 + c (a_1 + ... + a_gamma)`, where a_k
is the share of drafts of which at least k tokens are accepted. It is the study's equation (1) for
c = 1, a_k = alpha, draft = h = 0.
"""

from dataclasses import asdict, dataclass, field
from math import sqrt
from statistics import NormalDist

import numpy as np

from .errors import SpecamortError

LEVEL = 0.95
_Z = NormalDist().inv_cdf((1 + LEVEL) / 2)
_WORTH = 0.005  # a speedup below this is not told from none
_SILENT = 0.5  # a drafter that proposes on fewer steps has nothing to look up
_REFUSED = 0.3  # a first draft token that holds less often is refused, by and large
_FEW_DRAFTS = 100


@dataclass(frozen=True)
class Calibration:
    """What a step costs where the answer is to hold.

    Attributes:
        t_base_ms: a decode step without speculation, with its interval in `t_base_range_ms`.
        d: verify overhead by draft length, as a fraction of the step; linear between, and beyond
            the last by its slope.
        h0_ms, h1_ms: host term of a verify step, h0 + h1 gamma.
        draft_ms: time to draft one token (a draft model, EAGLE); n-gram drafting is the case 0.
        batches: the batch sizes it was calibrated for, empty if unknown.
        gammas: the draft lengths it was calibrated for, empty if unknown.
        eager: whether without CUDA graphs, null if unknown.
        error: how far its predictions were off where they were held out, as a share; a gain below
            that is not told from none.
        source: where it is from, for the reader.
    """

    t_base_ms: float
    d: dict[int, float] = field(default_factory=dict)
    h0_ms: float = 0.0
    h1_ms: float = 0.0
    draft_ms: float = 0.0
    t_base_range_ms: tuple[float, float] | None = None
    batches: tuple[int, ...] = ()
    gammas: tuple[int, ...] = ()
    eager: bool | None = None
    error: float = 0.0
    source: str = "by hand"

    def __post_init__(self):
        values = [
            self.error,
            self.t_base_ms,
            self.h0_ms,
            self.h1_ms,
            self.draft_ms,
            *self.d.values(),
        ]
        if not np.isfinite(values).all():
            raise SpecamortError("the calibration holds a value that is not a number")
        if self.t_base_ms <= 0 or self.draft_ms < 0 or any(v <= -1 for v in self.d.values()):
            raise SpecamortError(
                "t_base must be above 0 ms, drafting time not below 0, and d above -1"
            )

    def overhead(self, gamma: int) -> float:
        """d at a draft length; 0 at 0."""
        known = {0: 0.0} | self.d
        xs = sorted(known)
        if gamma <= xs[-1] or len(xs) == 1:
            return float(np.interp(gamma, xs, [known[x] for x in xs]))
        (x0, x1), slope = xs[-2:], known[xs[-1]] - known[xs[-2]]
        return known[x1] + slope * (gamma - x1) / (x1 - x0)

    def extra_ms(self, gamma: int, coverage: float) -> float:
        """What the mean decode step takes more than without speculation.

        Verifying and drafting are paid by the steps that have a draft, h by every step, as it is
        calibrated (`analysis.host_terms`).
        """
        if gamma == 0:
            return 0.0
        per_draft = self.t_base_ms * self.overhead(gamma) + self.draft_ms * gamma
        return coverage * per_draft + self.h0_ms + self.h1_ms * gamma


@dataclass(frozen=True)
class Acceptance:
    """What becomes of drafts.

    Attributes:
        survival: a_1, a_2, ...: the share of drafts of which at least k tokens are accepted.
        coverage: the share of decode steps that have a draft.
        drafts: how many drafts it was read from, null if given by hand.
        measured_to: survival up to here is measured; beyond it is extrapolated.
        source: where it is from.
    """

    survival: tuple[float, ...]
    coverage: float = 1.0
    drafts: int | None = None
    measured_to: int = 0
    source: str = "by hand"

    def __post_init__(self):
        values = [*self.survival, self.coverage]
        if not values[:-1] or not np.isfinite(values).all() or min(values) < 0 or max(values) > 1:
            raise SpecamortError("acceptance and coverage are shares between 0 and 1")
        if any(b > a + 1e-9 for a, b in zip(self.survival, self.survival[1:], strict=False)):
            raise SpecamortError("acceptance by position cannot rise from one to the next")

    @classmethod
    def of(cls, alpha: float, gamma: int, coverage: float = 1.0, **about) -> "Acceptance":
        """From one number: alpha = accepted / drafted at gamma.

        One number does not say where in a draft the refusals are. The model: each token is
        accepted with one probability p once those before it are, and p is such that the mean over
        gamma tokens is alpha (Leviathan, Kalman and Matias 2023).
        """
        if not 0 <= alpha <= 1 or gamma < 1:
            raise SpecamortError("alpha is a share between 0 and 1, at a gamma of 1 or more")
        low, high = 0.0, 1.0
        for _ in range(60):
            p = (low + high) / 2
            mean = sum(p**k for k in range(1, gamma + 1)) / gamma
            low, high = (p, high) if mean < alpha else (low, p)
        about = {"source": f"alpha {alpha:g} at gamma {gamma}, by hand"} | about
        return cls(tuple(p**k for k in range(1, gamma + 1)), coverage, **about)

    def at(self, gamma: int) -> list[float]:
        """a_1 to a_gamma; beyond what is known the last ratio goes on."""
        known = list(self.survival[:gamma])
        if len(known) < gamma:
            before = known[-2] if len(known) > 1 else 1.0
            ratio = known[-1] / before if before else 0.0
            known += [known[-1] * ratio**k for k in range(1, gamma - len(known) + 1)]
        return known

    def accepted(self, gamma: int) -> tuple[float, float, float]:
        """Accepted tokens per draft of length gamma, with its interval.

        From the number of drafts where that is known. Beyond the positions known it also spans
        "none further" to "all that got so far"; below them, where one number was all there was,
        whatever positions can have that mean (acceptance never rises along a draft).
        """
        shares = self.at(gamma)
        mean = sum(shares)
        spread = 0.0
        if self.drafts:
            # var of the accepted length L, from P(L >= k) = a_k
            second = sum((2 * k - 1) * a for k, a in enumerate(shares, 1))
            spread = _Z * sqrt(max(second - mean**2, 0.0) / self.drafts)
        low, high = max(mean - spread, 0.0), min(mean + spread, float(gamma))
        known = len(self.survival)
        if not self.measured_to and gamma < known:
            total = sum(self.survival)
            low, high = min(low, total * gamma / known), max(high, min(total, gamma))
        if gamma > known:
            sure = sum(shares[:known])
            low = min(low, max(sure - spread, 0.0))
            high = max(high, min(sure + shares[known - 1] * (gamma - known) + spread, gamma))
        return mean, low, high


@dataclass(frozen=True)
class Choice:
    """One draft length.

    Attributes:
        pot_ms, speedup: with intervals; speedup over no speculation.
        next_token_ms: what drafting one token more would save per output token; below 0 it costs.
        break_even: accepted tokens per draft at which this length costs what no speculation does.
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
    break_even: float
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

    def to_dict(self) -> dict:
        return asdict(self)


@dataclass(frozen=True)
class Serving:
    """What a server does now, from its metrics: see `serving.read`.

    Attributes:
        gamma: its draft length.
        tpot_ms: its measured time per output token, null if none was counted.
        batch: requests in a decode step, on average.
    """

    gamma: int
    acceptance: Acceptance
    tpot_ms: float | None
    batch: float


def overview(answer: Plan, serving: Serving | None = None) -> str:
    """The answer in one screen."""
    lines = [answer.advice, ""]
    lines += [f"! {w}" for w in answer.warnings] + [""] * bool(answer.warnings)
    lines.append("gamma   TPOT ms (95%)          speedup (95%)        one more token   acceptance")
    for c in answer.choices:
        mark = ">" if c.gamma == answer.best.gamma else " "
        mark += "*" if serving and c.gamma == serving.gamma else " "
        accepted = f"{c.accepted:.2f} a draft, {c.known}" if c.gamma else ""
        pot = f"{c.pot_ms:.2f} ({c.pot_low_ms:.2f} to {c.pot_high_ms:.2f})"
        speedup = f"{c.speedup:.2f} ({c.speedup_low:.2f} to {c.speedup_high:.2f})"
        lines.append(
            f"{mark}{c.gamma:3}   {pot:23}{speedup:21}{-c.next_token_ms:+8.2f} ms      {accepted}"
        )
    lines.append("> recommended" + ("   * the server now" if serving else ""))
    if serving and serving.tpot_ms is not None:
        lines.append(
            f"measured at the server: {serving.tpot_ms:.2f} ms a token at gamma {serving.gamma}, "
            f"{serving.batch:.1f} requests in a step"
        )
    at = answer.best.gamma or min(answer.choices[1:], key=lambda c: c.pot_ms).gamma
    tried = answer.choices[at]
    lines.append(
        f"break-even at gamma {at}: {tried.break_even:.2f} accepted tokens a draft "
        f"(alpha {tried.break_even / at:.2f}); this traffic has {tried.accepted:.2f}"
    )
    return "\n".join([*lines, "", "assumed:", *(f"- {a}" for a in answer.assumed)])


def tau(acceptance: Acceptance, gamma: int, accepted: float) -> float:
    """Tokens per decode step when a draft has `accepted` of its tokens accepted."""
    return 1 + (acceptance.coverage * accepted if gamma else 0.0)


def pot_ms(calibration: Calibration, acceptance: Acceptance, gamma: int, accepted: float) -> float:
    """Latency per output token; see the module's equation."""
    step = calibration.t_base_ms + calibration.extra_ms(gamma, acceptance.coverage)
    return step / tau(acceptance, gamma, accepted)


def plan(
    calibration: Calibration,
    acceptance: Acceptance,
    max_gamma: int | None = None,
    serving: Serving | None = None,
) -> Plan:
    """The answer for draft lengths 0 to `max_gamma` (by default what is calibrated, at least 6).

    Args:
        serving: what the server in question does now, to hold the calibration against.

    Raises:
        SpecamortError: the longest draft length is below 1.
    """
    longest = max_gamma or max([6, len(acceptance.survival), *calibration.gammas])
    if longest < 1:
        raise SpecamortError("the longest draft length is at least 1")
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
        warnings=_warnings(calibration, acceptance, best, serving),
        calibration=calibration,
        acceptance=acceptance,
    )


def _choice(calibration: Calibration, acceptance: Acceptance, gamma: int) -> Choice:
    mean, low, high = acceptance.accepted(gamma) if gamma else (0.0, 0.0, 0.0)
    base = calibration.t_base_ms
    value = pot_ms(calibration, acceptance, gamma, mean)
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
        if acceptance.coverage
        else float("inf"),
        known="measured" if measured else modelled,
    )


def _advice(
    calibration: Calibration, acceptance: Acceptance, best: Choice, choices: list[Choice]
) -> str:
    if best.gamma:
        said = f"Speculate with gamma {best.gamma}: {best.speedup:.2f}x as fast per token"
        near = [c.gamma for c in choices if 0 < c.gamma < best.gamma]
        close = [g for g in near if choices[g].pot_ms < 1.01 * best.pot_ms]
        return said + (f" (gamma {close[0]} is within 1% of it)." if close else ".")
    tried = min(choices[1:], key=lambda c: c.pot_ms)
    said = (
        f"Do not speculate: the best draft length, {tried.gamma}, would be {tried.speedup:.2f}x as "
    )
    if tried.speedup > 1:
        said += f"fast, and predictions are good to {100 * max(_WORTH, calibration.error):.1f}%."
    else:
        said += (
            f"fast; it needs {tried.break_even:.2f} accepted tokens a draft to break even and gets "
            f"{tried.accepted:.2f}."
        )
    silent = f"The drafter is silent on {100 * (1 - acceptance.coverage):.0f}% of the steps"
    if acceptance.survival[0] < _REFUSED:
        refused = "Its drafts are refused"
        if acceptance.coverage < _SILENT:
            refused = f"{silent}, and refused on most others"
        return f"{said} {refused}: another drafter, or none, for this traffic."
    if acceptance.coverage < _SILENT:
        return (
            f"{said} {silent}, though what it proposes holds: give it more to look up (a wider "
            "window, a draft model)."
        )
    return f"{said} Drafts hold, but verifying or drafting costs more than they save."


def _assumed(calibration: Calibration, acceptance: Acceptance) -> list[str]:
    said = [
        f"cost of a step: {calibration.source}; t_base {calibration.t_base_ms:.3g} ms",
        f"acceptance: {acceptance.source}; coverage {acceptance.coverage:.2f}",
    ]
    if calibration.error:
        said.append(
            f"predictions are good to {100 * calibration.error:.1f}%, the calibration's held-out "
            "error, which the intervals include"
        )
    if not calibration.d:
        said.append("verifying costs nothing (no d was given)")
    if calibration.draft_ms == 0:
        said.append("drafting costs nothing (n-gram); a draft model's time is --draft-ms")
    measured, known = acceptance.measured_to, len(acceptance.survival)
    if measured:
        said.append(f"acceptance is measured up to gamma {measured}, extrapolated beyond")
    else:
        said.append(
            f"acceptance by position is modelled from one number up to gamma {known} (one "
            "probability per token), extrapolated beyond"
        )
    said.append("traffic and batch stay as they are")
    return said


def _warnings(
    calibration: Calibration, acceptance: Acceptance, best: Choice, serving: Serving | None
) -> list[str]:
    said = []
    if acceptance.drafts is not None and acceptance.drafts < _FEW_DRAFTS:
        said.append(f"only {acceptance.drafts} drafts were seen; watch for longer")
    if best.gamma and best.speedup_low <= 1:
        said.append(
            f"the gain is not told from none: {best.speedup_low:.2f} to {best.speedup_high:.2f}x"
        )
    if calibration.gammas and best.gamma > max(calibration.gammas):
        said.append(
            f"gamma {best.gamma} is beyond the calibrated {max(calibration.gammas)}: d is "
            "extrapolated"
        )
    if calibration.overhead(max(best.gamma, 1)) > 0.5:
        said.append(
            "verifying adds more than half a step: the step is bound by the device, and "
            "speculation pays less the larger the batch"
        )
    if serving is None:
        return said
    if calibration.batches and serving.batch > 1.25 * max(calibration.batches):
        said.append(
            f"the server decodes {serving.batch:.1f} requests at once, the calibration goes up to "
            f"{max(calibration.batches)}: outside it, steps are longer and verifying costs more "
            "than predicted; calibrate at this batch"
        )
    if serving.tpot_ms is not None:
        accepted = acceptance.accepted(serving.gamma)[0]
        expected = pot_ms(calibration, acceptance, serving.gamma, accepted)
        off = serving.tpot_ms / expected - 1
        if abs(off) > 0.25:
            eager = (
                " (calibrated without CUDA graphs: with them a step is shorter)"
                if calibration.eager and off < 0
                else ""
            )
            said.append(
                f"the server takes {serving.tpot_ms:.1f} ms a token at gamma {serving.gamma}, the "
                f"calibration says {expected:.1f} ({100 * off:+.0f}%): it is not of this server, "
                f"model or load{eager}; calibrate there before trusting milliseconds"
            )
    return said
