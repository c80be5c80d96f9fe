"""What a step costs where the answer is to hold."""

from dataclasses import dataclass, field
from typing import cast

import numpy as np

from ..errors import SpecamortError
from ..model.law import Law

MS_MIN, MS_MAX = 1e-3, 1e7  # of a step: a microsecond to some hours
D_MAX = 100.0


@dataclass(frozen=True)
class Calibration:
    """What a step costs where the answer is to hold.

    Attributes:
        t_base_ms: a decode step without speculation, with its interval in `t_base_range_ms`.
        d: verify overhead by draft length, as a fraction of the step; linear between, and beyond
            the last by its slope, where that is not below 0.
        increment_ms: in the place of d, what a verify step takes more on the device.
        law: how a step is made of them; the default takes the increment and nothing beside.
        batch: sequences at once, which decides how many steps verify at a given coverage.
        h_ms: host time that every step takes more while speculation is on, by hand.
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
    increment_ms: dict[int, float] = field(default_factory=dict)
    law: Law = field(default_factory=Law)
    batch: int = 1
    h_ms: float = 0.0
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
            ("h_ms", self.h_ms, -MS_MAX, MS_MAX),
            ("kappa", self.law.kappa, 0, 1),
            *((f"h of a {term}", ms, -MS_MAX, MS_MAX) for term, ms in self.law.h_ms.items()),
            *(("a draft length of increments", g, 1, MS_MAX) for g in self.increment_ms),
            *(
                (f"increment_ms of gamma {g}", ms, -MS_MAX, MS_MAX)
                for g, ms in self.increment_ms.items()
            ),
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

    def increment(self, gamma: int) -> float:
        """What a verify step takes more on the device, ms; 0 at 0."""
        given = self.increment_ms or {g: d * self.t_base_ms for g, d in self.d.items()}
        known = {0: 0.0} | given
        xs = sorted(known)
        if gamma <= xs[-1] or len(xs) == 1:
            return float(np.interp(gamma, xs, [known[x] for x in xs]))
        (x0, x1), rise = xs[-2:], max(known[xs[-1]] - known[xs[-2]], 0.0)
        return known[x1] + rise * (gamma - x1) / (x1 - x0)

    def extra_ms(self, gamma: int, coverage: float) -> float:
        """What the mean decode step takes more than without speculation.

        Verifying and drafting are paid by the steps that have a draft, the rest as the law says.
        """
        if gamma == 0:
            return 0.0
        verify = 1 - (1 - coverage) ** self.batch
        step = self.law.step_ms(0.0, self.increment(gamma), self.batch, gamma, coverage, verify)
        return cast(float, step) + coverage * self.draft_ms * gamma + self.h_ms
