"""What all figures share. A mark means one thing in every figure:

- a workload is its colour, the same in each of them;
- a platform is its marker, and where bars or lines are platforms, a colour that no workload has;
- hollow is held out;
- hatching is host time, light grey the predicted verify overhead, black an interval on a bar;
- grey is a reference, and in a key whatever holds for all workloads or platforms.

Colours are Okabe and Ito's (2008) and one of Tol's, which the colour-blind tell apart; lines carry
their names. A study with more workloads or platforms than colours sees them come round again.
"""

from collections.abc import Callable, Iterator

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import NullFormatter, NullLocator, ScalarFormatter

from ..study.grid import Platform, Study

WORKLOAD_COLOURS = ["#0072B2", "#D55E00", "#009E73", "#882255"]
PLATFORM_COLOURS = ["#CC79A7", "#E69F00", "#56B4E9", "#F0E442"]
# of setups, where workloads have panels of their own
SETUP_COLOURS = ["#000000", "#0072B2", "#D55E00", "#009E73", "#882255", "#CC79A7", "#E69F00"]
MARKERS = ["o", "s", "^", "D", "v", "P"]
GREY = "#777777"
VERIFY_COST = "#cccccc"
HOST_TIME = "////"
OUTLINE = {"edgecolor": "black", "linewidth": 0.6}
FORMATS = ("svg", "pdf", "png")
STYLE = {
    "figure.dpi": 150,
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 9,
    "axes.titlelocation": "left",
    "legend.frameon": False,
    "text.parse_math": False,  # a label's `$` is a dollar
    "text.usetex": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "specamort",
    "pdf.fonttype": 42,
}


def watermark(figure: Figure, text: str) -> None:
    style = {"fontsize": 48, "color": "#00000022", "rotation": 25}
    figure.text(0.5, 0.5, text, ha="center", va="center", **style)


def workload_colour(study: Study, workload: str) -> str:
    return WORKLOAD_COLOURS[list(study.workloads).index(workload) % len(WORKLOAD_COLOURS)]


def platform_colour(study: Study, platform: str) -> str:
    return PLATFORM_COLOURS[list(study.platforms).index(platform) % len(PLATFORM_COLOURS)]


def platform_marker(study: Study, platform: str) -> str:
    return MARKERS[list(study.platforms).index(platform) % len(MARKERS)]


def panels(count: int) -> tuple[Figure, list[Axes]]:
    """Panels side by side, all on one vertical scale."""
    figure, axes = plt.subplots(
        1,
        count,
        figsize=(3.4 * count + 0.6, 3.2),
        sharey=True,
        squeeze=False,
        layout="constrained",
    )
    return figure, list(axes[0])


def batch_panels(study: Study, title: Callable[[int], str]) -> tuple[Figure, Iterator]:
    """One panel a batch size."""
    figure, axes = panels(len(study.batches))
    for ax, n in zip(axes, study.batches, strict=True):
        ax.set_title(title(n))
        ax.set_xlabel("draft length γ")
        ax.set_xticks(study.gammas)
    return figure, zip(axes, study.batches, strict=True)


def points(
    ax: Axes, rows: pd.DataFrame, y: str, colour: str, marker: str, shift: float = 0.0, label=None
) -> None:
    """Column `y` over gamma, with its interval."""
    x = rows["gamma"] + shift
    ax.vlines(x, rows[f"{y}_low"], rows[f"{y}_high"], color=colour, linewidth=1)
    ax.plot(x, rows[y], marker, color=colour, markersize=5, label=label)


def label_line(ax: Axes, text: str, end: tuple[float, float], colour: str) -> None:
    """The line's name behind its last point, in the line's colour."""
    ax.annotate(
        text,
        end,
        (8, 0),
        textcoords="offset points",
        va="center",
        color=colour,
        fontweight="bold",
        annotation_clip=False,
    )


def face(platform: Platform, colour: str) -> str:
    return "white" if platform.role == "heldout" else colour


def platform_key(study: Study, ax: Axes, hollow_heldout: bool = False) -> None:
    for p in study.platforms.values():
        role = "calibration" if p.role == "calibration" else "held out"
        ax.plot(
            [],
            [],
            platform_marker(study, p.name),
            color=GREY,
            markerfacecolor=face(p, GREY) if hollow_heldout else GREY,
            label=f"{p.label} ({role})",
        )
    ax.legend(loc="upper left", handletextpad=0.2)


def platform_patches(study: Study, what: str) -> list[Patch]:
    return [
        Patch(facecolor=platform_colour(study, p.name), label=f"{what}, {p.label}", **OUTLINE)
        for p in study.platforms.values()
    ]


def log_ms(ax: Axes, which: str = "y") -> None:
    axis = {"x": ax.xaxis, "y": ax.yaxis}[which]
    getattr(ax, f"set_{which}scale")("log")
    low, high = getattr(ax, f"get_{which}lim")()
    ticks = [t for t in (0.5, 1, 2, 3, 5, 10, 20, 30, 50, 100, 200, 500) if low <= t <= high]
    axis.set_ticks(ticks)
    axis.set_major_formatter(ScalarFormatter())
    axis.set_minor_locator(NullLocator())
    axis.set_minor_formatter(NullFormatter())
