"""The study's figures, redrawn for any study. Colour is the workload, marker the platform.

Colours are Okabe and Ito's (2008), which the colour-blind tell apart; lines carry their names.
"""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import TwoSlopeNorm
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter, NullLocator, ScalarFormatter

from . import record
from .analysis import not_measured
from .plan import Plan, Serving, pot_ms
from .study import Study
from .tables import read_table

COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"]
MARKERS = ["o", "s", "^", "D", "v", "P"]
GREY = "#777777"
FORMATS = ("svg", "pdf", "png")
STYLE = {
    "figure.dpi": 150,
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 9,
    "axes.titlelocation": "left",
    "legend.frameon": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "specamort",
    "pdf.fonttype": 42,
}


def draw_all(study: Study, results: Path) -> None:
    """Draw every figure from the tables, in every format."""
    frames = {
        n: read_table(results, n)
        for n in (
            *("cells", "acceptance", "overheads", "predictions", "residuals", "timing_alpha"),
            *("steps", "device_overheads"),
        )
    }
    foreign = not_measured(frames.values())
    with plt.rc_context(STYLE):
        for name, draw in FIGURES.items():
            figure = draw(study, frames)
            _watermark(figure, foreign)
            for suffix in FORMATS:
                metadata = {"Date": None} if suffix == "svg" else None
                with record.atomic(results / "figures" / f"{name}.{suffix}") as path:
                    figure.savefig(path, bbox_inches="tight", metadata=metadata)
            plt.close(figure)


def _watermark(figure: Figure, text: str) -> None:
    style = {"fontsize": 48, "color": "#00000022", "rotation": 25}
    figure.text(0.5, 0.5, text, ha="center", va="center", **style)


def figure_paths(results: Path) -> list[Path]:
    return [results / "figures" / f"{n}.{s}" for n in FIGURES for s in FORMATS]


def _colour(study: Study, workload: str) -> str:
    return COLOURS[list(study.workloads).index(workload) % len(COLOURS)]


def _marker(study: Study, platform: str) -> str:
    return MARKERS[list(study.platforms).index(platform) % len(MARKERS)]


def _panels(study: Study, title: Callable[[int], str]) -> tuple[Figure, Iterator]:
    """One panel a batch size, all on one scale."""
    figure, axes = plt.subplots(
        1,
        len(study.batches),
        figsize=(3.4 * len(study.batches) + 0.6, 3.2),
        sharey=True,
        squeeze=False,
        layout="constrained",
    )
    for ax, n in zip(axes[0], study.batches, strict=True):
        ax.set_title(title(n))
        ax.set_xlabel("draft length γ")
        ax.set_xticks(study.gammas)
    return figure, zip(axes[0], study.batches, strict=True)


def _points(ax: Axes, rows: pd.DataFrame, y: str, offset: float = 0.0, **style) -> None:
    low, high = rows[y] - rows[f"{y}_low"], rows[f"{y}_high"] - rows[y]
    ax.errorbar(
        rows["gamma"] + offset,
        rows[y],
        yerr=np.clip([low, high], 0, None),
        linestyle="none",
        capsize=2,
        markersize=5,
        **style,
    )


def _label(ax: Axes, text: str, end: tuple[float, float], colour: str) -> None:
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


def _platform_key(study: Study, ax: Axes, hollow_heldout: bool = False) -> None:
    for p in study.platforms.values():
        face = "white" if hollow_heldout and p.role == "heldout" else GREY
        role = "calibration" if p.role == "calibration" else "held out"
        ax.plot(
            [],
            [],
            _marker(study, p.name),
            color=GREY,
            markerfacecolor=face,
            label=f"{p.label} ({role})",
        )
    ax.legend(loc="upper left", handletextpad=0.2)


def _log_ms(ax: Axes, which: str = "y") -> None:
    axis = {"x": ax.xaxis, "y": ax.yaxis}[which]
    getattr(ax, f"set_{which}scale")("log")
    low, high = getattr(ax, f"get_{which}lim")()
    ticks = [t for t in (0.5, 1, 2, 3, 5, 10, 20, 30, 50, 100, 200, 500) if low <= t <= high]
    axis.set_ticks(ticks)
    axis.set_major_formatter(ScalarFormatter())
    axis.set_minor_locator(NullLocator())
    axis.set_minor_formatter(NullFormatter())


def speedup(study: Study, frames: dict[str, pd.DataFrame]) -> Figure:
    """Figure 1: measured speedup over gamma 0, every platform."""
    cells = frames["cells"]
    figure, panels = _panels(study, lambda n: f"batch N = {n}")
    gammas = np.array(study.gammas)
    for ax, n in panels:
        ax.plot(gammas, gammas + 1, "--", color=GREY, linewidth=1)
        ax.annotate(
            "ideal γ + 1",
            (gammas.max(), gammas.max() + 1),
            (-4, 2),
            color=GREY,
            textcoords="offset points",
            ha="right",
            va="bottom",
        )
        ax.axhline(1, color=GREY, linewidth=0.8)
        for w in study.workloads:
            for i, p in enumerate(study.platforms):
                rows = cells.query("workload == @w and platform == @p and batch == @n").sort_values(
                    "gamma"
                )
                style = {"color": _colour(study, w), "marker": _marker(study, p)}
                shift = 0.08 * (i - (len(study.platforms) - 1) / 2)
                ax.plot(
                    rows["gamma"] + shift,
                    rows["speedup"],
                    color=style["color"],
                    linewidth=0.8,
                    alpha=0.5,
                )
                _points(ax, rows, "speedup", shift, **style)
            top = cells.query("workload == @w and batch == @n and gamma == @gammas.max()")
            _label(ax, w, (gammas.max(), top["speedup"].median()), _colour(study, w))
    first = figure.axes[0]
    first.set_ylabel("speedup over γ = 0")
    first.set_ylim(bottom=0)
    _platform_key(study, first)
    return figure


def equation_fit(study: Study, frames: dict[str, pd.DataFrame]) -> Figure:
    """Figure 2: measured pot against equation (1) on the calibration platform."""
    cells, p = frames["cells"], study.calibration
    predicted = frames["predictions"].query("platform == @p.name")
    figure, panels = _panels(study, lambda n: f"{p.label}, batch N = {n}")
    for ax, n in panels:
        for w in study.workloads:
            colour = _colour(study, w)
            rows = cells.query("workload == @w and platform == @p.name and batch == @n")
            _points(
                ax, rows.query("gamma > 0"), "pot_ms", color=colour, marker=_marker(study, p.name)
            )
            _points(
                ax, rows.query("gamma == 0"), "pot_ms", color="black", marker=_marker(study, p.name)
            )
            base = rows.query("gamma == 0")["pot_ms"].tolist()
            for predictor, dash in (("equation", "-"), ("exact_divisor", ":")):
                line = predicted.query(
                    "workload == @w and batch == @n and predictor == @predictor"
                ).sort_values("gamma")
                ax.plot(
                    [0, *line["gamma"]],
                    base + line["predicted_ms"].tolist(),
                    dash,
                    color=colour,
                    linewidth=1.3,
                )
            last = rows.sort_values("gamma").iloc[-1]
            _label(ax, w, (last["gamma"], last["pot_ms"]), _colour(study, w))
        _log_ms(ax)
    first = figure.axes[0]
    first.plot([], [], "-", color=GREY, label="equation (1), counter α")
    first.plot([], [], ":", color=GREY, label="exact divisor, counter τ")
    first.plot([], [], _marker(study, p.name), color=GREY, linestyle="none", label="measured")
    figure.legend(loc="outside upper center", ncols=3)
    first.set_ylabel("ms per output token")
    return figure


def shortfall(study: Study, frames: dict[str, pd.DataFrame]) -> Figure:
    """Figure 3: ideal and measured speedup at full acceptance; what the gap is made of.

    Of the measured step beyond the baseline, d t_base is the predicted verify cost and the rest
    the residual; both are drawn as the speedup they cost, in that order.
    """
    copying = [w.name for w in study.workloads.values() if w.kind == "repeat"]
    cells = frames["cells"].query("workload in @copying and gamma > 0")
    cells = cells.merge(frames["overheads"], on=["platform", "batch", "gamma"])
    figure, panels = _panels(study, lambda n: f"{', '.join(copying)}, batch N = {n}")
    width = 0.7 / len(study.platforms)
    for ax, n in panels:
        gammas = [g for g in study.gammas if g]
        ax.set_xticks(range(len(gammas)), [str(g) for g in gammas])
        for x, g in enumerate(gammas):
            for i, p in enumerate(study.platforms):
                row = cells.query("batch == @n and gamma == @g and platform == @p").iloc[0]
                at = x + width * (i - (len(study.platforms) - 1) / 2)
                ideal, measured = row["tau"], row["speedup"]
                after_verify = ideal / (1 + row["coverage"] * row["d"])
                common = {"width": 0.9 * width, "linewidth": 0.6, "edgecolor": "black"}
                low, high = sorted((measured, after_verify))
                ax.bar(at, measured, color=COLOURS[i], **common)
                ax.bar(at, ideal - high, bottom=high, color="#cccccc", **common)
                hatch = "////" if after_verify > measured else "...."
                ax.bar(at, high - low, bottom=low, facecolor="none", hatch=hatch, **common)
                interval = [[measured - row["speedup_low"]], [row["speedup_high"] - measured]]
                ax.errorbar(at, measured, np.clip(interval, 0, None), color="black", capsize=2)
                ax.plot([at - width / 2, at + width / 2], [g + 1, g + 1], "k--", linewidth=1)
    first = figure.axes[0]
    for i, p in enumerate(study.platforms.values()):
        first.bar(0, 0, color=COLOURS[i], edgecolor="black", label=f"measured, {p.label}")
    blank = {"facecolor": "none", "edgecolor": "black"}
    first.bar(0, 0, color="#cccccc", edgecolor="black", label="verify overhead, predicted")
    first.bar(0, 0, hatch="////", label="host residual", **blank)
    first.bar(0, 0, hatch="....", label="overhead predicted too large", **blank)
    first.plot([], [], "k--", linewidth=1, label="ideal γ + 1")
    figure.legend(loc="outside upper center", ncols=3, fontsize=8)
    first.set_ylabel("speedup over γ = 0")
    first.set_ylim(bottom=0)
    return figure


def decode_step(study: Study, frames: dict[str, pd.DataFrame]) -> Figure:
    """Figure 4: one untraced decode step of each model: device time, and the host's beside it."""
    table = frames["steps"].query(
        "gamma == 0 and batch == 1 and context_tokens == @study.profile.context_tokens"
    )
    figure, axes = plt.subplots(
        1,
        len(study.platforms),
        figsize=(3.4 * len(study.platforms) + 0.6, 3.2),
        sharey=True,
        squeeze=False,
        layout="constrained",
    )
    for ax, p in zip(axes[0], study.platforms.values(), strict=True):
        rows = table.query("platform == @p.name").reset_index()
        ax.bar(rows.index, rows["device_ms"], 0.6, color=COLOURS[0], label="device")
        ax.bar(
            rows.index,
            rows["host_ms"],
            0.6,
            bottom=rows["device_ms"],
            facecolor="white",
            hatch="////",
            edgecolor="black",
            linewidth=0.6,
            label="host-exposed",
        )
        spread = [rows["step_ms"] - rows["step_ms_low"], rows["step_ms_high"] - rows["step_ms"]]
        ax.errorbar(
            rows.index,
            rows["step_ms"],
            yerr=np.clip(spread, 0, None),
            color="black",
            linestyle="none",
            capsize=2,
        )
        ax.plot(
            rows.index,
            rows["traced_step_ms"],
            "_",
            color=COLOURS[1],
            markersize=26,
            markeredgewidth=2,
            zorder=3,
            label="step with the tracer",
        )
        for i, row in rows.iterrows():
            middle = row["device_ms"] + row["host_ms"] / 2
            ax.annotate(
                f"{row['host_ms']:.1f} ms\n{100 * row['host_ms'] / row['step_ms']:.0f}%",
                (i, middle),
                ha="center",
                va="center",
                fontsize=8,
                bbox={"facecolor": "white", "edgecolor": "none", "pad": 1},
            )
        names = [
            m + ("\n(random weights)" if w == "random" else "")
            for m, w in zip(rows["model"], rows["weights"], strict=True)
        ]
        ax.set_xticks(rows.index, names, fontsize=8)
        ax.set_xlim(-0.6, len(rows) - 0.4)
        ax.set_title(f"{p.label}, N = 1, {study.profile.context_tokens} tokens")
    first = figure.axes[0]
    first.set_ylabel("ms per decode step")
    first.set_ylim(bottom=0)
    handles, labels = first.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=3)
    return figure


def device_overhead(study: Study, frames: dict[str, pd.DataFrame]) -> Figure:
    """Figure 7: the roofline's d against the device's own, for every batch, gamma and platform."""
    table = frames["device_overheads"]
    figure, panels = _panels(study, lambda n: f"batch N = {n}")
    for ax, n in panels:
        for i, p in enumerate(study.platforms.values()):
            rows = table.query("platform == @p.name and batch == @n").sort_values("gamma")
            ax.plot(
                [0, *rows["gamma"]], [0, *rows["d_predicted"]], "-", color=COLOURS[i], linewidth=1.3
            )
            style = {"color": COLOURS[i], "marker": _marker(study, p.name)}
            _points(ax, rows, "d_measured", **style, label=f"{p.label}, traced")
        ax.axhline(0, color=GREY, linewidth=0.8)
    first = figure.axes[0]
    first.plot([], [], "-", color=GREY, label="roofline")
    first.set_ylabel("verify overhead d of the device")
    figure.legend(*first.get_legend_handles_labels(), loc="outside upper center", ncols=3)
    return figure


def timing_alpha(study: Study, frames: dict[str, pd.DataFrame]) -> Figure:
    """Figure 5: equation (1) inverted for alpha, a cross-check, beside the counter."""
    table = frames["timing_alpha"]
    figure, ax = plt.subplots(figsize=(4.4, 3.2), layout="constrained")
    for w in study.workloads:
        for p in study.platforms:
            rows = table.query("workload == @w and platform == @p").sort_values("gamma")
            style = {"marker": _marker(study, p), "color": _colour(study, w)}
            ax.plot(rows["gamma"], rows["alpha_timing"], color=style["color"], linewidth=1)
            _points(ax, rows, "alpha_timing", **style)
        counter = table.query("workload == @w and platform == @study.calibration.name")
        ax.plot(counter["gamma"], counter["alpha"], "--", color=_colour(study, w), linewidth=1)
        _label(ax, w, (counter["gamma"].max(), counter["alpha"].iloc[-1]), _colour(study, w))
    ax.plot([], [], "--", color=GREY, label="engine's counter")
    _platform_key(study, ax)
    ax.legend(loc="center left", title="from timing:", alignment="left")
    ax.set_xticks([g for g in study.gammas if g])
    ax.set_xlabel("draft length γ")
    ax.set_ylabel("acceptance α")
    return figure


def parity(study: Study, frames: dict[str, pd.DataFrame]) -> Figure:
    """Figure 6: every speculative cell, predicted against measured; held out is hollow."""
    table = frames["predictions"]
    shown = [("equation", "equation (1)"), ("exact_divisor", "exact divisor")]
    figure, axes = plt.subplots(
        1, 2, figsize=(7.2, 3.6), sharex=True, sharey=True, layout="constrained"
    )
    both = table[table["predictor"].isin([k for k, _ in shown])]
    low = 0.85 * both[["pot_ms", "predicted_ms"]].min().min()
    high = 1.18 * both[["pot_ms", "predicted_ms"]].max().max()
    for ax, (predictor, name) in zip(axes, shown, strict=True):
        ax.plot([low, high], [low, high], "-", color=GREY, linewidth=0.8)
        rows = table.query("predictor == @predictor")
        for w in study.workloads:
            for p in study.platforms.values():
                some = rows.query("workload == @w and platform == @p.name")
                colour = _colour(study, w)
                ax.errorbar(
                    some["pot_ms"],
                    some["predicted_ms"],
                    xerr=np.clip(
                        [some["pot_ms"] - some["pot_ms_low"], some["pot_ms_high"] - some["pot_ms"]],
                        0,
                        None,
                    ),
                    fmt=_marker(study, p.name),
                    color=colour,
                    linewidth=0.8,
                    markersize=5,
                    markerfacecolor="white" if p.role == "heldout" else colour,
                )
        held = rows[rows["held_out"]]["error_pct"].abs().mean()
        ax.set_title(
            f"{name}: held-out error {held:.1f}% mean" if len(rows[rows["held_out"]]) else name
        )
        ax.set_xlim(low, high)
        ax.set_ylim(low, high)
        ax.set_aspect("equal")
        _log_ms(ax, "x")
        _log_ms(ax, "y")
        ax.set_xlabel("measured ms per output token")
    axes[0].set_ylabel("predicted ms per output token")
    _platform_key(study, axes[0], hollow_heldout=True)
    for i, w in enumerate(study.workloads):
        axes[1].text(
            0.97,
            0.05 + 0.08 * i,
            w,
            transform=axes[1].transAxes,
            ha="right",
            color=_colour(study, w),
            fontweight="bold",
        )
    return figure


def plan_map(answer: Plan, serving: Serving | None = None) -> Figure:
    """Speedup over draft length and accepted share, the line of no gain, and where a server is."""
    calibration, coverage = answer.calibration, answer.acceptance.coverage
    gammas = np.arange(1, len(answer.choices))
    shares = np.linspace(0, 1, 101)
    speedup = np.array(
        [
            [
                calibration.t_base_ms / pot_ms(calibration, answer.acceptance, int(g), a * g)
                for g in gammas
            ]
            for a in shares
        ]
    )
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
        if serving:
            at = serving.acceptance.accepted(serving.gamma)[0] / serving.gamma
            style = {
                "clip_on": False,
                "markersize": 9,
                "markeredgecolor": "black",
                "markerfacecolor": "white",
            }
            ax.plot(serving.gamma, at, "o", **style, label="the server now")
        figure.colorbar(mesh, label=f"speedup (coverage {coverage:.2f}); black line: no gain")
        ax.set_xticks(gammas)
        ax.set_xlabel("draft length γ")
        ax.set_ylabel("accepted share of a draft")
        figure.legend(loc="outside upper center", ncols=3)
        _watermark(figure, " ".join(re.findall(r"\((synthetic|rehearsal)\)", calibration.source)))
    return figure


FIGURES: dict[str, Callable[[Study, dict[str, pd.DataFrame]], Figure]] = {
    "figure1_speedup": speedup,
    "figure2_equation": equation_fit,
    "figure3_shortfall": shortfall,
    "figure4_decode_step": decode_step,
    "figure5_timing_alpha": timing_alpha,
    "figure6_parity": parity,
    "figure7_device_overhead": device_overhead,
}
