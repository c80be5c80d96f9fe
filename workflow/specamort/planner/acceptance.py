"""What becomes of drafts: acceptance by position and coverage, with intervals."""

from dataclasses import dataclass
from math import sqrt
from statistics import NormalDist

import numpy as np

from ..errors import SpecamortError

LONGEST = 256  # tokens of a draft; servers draft a dozen
LEVEL = 0.95
_Z = NormalDist().inv_cdf((1 + LEVEL) / 2)


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

    def __post_init__(self) -> None:
        values = [*self.survival, self.coverage]
        if not values[:-1] or not np.isfinite(values).all() or min(values) < 0 or max(values) > 1:
            raise SpecamortError(
                f"{self.source}: acceptance and coverage are shares between 0 and 1"
            )
        if any(b > a + 1e-9 for a, b in zip(self.survival, self.survival[1:], strict=False)):
            raise SpecamortError(
                f"{self.source}: acceptance by position cannot rise from one to the next"
            )

    @classmethod
    def of(
        cls,
        alpha: float,
        gamma: int,
        coverage: float = 1.0,
        drafts: int | None = None,
        source: str | None = None,
    ) -> "Acceptance":
        """From one number: alpha = accepted / drafted at gamma.

        One number does not say where in a draft the refusals are. The model: each token is
        accepted with one probability p once those before it are, and p is such that the mean over
        gamma tokens is alpha (Leviathan, Kalman and Matias 2023).
        """
        if not 0 <= alpha <= 1 or not 1 <= gamma <= LONGEST:
            raise SpecamortError(
                f"alpha is a share between 0 and 1, at a gamma between 1 and {LONGEST}"
            )
        low, high = 0.0, 1.0
        for _ in range(60):
            p = (low + high) / 2
            mean = sum(p**k for k in range(1, gamma + 1)) / gamma
            low, high = (p, high) if mean < alpha else (low, p)
        source = source or f"alpha {alpha:g} at gamma {gamma}, by hand"
        return cls(tuple(p**k for k in range(1, gamma + 1)), coverage, drafts, source=source)

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
