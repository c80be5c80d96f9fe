"""The step-time law: what a decode step takes, in milliseconds, and how its host terms are chosen.

    step = t_base + coverage kappa increment + h,    pot = (step + draft) / tau

`t_base` is a step without speculation, `increment` what the device takes more for a step that
verifies gamma + 1 positions (milliseconds, from the microbenchmark), `kappa` the share of it that
the host does not hide, h the host's own part, and `draft` what proposing takes, which is measured
(`engine.draft_ms`). Equation (1) multiplies the whole of t_base by
1 + d; only its device part grows, and that part is what the increment is.

No term is below 0: it is time that is spent, and one below 0 would only make good for an increment
that is too large. Which terms h has is decided by leaving points out of what calibrates it, never
by what it predicts.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from .equation import Number

Floats = NDArray[np.float64]

# Of h, in ms: of every step of an engine that can speculate; of a step that verifies; of that for
# each drafted position, whatever the batch; and for each drafted token.
TERMS = ("step", "verify", "gamma", "token")


@dataclass(frozen=True)
class Law:
    """A calibrated law.

    Attributes:
        kappa: exposed share of the device's increment, 0 to 1.
        h_ms: by term, those of `TERMS` that were taken.
        left_out_pct: root mean square error of points left out, relative, in percent; null
            where nothing was calibrated.
    """

    kappa: float = 1.0
    h_ms: Mapping[str, float] = field(default_factory=dict)
    left_out_pct: float | None = None

    def step_ms(
        self,
        t_base: Number,
        increment: Number,
        batch: Number,
        gamma: Number,
        coverage: Number,
        verify: Number,
    ) -> Number:
        """A decode step; over tau it is the pot.

        Args:
            t_base, increment: ms.
            coverage: drafts per sequence and step.
            verify: share of the batch's steps in which at least one sequence has a draft.

        A step of 10 ms, of a verify step 2 more on the device and 0.5 beside it:

        >>> Law(h_ms={"verify": 0.5}).step_ms(10, 2, batch=1, gamma=4, coverage=1, verify=1)
        12.5
        """
        given = terms(batch, gamma, coverage, verify)
        h: Number = 0.0
        for name, ms in self.h_ms.items():
            h = h + ms * given[name]
        return t_base + coverage * self.kappa * increment + h


def terms(batch: Number, gamma: Number, coverage: Number, verify: Number) -> dict[str, Number]:
    """What each of `TERMS` is multiplied by.

    >>> terms(batch=4, gamma=2, coverage=0.5, verify=0.9)
    {'step': 1.0, 'verify': 0.9, 'gamma': 1.8, 'token': 4.0}
    """
    return {
        "step": 1.0 + 0 * verify,
        "verify": verify,
        "gamma": verify * gamma,
        "token": coverage * batch * gamma,
    }


@dataclass(frozen=True)
class Points:
    """What a law is calibrated by: one step each, arrays of one length; as `Law.step_ms` names."""

    step: Floats
    t_base: Floats
    increment: Floats
    batch: Floats
    gamma: Floats
    coverage: Floats
    verify: Floats

    def without(self, i: int) -> "Points":
        return Points(**{k: np.delete(v, i) for k, v in vars(self).items()})

    def predicted(self, law: Law) -> Floats:
        given = {k: v for k, v in vars(self).items() if k != "step"}
        return np.asarray(law.step_ms(**given), dtype=float)


def candidates(
    points: Points, among: tuple[str, ...] = TERMS
) -> list[tuple[tuple[str, ...], bool, Law]]:
    """Every choice of terms, and of kappa 1 or fitted, with its law: (terms, kappa fitted, law).

    A choice that the points cannot tell, with any one of them left out, is not there. The first has
    no term at all and kappa 1: it calibrates nothing.
    """
    found = []
    for n in range(len(among) + 1):
        for chosen in combinations(among, n):
            for free in (False, True):
                law = _fit(points, chosen, free)
                errors = [_left_out_error(points, i, chosen, free) for i in range(len(points.step))]
                if law is None or not errors or None in errors:
                    continue
                known = [e for e in errors if e is not None]
                rms = 100 * float(np.sqrt(np.mean(np.square(known))))
                found.append((chosen, free, Law(law.kappa, law.h_ms, rms)))
    return found


def chosen(found: list[tuple[tuple[str, ...], bool, Law]]) -> Law:
    """The candidate whose left-out points are the least off; of equals, the simplest."""
    return min(found, key=lambda c: (round(c[2].left_out_pct or 0.0, 6), len(c[0]) + c[1]))[2]


def _left_out_error(points: Points, i: int, names: tuple[str, ...], free: bool) -> float | None:
    law = _fit(points.without(i), names, free)
    if law is None:
        return None
    return float(points.predicted(law)[i] / points.step[i] - 1)


def _fit(points: Points, names: tuple[str, ...], free: bool) -> Law | None:
    """Least squares on a step's relative error, kappa within 0 to 1, h not below 0.

    Null if the points do not determine it.
    """
    from scipy.optimize import nnls  # a planner needs a law, and no scipy

    weight = 1 / points.step
    given = terms(points.batch, points.gamma, points.coverage, points.verify)
    columns = [np.broadcast_to(given[k], points.step.shape) for k in names]
    device = points.coverage * points.increment

    def solved(columns: list[Floats], left: Floats) -> list[float] | None:
        if not columns:
            return []
        x = np.stack(columns, axis=1) * weight[:, None]
        if len(x) < len(columns) or np.linalg.matrix_rank(x, rtol=1e-9) < len(columns):
            return None
        return [float(v) for v in nnls(x, left * weight)[0]]

    kappa = 1.0
    if free:
        both = solved([device, *columns], points.step - points.t_base)
        if both is None:
            return None
        kappa = min(both[0], 1.0)
    # with kappa at its bound, or given, the rest is fitted to what it leaves
    h = solved(columns, points.step - points.t_base - kappa * device)
    if h is None:
        return None
    return Law(kappa, dict(zip(names, h, strict=True)))
