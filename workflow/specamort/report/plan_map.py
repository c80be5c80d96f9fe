"""The planner's answer as a picture: speedup over acceptance and draft length."""

import re
from collections.abc import Callable
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.backend_bases import FigureCanvasBase
from matplotlib.colors import TwoSlopeNorm
from matplotlib.figure import Figure

from ..errors import SpecamortError
from ..files import atomic
from ..planner.plan import Plan, pot_ms
from ..planner.scrape import shown
from ..planner.server_metrics import ServerMetrics
from .style import STYLE, watermark


def speedups(answer: Plan, gammas: np.ndarray, shares: np.ndarray) -> np.ndarray:
    """Speedup over no speculation: a row per accepted share of a draft, a column per gamma."""
    calibration, acceptance = answer.calibration, answer.acceptance
    pots = [[pot_ms(calibration, acceptance, int(g), a * g) for g in gammas] for a in shares]
    return calibration.t_base_ms / np.array(pots)


def plan_map(answer: Plan, server: ServerMetrics | None = None) -> Figure:
    """Speedup over draft length and accepted share, the line of no gain, and where a server is."""
    gammas = np.arange(1, len(answer.choices))
    shares = np.linspace(0, 1, 101)
    speedup = speedups(answer, gammas, shares)
    with plt.rc_context(STYLE):
        figure, ax = plt.subplots(figsize=(5.4, 3.6), layout="constrained")
        top = max(speedup.max(), 1.01)
        norm = TwoSlopeNorm(1, min(speedup.min(), 0.99), top)
        edges = np.arange(0.5, len(gammas) + 1)
        mesh = ax.pcolormesh(edges, np.linspace(0, 1, 102), speedup, norm=norm, cmap="RdBu")
        if speedup.min() < 1 < speedup.max() and len(gammas) > 1:
            ax.contour(gammas, shares, speedup, [1], colors="black", linewidths=1.5)
        own = [(c.gamma, c.accepted / c.gamma) for c in answer.choices[1:]]
        ax.plot(*zip(*own, strict=True), "k.--", linewidth=0.8, clip_on=False, label="this traffic")
        if answer.best.gamma:
            best = answer.best
            ax.plot(
                best.gamma,
                best.accepted / best.gamma,
                "k*",
                markersize=12,
                clip_on=False,
                label="best",
            )
        if server:
            at = server.acceptance.accepted(server.gamma)[0] / server.gamma
            style = {
                "clip_on": False,
                "markersize": 9,
                "markeredgecolor": "black",
                "markerfacecolor": "white",
            }
            ax.plot(server.gamma, at, "o", **style, label="the server now")
        figure.colorbar(
            mesh, label=f"speedup (coverage {answer.acceptance.coverage:.2f}); black line: no gain"
        )
        ax.set_xticks(gammas)
        ax.set_xlabel("draft length γ")
        ax.set_ylabel("accepted share of a draft")
        figure.legend(loc="outside upper center", ncols=3)
        watermark(
            figure, " ".join(re.findall(r"\((synthetic|rehearsal)\)", answer.calibration.source))
        )
    return figure


def write_to(path: Path) -> Callable[[Plan, ServerMetrics | None], None]:
    """What writes an answer's picture there.

    Raises:
        SpecamortError: no format of that name, or no folder to write to.
    """
    kind, known = path.suffix.lstrip(".").lower(), sorted(FigureCanvasBase.filetypes)
    if kind not in known:
        raise SpecamortError(
            f"--figure {shown(path)}: a picture's name ends in its format, one of "
            f"{', '.join(known)}"
        )
    try:
        if not path.parent.is_dir() or (path.exists() and not path.is_file()):
            raise SpecamortError(
                f"--figure {shown(path)}: is no file in a folder that is there; make the folder, "
                "or name another"
            )
    except (OSError, ValueError) as e:
        raise SpecamortError(f"--figure {shown(path)}: no file can have that name") from e

    def write(answer: Plan, server: ServerMetrics | None = None) -> None:
        try:
            with atomic(path) as temporary:
                plan_map(answer, server).savefig(temporary, format=kind)
        except SpecamortError as e:
            raise SpecamortError(f"--figure {e}") from e
        except (RuntimeError, ValueError) as e:  # a format may need a program that is not here
            raise SpecamortError(
                f"--figure {shown(path)}: cannot be drawn ({shown(e)}); name another file or format"
            ) from e

    return write
