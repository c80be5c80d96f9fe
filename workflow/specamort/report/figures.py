"""The study's figures, redrawn for any study. They select rows and draw; they work out nothing.

docs/figures.md says for each which columns of which tables it draws.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import get_args

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from .. import files
from ..analysis.decomposition import compared_decode_steps
from ..analysis.origins import not_measured
from ..analysis.setups import NAMES as SETUP
from ..analysis.setups import of_setup
from ..analysis.tables import read_table
from ..errors import SpecamortError
from ..records.types import Origin
from ..study.grid import Platform, Setup, Study
from .style import (
    FORMATS,
    GREY,
    HOST_TIME,
    OUTLINE,
    SETUP_COLOURS,
    STYLE,
    VERIFY_COST,
    batch_panels,
    face,
    label_line,
    log_ms,
    panels,
    platform_colour,
    platform_key,
    platform_marker,
    platform_patches,
    points,
    watermark,
    workload_colour,
)

matplotlib.use("Agg")

# not of the study's records
FOREIGN = ("vendor_verify_overhead",)
TABLES = [
    *("cells", "predictions", "errors", "shortfall", "timing_alpha", "steps", "verify_overhead"),
    *("device_verify_overhead", "dial", "survival", "best_baselines", "crossovers"),
]


# The forms of the equation: a line, and what it is called.
FORMS = {
    "equation": ("-", "equation (1), counter α"),
    "exact_divisor": (":", "exact divisor, counter τ"),
    "law": ("--", "step-time law, device time in ms"),
}
DIAL_MARKERS = {"geometric": "o", "whole": "s"}
PREDICTED = {"color": "black", "markersize": 6, "markeredgewidth": 1.2}


def draw_all(study: Study, results: Path) -> None:
    """Draw every figure from the tables, in every format."""
    frames = read_tables(results, TABLES)
    with drawn_from(results), plt.rc_context(STYLE):
        foreign = not_measured(frames.values())
        given = {
            s.name: (study.at(s.name), {n: of_setup(f, s) for n, f in frames.items()})
            for s in study.setups
        }
        for name, (draw, setup) in every_figure(study).items():
            figure = draw(study, frames) if setup is None else draw(*given[setup.name])
            watermark(figure, foreign)
            for suffix in FORMATS:
                metadata = {"Date": None} if suffix == "svg" else None
                with files.atomic(results / "figures" / f"{name}.{suffix}") as path:
                    figure.savefig(path, format=suffix, bbox_inches="tight", metadata=metadata)
            plt.close(figure)


def read_tables(results: Path, names: Iterable[str]) -> dict[str, pd.DataFrame]:
    """
    Raises:
        SpecamortError: one is missing, or is not one that `specamort analyse` wrote.
    """
    frames = {n: read_table(results, n) for n in names}
    for name, frame in frames.items():
        told = {w for o in frame.get("origin", ["?"]) for w in str(o).split()}
        if name not in FOREIGN and not told <= {*get_args(Origin)}:
            raise SpecamortError(
                f"{results / 'tables' / name}.csv: origin: is not what `specamort analyse` writes; "
                "write the tables anew"
            )
    return frames


@contextmanager
def drawn_from(results: Path) -> Iterator[None]:
    """What a table has lost since it was written shows only where it is drawn.

    Raises:
        SpecamortError: the tables cannot be drawn.
    """
    try:
        yield
    except (LookupError, NameError, TypeError, ValueError, AttributeError) as e:
        why = f"{type(e).__name__}: {e!s:.200}"
        raise SpecamortError(
            f"{results / 'tables'}: not as `specamort analyse` writes them ({why}); write them anew"
        ) from e


def figure_paths(study: Study, results: Path) -> list[Path]:
    return [results / "figures" / f"{n}.{s}" for n in every_figure(study) for s in FORMATS]


def speedup(study: Study, frames: dict[str, pd.DataFrame]) -> Figure:
    """Figure 1: measured speedup over gamma 0, every platform."""
    cells = frames["cells"].sort_values("gamma")
    ideal = cells.drop_duplicates("gamma")
    figure, each = batch_panels(study, lambda n: f"batch N = {n}")
    for ax, n in each:
        ax.plot(ideal["gamma"], ideal["ideal"], "--", color=GREY, linewidth=1)
        ax.annotate(
            "ideal γ + 1",
            ideal[["gamma", "ideal"]].iloc[-1],
            (-4, 2),
            color=GREY,
            textcoords="offset points",
            ha="right",
            va="bottom",
        )
        ax.axhline(1, color=GREY, linewidth=0.8)
        for w in study.workloads:
            colour = workload_colour(study, w)
            for i, p in enumerate(study.platforms):
                rows = cells.query("workload == @w and platform == @p and batch == @n")
                shift = 0.08 * (i - (len(study.platforms) - 1) / 2)
                ax.plot(rows["gamma"] + shift, rows["speedup"], color=colour, lw=0.8, alpha=0.5)
                points(ax, rows, "speedup", colour, platform_marker(study, p), shift)
            label_line(ax, w, rows[["gamma", "speedup"]].iloc[-1], colour)
    first = figure.axes[0]
    first.set_ylabel("speedup over γ = 0")
    first.set_ylim(bottom=0)
    platform_key(study, first)
    return figure


def equation_fit(study: Study, frames: dict[str, pd.DataFrame]) -> Figure:
    """Figure 2: measured pot against equation (1) and the law on the calibration platform."""
    p = study.calibration
    measured = frames["cells"].query("platform == @p.name").sort_values("gamma")
    predicted = frames["predictions"].query("platform == @p.name").sort_values("gamma")
    figure, each = batch_panels(study, lambda n: f"{p.label}, batch N = {n}")
    for ax, n in each:
        for w in study.workloads:
            colour = workload_colour(study, w)
            rows = measured.query("workload == @w and batch == @n")
            points(ax, rows, "pot_ms", colour, platform_marker(study, p.name))
            base = rows.query("gamma == 0")["pot_ms"]
            for predictor, (dash, _) in FORMS.items():
                line = predicted.query("workload == @w and batch == @n and predictor == @predictor")
                if line.empty:  # the law, where these cells calibrated it
                    continue
                pots = [*base, *line["predicted_ms"]]
                ax.plot([0, *line["gamma"]], pots, dash, color=colour, linewidth=1.3)
            label_line(ax, w, rows[["gamma", "pot_ms"]].iloc[-1], colour)
        log_ms(ax)
    first = figure.axes[0]
    for predictor, (dash, name) in FORMS.items():
        if (predicted["predictor"] == predictor).any():
            first.plot([], [], dash, color=GREY, label=name)
    marker = platform_marker(study, p.name)
    first.plot([], [], marker, color=GREY, linestyle="none", label="measured")
    figure.legend(loc="outside upper center", ncols=4)
    first.set_ylabel("ms per output token")
    return figure


def shortfall(study: Study, frames: dict[str, pd.DataFrame]) -> Figure:
    """Figure 3: ideal and measured speedup at full acceptance; what the gap is made of."""
    w = study.full_acceptance_workload.name
    table = frames["shortfall"].query("workload == @w").sort_values("gamma")
    speedups = frames["predictions"].query("workload == @w")
    figure, each = batch_panels(study, lambda n: f"{w}, batch N = {n}")
    width = 0.7 / len(study.platforms)
    for ax, n in each:
        for i, p in enumerate(study.platforms):
            rows = table.query("platform == @p and batch == @n")
            rows = rows.assign(
                at=np.arange(len(rows)) + width * (i - (len(study.platforms) - 1) / 2)
            )
            bar = {"width": 0.9 * width, **OUTLINE}
            ax.bar(
                rows["at"],
                rows["verify_loss"],
                bottom=rows["speedup_after_verify"],
                color=VERIFY_COST,
                **bar,
            )
            # over the verify cost, of which a negative residual is the part that was not paid
            ax.bar(rows["at"], rows["speedup"], color=platform_colour(study, p), **bar)
            for sign, hatch in ((">=", HOST_TIME), ("<", "....")):
                some = rows.query(f"residual_loss {sign} 0")
                blank = {"facecolor": "none", "hatch": hatch, "bottom": some["speedup"]}
                ax.bar(some["at"], some["residual_loss"], **blank, **bar)
            ax.vlines(rows["at"], rows["speedup_low"], rows["speedup_high"], color="black", lw=1.5)
            ends = rows["at"] - width / 2, rows["at"] + width / 2
            ax.hlines(rows["ideal"], *ends, color=GREY, linestyle="--", linewidth=1)
            for predictor, mark in (("equation", "_"), ("law", "x")):
                one = speedups.query(
                    "platform == @p and batch == @n and predictor == @predictor"
                ).merge(rows[["gamma", "at"]], on="gamma")
                ax.plot(one["at"], one["predicted_speedup"], mark, **PREDICTED)
        ax.set_xticks(range(len(rows)), rows["gamma"])
    key = [
        *platform_patches(study, "measured"),
        Patch(facecolor=VERIFY_COST, label="verify overhead, predicted", **OUTLINE),
        Patch(facecolor="none", hatch=HOST_TIME, label="host residual", **OUTLINE),
        Patch(facecolor="none", hatch="....", label="overhead predicted too large", **OUTLINE),
        Line2D([], [], color=GREY, linestyle="--", linewidth=1, label="ideal γ + 1"),
        Line2D([], [], marker="_", linestyle="none", label="equation (1)", **PREDICTED),
        Line2D([], [], marker="x", linestyle="none", label="step-time law", **PREDICTED),
    ]
    figure.legend(handles=key, loc="outside upper center", ncols=3, fontsize=8)
    first = figure.axes[0]
    first.set_ylabel("speedup over γ = 0")
    first.set_ylim(bottom=0)
    return figure


def decode_step(study: Study, frames: dict[str, pd.DataFrame]) -> Figure:
    """Figure 4: one untraced decode step of each model: device time, and the host's beside it."""
    table = compared_decode_steps(study, frames["steps"])
    host = {"facecolor": "none", "hatch": HOST_TIME, **OUTLINE}
    tracer = {"color": GREY, "markersize": 26, "markeredgewidth": 2, "zorder": 3}
    figure, axes = panels(len(study.platforms))
    for ax, p in zip(axes, study.platforms.values(), strict=True):
        rows = table.query("platform == @p.name").reset_index()
        x = rows.index
        ax.bar(x, rows["device_ms"], 0.6, color=platform_colour(study, p.name), **OUTLINE)
        ax.bar(x, rows["host_ms"], 0.6, bottom=rows["device_ms"], **host)
        ax.vlines(x, rows["step_ms_low"], rows["step_ms_high"], color="black", linewidth=1.5)
        ax.plot(x, rows["traced_step_ms"], "_", **tracer)
        for i, row in rows.iterrows():
            ax.annotate(
                f"{row['host_ms']:.1f} ms\n{row['host_share_pct']:.0f}%",
                (i, (row["device_ms"] + row["step_ms"]) / 2),
                ha="center",
                va="center",
                fontsize=8,
                bbox={"facecolor": "white", "edgecolor": "none", "pad": 1},
            )
        names = [
            m + ("\n(random weights)" if w == "random" else "")
            for m, w in zip(rows["model"], rows["weights"], strict=True)
        ]
        ax.set_xticks(x, names, fontsize=8)
        ax.set_xlim(-0.6, len(rows) - 0.4)
        ax.set_title(f"{p.label}, N = 1, {study.tracing.context_tokens} tokens")
    axes[0].set_ylabel("ms per decode step")
    axes[0].set_ylim(bottom=0)
    key = [
        *platform_patches(study, "device"),
        Patch(label="host-exposed", **host),
        Line2D([], [], color=GREY, linewidth=2, label="step with the tracer"),
    ]
    figure.legend(handles=key, loc="outside upper center", ncols=len(key))
    return figure


def timing_alpha(study: Study, frames: dict[str, pd.DataFrame]) -> Figure:
    """Figure 5: equation (1) inverted for alpha, a cross-check, beside the counter."""
    table = frames["timing_alpha"].sort_values("gamma")
    figure, ax = plt.subplots(figsize=(4.4, 3.2), layout="constrained")
    for w in study.workloads:
        colour = workload_colour(study, w)
        for p in study.platforms:
            rows = table.query("workload == @w and platform == @p")
            ax.plot(rows["gamma"], rows["alpha_timing"], color=colour, linewidth=1)
            points(ax, rows, "alpha_timing", colour, platform_marker(study, p))
        counter = table.query("workload == @w and platform == @study.calibration.name")
        ax.plot(counter["gamma"], counter["alpha"], "--", color=colour, linewidth=1)
        label_line(ax, w, counter[["gamma", "alpha"]].iloc[-1], colour)
    platform_key(study, ax)
    ax.plot([], [], "-", color=GREY, label="from timing")
    ax.plot([], [], "--", color=GREY, label="engine's counter")
    ax.legend(loc="center left")
    ax.set_xticks([g for g in study.gammas if g])
    ax.set_xlabel("draft length γ")
    ax.set_ylabel("acceptance α")
    return figure


def parity(study: Study, frames: dict[str, pd.DataFrame]) -> Figure:
    """Figure 6: every speculative cell, predicted against measured; held out is hollow."""
    table = frames["predictions"]
    held_out = frames["errors"].query("cells_of == 'held out' and workload == 'all'")
    shown = [(k, name.partition(",")[0]) for k, (_, name) in FORMS.items()]
    figure, axes = plt.subplots(
        1, 3, figsize=(10.2, 3.6), sharex=True, sharey=True, layout="constrained"
    )
    both = table[table["predictor"].isin(FORMS)]
    low = 0.85 * both[["pot_ms", "predicted_ms"]].min().min()
    high = 1.18 * both[["pot_ms", "predicted_ms"]].max().max()
    for ax, (predictor, name) in zip(axes, shown, strict=True):
        ax.plot([low, high], [low, high], "-", color=GREY, linewidth=0.8)
        for w in study.workloads:
            colour = workload_colour(study, w)
            for p in study.platforms.values():
                rows = table.query(
                    "predictor == @predictor and workload == @w and platform == @p.name"
                )
                y = rows["predicted_ms"]
                ax.hlines(y, rows["pot_ms_low"], rows["pot_ms_high"], color=colour, linewidth=0.8)
                style = {"color": colour, "markersize": 5, "markerfacecolor": face(p, colour)}
                ax.plot(rows["pot_ms"], y, platform_marker(study, p.name), **style)
        mean = "".join(
            f": held-out error {e:.1f}% mean"
            for e in held_out.query("predictor == @predictor")["mape_pct"]
        )
        ax.set_title(name + mean)
        ax.set_xlim(low, high)
        ax.set_ylim(low, high)
        ax.set_aspect("equal")
        log_ms(ax, "x")
        log_ms(ax, "y")
        ax.set_xlabel("measured ms per output token")
    axes[0].set_ylabel("predicted ms per output token")
    platform_key(study, axes[0], hollow_heldout=True)
    for i, w in enumerate(study.workloads):
        axes[-1].text(
            0.97,
            0.05 + 0.08 * i,
            w,
            transform=axes[-1].transAxes,
            ha="right",
            color=workload_colour(study, w),
            fontweight="bold",
        )
    return figure


def device_overhead(study: Study, frames: dict[str, pd.DataFrame]) -> Figure:
    """Figure 7: the roofline's d against the device's own, for every batch, gamma and platform."""
    predicted = frames["verify_overhead"].sort_values("gamma")
    figure, each = batch_panels(study, lambda n: f"batch N = {n}")
    for ax, n in each:
        for p in study.platforms.values():
            colour = platform_colour(study, p.name)
            where = "platform == @p.name and batch == @n"
            line = predicted.query(where)
            ax.plot(line["gamma"], line["d"], color=colour, linewidth=1.3)
            traced = frames["device_verify_overhead"].query(where)
            marker = platform_marker(study, p.name)
            points(ax, traced, "d_measured", colour, marker, label=f"{p.label}, traced")
        ax.axhline(0, color=GREY, linewidth=0.8)
    first = figure.axes[0]
    first.plot([], [], "-", color=GREY, label="roofline")
    first.set_ylabel("verify overhead d of the device")
    figure.legend(*first.get_legend_handles_labels(), loc="outside upper center", ncols=3)
    return figure


def dial(study: Study, frames: dict[str, pd.DataFrame]) -> Figure:
    """Figure 8: pot, and the step beneath it, over the acceptance that the dial was set to."""
    table = frames["dial"]
    each = [(p, n) for p in study.platforms.values() for n in study.batches]
    figure, axes = plt.subplots(
        *(2, len(each)),
        figsize=(2.6 * len(each) + 0.6, 5.2),
        sharex=True,
        sharey="row",
        squeeze=False,
        layout="constrained",
    )
    for (p, n), pot, step in zip(each, *axes, strict=True):
        own = table.query("platform == @p.name and batch == @n")
        colour = platform_colour(study, p.name)
        pot.set_title(f"{p.label}, N = {n}")
        step.set_xlabel("acceptance α, counted")
        for name, ax in (("pot_ms", pot), ("step_ms", step)):
            ax.plot([0], own.query("gamma == 0")[name], "k_", markersize=12)
        for gamma in (g for g in study.gammas if g):
            rows = own.query("gamma == @gamma").sort_values("alpha")
            pot.plot(rows["alpha"], rows["predicted_ms"], "-", color=colour, linewidth=1)
            step.vlines(rows["alpha"], rows["step_ms_low"], rows["step_ms_high"], color=colour)
            for pattern, marker in DIAL_MARKERS.items():
                some = rows.query("pattern == @pattern")
                style = {"color": colour, "markerfacecolor": face(p, colour), "markersize": 5}
                pot.plot(some["alpha"], some["pot_ms"], marker, **style)
                step.plot(some["alpha"], some["step_ms"], marker, **style)
            label_line(step, f"γ = {gamma}", rows[["alpha", "step_ms"]].iloc[-1], colour)
    axes[0][0].set_ylabel("ms per output token")
    axes[1][0].set_ylabel("ms per step")
    for ax in axes[:, 0]:
        ax.set_ylim(bottom=0)
    point = {"color": GREY, "linestyle": "none"}
    key = [
        Line2D([], [], marker=DIAL_MARKERS["geometric"], label="refused token by token", **point),
        Line2D([], [], marker=DIAL_MARKERS["whole"], label="whole drafts or none", **point),
        Line2D([], [], color="black", marker="_", linestyle="none", label="nothing proposed"),
        Line2D([], [], color=GREY, label="step-time law"),
    ]
    figure.legend(handles=key, loc="outside upper center", ncols=4)
    return figure


def _setup_lines(study: Study, table: pd.DataFrame) -> Iterator[tuple[str, str, pd.DataFrame]]:
    """Of each setup: what it is called, its colour, its rows."""
    for i, setup in enumerate(study.setups):
        rows = table[(table[SETUP] == pd.Series(setup.values)).all(axis=1)]
        yield setup.name or "all", SETUP_COLOURS[i % len(SETUP_COLOURS)], rows


def _workload_panels(study: Study) -> Iterator[tuple[Axes, str, Platform]]:
    """A row a platform, a column a workload."""
    shape = len(study.platforms), len(study.workloads)
    size = 3.4 * shape[1] + 0.6, 2.9 * shape[0] + 0.4
    _, axes = plt.subplots(
        *shape, figsize=size, sharex=True, sharey=True, squeeze=False, layout="constrained"
    )
    for row, p in zip(axes, study.platforms.values(), strict=True):
        for ax, w in zip(row, study.workloads, strict=True):
            ax.set_title(f"{p.label}, {w}")
            yield ax, w, p


def _named_setups(study: Study, figure: Figure, *more: Line2D) -> None:
    key = [
        Line2D([], [], color=colour, label=name)
        for name, colour, _ in _setup_lines(study, pd.DataFrame(columns=SETUP))
    ]
    figure.legend(handles=[*key, *more], loc="outside upper center", ncols=4, fontsize=8)


def crossover(study: Study, frames: dict[str, pd.DataFrame]) -> Figure:
    """Figure 9: Speedup over batch size at the shortest and the longest draft, with its 95%
    interval; a vertical line is the batch from which on speculation stops paying."""
    drafting = [g for g in study.gammas if g]
    shown = dict(zip(dict.fromkeys((min(drafting), max(drafting))), ("-", "--"), strict=False))
    for ax, w, p in _workload_panels(study):
        ax.axhline(1, color=GREY, linewidth=0.8)
        for (_, colour, rows), (_, _, ends) in zip(
            _setup_lines(study, frames["cells"]),
            _setup_lines(study, frames["crossovers"]),
            strict=True,
        ):
            for gamma, dash in shown.items():
                where = "workload == @w and platform == @p.name and gamma == @gamma"
                own = rows.query(where).sort_values("batch")
                ax.plot(own["batch"], own["speedup"], dash, marker="o", ms=3, color=colour)
                ax.vlines(own["batch"], own["speedup_low"], own["speedup_high"], color=colour, lw=1)
                at = ends.query(where)["crossover_batch"].dropna()
                ax.vlines(at, 0, 1, color=colour, linestyle=dash, linewidth=0.8)
        ax.set_xscale("log", base=2)
        ax.set_xticks(study.batches, study.batches)
        ax.set_ylim(bottom=0)
        ax.set_xlabel("batch N")
    figure = ax.figure
    figure.axes[0].set_ylabel("speedup over γ = 0")
    _named_setups(
        study,
        figure,
        *(Line2D([], [], color=GREY, ls=d, label=f"γ = {g}") for g, d in shown.items()),
    )
    return figure


def positions(study: Study, frames: dict[str, pd.DataFrame]) -> Figure:
    """Figure 10: Share of drafts of which at least so many tokens were accepted, by the engine's
    counters per position, at the longest draft."""
    table = frames["survival"]
    table = table[table["gamma"] == max(study.gammas)]
    for ax, w, p in _workload_panels(study):
        for _, colour, rows in _setup_lines(study, table):
            own = rows.query("workload == @w and platform == @p.name")
            ax.plot(own["position"], own["survival"], "o-", ms=3, color=colour, linewidth=1)
        ax.set_ylim(0, 1.05)
        ax.set_xticks(range(1, max(study.gammas) + 1))
        ax.set_xlabel("position in the draft")
    figure = ax.figure
    figure.axes[0].set_ylabel("share of drafts")
    _named_setups(study, figure)
    return figure


def modes(study: Study, frames: dict[str, pd.DataFrame]) -> Figure:
    """Figure 11: Latency per output token in every mode. What speculation saves shows against the
    lowest of the points at γ = 0, which is grey: the fastest mode without it."""
    n = min(study.batches)
    for ax, w, p in _workload_panels(study):
        where = "workload == @w and platform == @p.name and batch == @n"
        best = frames["best_baselines"].query(where)["best_base_ms"]
        ax.axhline(best.median(), color=GREY, linewidth=0.8)
        for _, colour, rows in _setup_lines(study, frames["cells"]):
            own = rows.query(where).sort_values("gamma")
            ax.plot(own["gamma"], own["pot_ms"], color=colour, linewidth=1)
            points(ax, own, "pot_ms", colour, platform_marker(study, p.name))
        ax.set_xticks(study.gammas)
        ax.set_ylim(bottom=0)
        ax.set_xlabel("draft length γ")
    figure = ax.figure
    figure.axes[0].set_ylabel(f"ms per output token, N = {n}")
    _named_setups(study, figure)
    return figure


def host_share(study: Study, frames: dict[str, pd.DataFrame]) -> Figure:
    """Figure 12: A decode step without speculation in every mode: device time, and what the host
    exposes of itself beside it (hatched), lowest to highest pair."""
    host = {"facecolor": "none", "hatch": HOST_TIME, **OUTLINE}
    figure, axes = panels(len(study.platforms))
    for ax, p in zip(axes, study.platforms.values(), strict=True):
        rows = compared_decode_steps(study, frames["steps"]).query("platform == @p.name")
        rows = rows[rows["model"] == study.model.name].drop_duplicates("mode").reset_index()
        ax.bar(rows.index, rows["device_ms"], 0.6, color=platform_colour(study, p.name), **OUTLINE)
        ax.bar(rows.index, rows["host_ms"], 0.6, bottom=rows["device_ms"], **host)
        ax.vlines(rows.index, rows["step_ms_low"], rows["step_ms_high"], color="black", lw=1.5)
        for i, row in rows.iterrows():
            said = f"{row['host_share_pct']:.0f}%"
            ax.annotate(said, (i, row["step_ms"]), (8, 4), textcoords="offset points", fontsize=8)
        ax.set_xticks(rows.index, rows["mode"])
        ax.set_title(f"{p.label}, N = 1, {study.tracing.context_tokens} tokens")
    axes[0].set_ylabel("ms per decode step")
    axes[0].set_ylim(bottom=0)
    key = [*platform_patches(study, "device"), Patch(label="host-exposed", **host)]
    figure.legend(handles=key, loc="outside upper center", ncols=len(key))
    return figure


FIGURES: dict[str, Callable[[Study, dict[str, pd.DataFrame]], Figure]] = {
    "figure1_speedup": speedup,
    "figure2_equation": equation_fit,
    "figure3_shortfall": shortfall,
    "figure4_decode_step": decode_step,
    "figure5_timing_alpha": timing_alpha,
    "figure6_parity": parity,
    "figure7_device_overhead": device_overhead,
    "figure8_dial": dial,
}


# of all setups together
COMPARED: dict[str, Callable[[Study, dict[str, pd.DataFrame]], Figure]] = {
    "figure9_crossover": crossover,
    "figure10_positions": positions,
    "figure11_modes": modes,
    "figure12_host_share": host_share,
}


def figures_of(study: Study) -> dict[str, Callable[[Study, dict[str, pd.DataFrame]], Figure]]:
    """Those that the study has measurements for."""
    return {k: draw for k, draw in FIGURES.items() if study.dial_cells or draw is not dial}


def compared_figures(
    study: Study,
) -> dict[str, Callable[[Study, dict[str, pd.DataFrame]], Figure]]:
    """Those of all setups together that the study has more than one point for."""
    more = {
        "figure9_crossover": len(study.batches) > 2,
        "figure10_positions": len(study.drafters) > 1,
        "figure11_modes": len(study.modes) > 1,
        "figure12_host_share": len(study.modes) > 1,
    }
    return {k: draw for k, draw in COMPARED.items() if more[k]}


def figure_name(setup: Setup, name: str) -> str:
    """Of a file: a figure of one setup, where there are several."""
    return f"{setup.name}_{name}" if setup.name else name


def every_figure(study: Study) -> dict[str, tuple[Callable[..., Figure], Setup | None]]:
    """By the name of its file, what draws it, and of which setup it is; null: of all together."""
    of_one: dict[str, tuple[Callable[..., Figure], Setup | None]] = {
        figure_name(setup, name): (draw, setup)
        for setup in study.setups
        for name, draw in figures_of(study.at(setup.name)).items()
    }
    return of_one | {name: (draw, None) for name, draw in compared_figures(study).items()}
