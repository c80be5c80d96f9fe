"""What a step costs where the answer is to hold."""

from dataclasses import dataclass, field

import numpy as np

from ..errors import SpecamortError


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
            that is within the error and recommends nothing.
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

    def __post_init__(self) -> None:
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
        """What the mean decode step takes more than without speculation."""
        verifying = coverage * self.t_base_ms * self.overhead(gamma)
        return verifying + self.beside_ms(gamma, coverage)

    def beside_ms(self, gamma: int, coverage: float) -> float:
        """Of that, what is not verifying: drafting and the host term.

        Verifying and drafting are paid by the steps that have a draft, h by every step, as it is
        calibrated (`analysis.calibration.host_terms`).
        """
        if gamma == 0:
            return 0.0
        return coverage * self.draft_ms * gamma + self.h0_ms + self.h1_ms * gamma
