"""What a step costs where the answer is to hold."""

from dataclasses import dataclass, field

import numpy as np

from ..errors import SpecamortError

MS_MIN, MS_MAX = 1e-3, 1e7  # of a step: a microsecond to some hours
D_MAX = 100.0


@dataclass(frozen=True)
class Calibration:
    """What a step costs where the answer is to hold.

    Attributes:
        t_base_ms: a decode step without speculation, with its interval in `t_base_range_ms`.
        d: verify overhead by draft length, as a fraction of the step; linear between, and beyond
            the last by its slope, where that is not below 0.
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
        limits = [
            ("t_base_ms", self.t_base_ms, MS_MIN, MS_MAX),
            *(("t_base_range_ms", t, 0, MS_MAX) for t in self.t_base_range_ms or ()),
            ("h0_ms", self.h0_ms, -MS_MAX, MS_MAX),
            ("h1_ms", self.h1_ms, -MS_MAX, MS_MAX),
            ("draft_ms", self.draft_ms, 0, MS_MAX),
            ("error", self.error, 0, D_MAX),
            *(("a draft length of d", gamma, 1, MS_MAX) for gamma in self.d),
            *((f"d of gamma {gamma}", share, -0.999, D_MAX) for gamma, share in self.d.items()),
        ]
        for name, value, low, high in limits:
            if not low <= value <= high:
                raise SpecamortError(
                    f"{self.source}: {name} is {value:g}, and no number from {low:g} to {high:g}"
                )

    def overhead(self, gamma: int) -> float:
        """d at a draft length; 0 at 0."""
        known = {0: 0.0} | self.d
        xs = sorted(known)
        if gamma <= xs[-1] or len(xs) == 1:
            return float(np.interp(gamma, xs, [known[x] for x in xs]))
        (x0, x1), rise = xs[-2:], max(known[xs[-1]] - known[xs[-2]], 0.0)
        return known[x1] + rise * (gamma - x1) / (x1 - x0)

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
