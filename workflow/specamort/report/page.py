"""Tables and figures to one self-contained HTML page."""

import base64
from pathlib import Path

import pandas as pd
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from ..analysis.decomposition import compared_decode_steps
from ..analysis.origins import not_measured
from ..analysis.setups import of_setup
from ..analysis.shortfall import LOSSES
from ..analysis.tables import NAMES
from ..errors import SpecamortError
from ..files import write_text
from ..model.kernels import FAMILIES
from ..study.grid import Study
from .figures import (
    FOREIGN,
    compared_figures,
    drawn_from,
    every_figure,
    figure_name,
    figures_of,
    read_tables,
)


def write_report(study: Study, results: Path) -> None:
    """
    Raises:
        SpecamortError: a table or a figure is not there, or cut.
    """
    t = read_tables(results, NAMES)
    pictures = {n: _picture(results / "figures" / f"{n}.svg") for n in every_figure(study)}
    with drawn_from(results):
        page = _page(study, t, pictures)
    write_text(results / "report.html", page)


def _picture(path: Path) -> str:
    try:
        return base64.b64encode(path.read_bytes()).decode()
    except OSError as e:
        raise SpecamortError(
            f"{path}: cannot be read ({e.strerror}); draw it with `specamort figures`"
        ) from e


def _page(study: Study, t: dict[str, pd.DataFrame], pictures: dict[str, str]) -> str:
    environment = Environment(
        loader=PackageLoader("specamort.report"), autoescape=True, undefined=StrictUndefined
    )
    environment.filters["show"] = _show
    environment.tests["numbers"] = pd.api.types.is_numeric_dtype
    parts = []
    for setup in study.setups:
        one, own = study.at(setup.name), {n: of_setup(frame, setup) for n, frame in t.items()}
        drawn = {n: pictures[figure_name(setup, n)] for n in figures_of(one)}
        html = environment.get_template("setup.html").render(_setup(one, own, drawn))
        title = ", ".join(f"{k} {v}" for k, v in setup.values.items() if k in study.varied)
        parts.append({"title": title, "answer": answer(one, own), "html": Markup(html)})
    return environment.get_template("report.html").render(
        study=study,
        banners=banners(t),
        parts=parts,
        compared=[
            {"svg": pictures[n], "number": int(n.split("_")[0].removeprefix("figure"))}
            | {"caption": draw.__doc__.partition(": ")[2]}
            for n, draw in compared_figures(study).items()
        ],
        best_baselines=t["best_baselines"].drop(columns="origin"),
        crossovers=t["crossovers"].drop(columns="origin"),
        categories=t["categories"].drop(columns="origin"),
    )


def _setup(study: Study, t: dict[str, pd.DataFrame], pictures: dict[str, str]) -> dict[str, object]:
    """What the template of one setup shows."""
    shown = ["platform", "workload", "batch", "gamma"]
    shown += [f"{v}{s}" for v in ("pot_ms", "speedup") for s in ("", "_low", "_high")]
    shown += ["alpha", "coverage", "tau", "timed", "origin"]
    return dict(
        study=study,
        answer=answer(study, t),
        pictures=pictures,
        missed=t["acceptance"].query("not in_band").to_dict("records"),
        disturbed=disturbed(t),
        left_out=t["cells"].query("blocks_left_out > 0").to_dict("records"),
        disagree=t["counter_agreement"].query("agree == False").to_dict("records"),
        errors=errors_by_predictor(t["errors"]),
        acceptance=t["acceptance"].drop(columns=["decode_tokens", "accepted_first"]),
        agreement=t["counter_agreement"],
        cost=t["reading_cost"].iloc[0],
        verify_overhead=t["verify_overhead"]
        .pivot(index=["origin", "platform", "batch"], columns="gamma", values="d")
        .rename(columns=lambda g: f"d at γ = {g}")
        .reset_index(),
        cells=t["cells"][shown],
        steps=traced_steps(t["steps"]),
        step_answer=step_answer(study, t["steps"]),
        residuals=t["residuals"].drop(columns=["t_base_ms", "d", "coverage", "tau"]),
        shortfall=t["shortfall"].drop(columns=["tau", "coverage", "d", *LOSSES]),
        host_terms=t["host_terms"],
        host_answer=host_answer(study, t),
        law_answer=law_answer(study, t),
        law=t["law"].drop(columns=["origin", "calibrated_on", "by", "points"]).head(5),
        advantages=t["advantages"].drop(columns=["origin", "calibrated_on", "cells"]),
        dial_answer=dial_answer(t),
        dial_slopes=t["dial_slopes"],
        machinery=t["machinery"],
        device_verify_overhead=t["device_verify_overhead"],
        device_answer=device_answer(t["device_verify_overhead"]),
        vendor=t["vendor_verify_overhead"].drop(columns="source"),
        claims=t["claims"],
        provenance=t["provenance"],
        divergence=divergence(t["divergence"]),
        benches=", ".join(sorted(t["verify_overhead"]["microbenchmark"].unique())),
    )


BANNERS = {
    "synthetic": "Every number on this page is synthetic: made by a generator, not measured.",
    "rehearsal": "This is a rehearsal: stand-ins measured it; no number on this page is a result "
    "of the study.",
}


def banners(t: dict[str, pd.DataFrame]) -> list[str]:
    """What the page must say first about numbers that are not the study's."""
    ours = (frame for name, frame in t.items() if name not in FOREIGN)
    return [BANNERS[origin] for origin in not_measured(ours).split()]


def disturbed(t: dict[str, pd.DataFrame]) -> list[str]:
    """One sentence per record, other than timed cells, whose device was throttled or shared."""
    what = {
        "steps": "the traces of {model} on {platform}, N = {batch}, γ = {gamma}, "
        "{context_tokens} tokens",
        "verify_overhead": "the microbenchmark of {platform}",
        "counter_agreement": "the counter run of {workload} on {platform}, N = {batch}, "
        "γ = {gamma}",
        "reading_cost": "the runs for the cost of reading counters on {platform}",
    }
    return list(
        dict.fromkeys(
            f"The device was {row['exclusions'].replace(' ', ' and ')} during {text.format(**row)}."
            for name, text in what.items()
            for row in t[name].dropna(subset="exclusions").to_dict("records")
        )
    )


def answer(study: Study, t: dict[str, pd.DataFrame]) -> str:
    """The study's question answered in its own numbers."""
    top, n = max(study.gammas), min(study.batches)
    sentences = []
    for w in study.workloads:
        cell = t["cells"].query(
            "workload == @w and batch == @n and gamma == @top "
            "and platform == @study.calibration.name"
        )
        alpha = t["acceptance"].query("workload == @w and gamma == @top")["alpha"].fillna(0)
        row = cell.iloc[0]
        sentences.append(
            f"on {w}, where the engine accepts {100 * alpha.iloc[0]:.0f}% of the drafts, a token "
            f"costs {row['pot_ms']:.1f} ms instead of {row['t_base_ms']:.1f} "
            f"({row['speedup']:.2f}x, 95% interval {row['speedup_low']:.2f} to "
            f"{row['speedup_high']:.2f})"
        )
    sentence = (
        f"With γ = {top} at batch {n} on {study.calibration.label}, " + "; ".join(sentences) + "."
    )
    held = t["errors"].query(
        "cells_of == 'held out' and workload == 'all' "
        "and predictor in ('equation', 'exact_divisor', 'acceptance_blind')"
    )
    if held.empty:
        return sentence
    error = held.set_index("predictor")["mape_pct"]
    return (
        f"{sentence} On the held-out {', '.join(p.label for p in study.heldout)} the equation is "
        f"off by {error['equation']:.0f}% on average ({error['exact_divisor']:.0f}% with the exact "
        f"divisor); counting forward passes is off by {error['acceptance_blind']:.0f}%."
    )


def traced_steps(table: pd.DataFrame) -> pd.DataFrame:
    """Every traced step, with the times that its figure shows."""
    ranges = [f"{n}{s}" for n in ("device_ms", "host_ms") for s in ("", "_low", "_high")]
    kept = ["origin", "platform", "model", "weights", "tracer", "context_tokens", "batch", "gamma"]
    kept += [
        "pairs",
        "step_ms",
        *ranges,
        "host_share_pct",
        "device_sum_ms",
        "traced_step_ms",
        "tracer_cost_pct",
    ]
    families = [c for c in table if c.split("_")[0] in (*FAMILIES, "other")]
    return table[[*kept, *families, "exclusions"]]


def step_answer(study: Study, table: pd.DataFrame) -> str:
    """How much of a decode step the host exposes, and whether model size changes it."""
    sentences = []
    for p in study.platforms.values():
        rows = compared_decode_steps(study, table).query("platform == @p.name")
        each = [
            f"{r.step_ms:.1f} ms of {r.model}{' (random weights)' * (r.weights == 'random')} are "
            f"{r.device_ms:.1f} device and {r.host_ms:.1f} host-exposed "
            f"({r.host_share_pct:.0f}%; the tracer's {r.tracer_cost_pct:+.0f}% on a "
            "step left out)"
            for r in rows.itertuples()
        ]
        ratio = rows["host_ms"].max() / rows["host_ms"].min()
        device = rows["device_ms"].max() / rows["device_ms"].min()
        sentences.append(
            f"On {p.label}, {'; '.join(each)}."
            + f" Between the models the device differs {device:.1f}x, the host {ratio:.1f}x."
            * (len(rows) > 1)
        )
    return " ".join(sentences)


def host_answer(study: Study, t: dict[str, pd.DataFrame]) -> str:
    """What the host term does to the held-out error."""
    held = t["errors"].query("cells_of == 'held out' and workload == 'all'")
    if held.empty:
        return ""
    error = held.set_index("predictor")["mape_pct"]
    equation, exact = (
        f"from {error[form]:.1f}% to {error[f'{form}_host']:.1f}%"
        for form in ("equation", "exact_divisor")
    )
    return (
        f"With h, calibrated on {study.calibration.label} alone, the held-out error of equation "
        f"(1) goes {equation}, that of the exact divisor {exact}."
    )


def law_answer(study: Study, t: dict[str, pd.DataFrame]) -> str:
    """The law in its numbers, and how far off it is beside the noise and the plain ratio."""
    row = t["law"].query("chosen").iloc[0]
    terms = {"step": "a step", "verify": "a verify step", "gamma": "γ", "token": "drafted token"}
    h = " + ".join(
        f"{row[f'h_{k}_ms']:.2f} ms per {name}"
        for k, name in terms.items()
        if not pd.isna(row[f"h_{k}_ms"])
    )
    sentence = (
        f"Calibrated by {'the dial' if row['by'] == 'dial' else 'its own cells'} on "
        f"{study.calibration.label}: κ = {row['kappa']:.2f}"
        f"{'' if row['kappa_fitted'] else ' (taken, not fitted)'}, h = {h or '0'}; points left out "
        f"were off by {row['left_out_pct']:.1f}%."
    )
    held = t["errors"].query("cells_of == 'held out' and workload == 'all'")
    if held.empty:
        return sentence
    error = held.set_index("predictor")
    mine, ratio = error.loc["law"], error.loc["ratio_transfer"]
    rivals = t["advantages"].query("predictor == 'ratio_transfer'")
    gap = rivals.iloc[0]
    decided = "decided" if gap["decided"] else "not decided"
    return (
        f"{sentence} On the held-out cells it is off by {mine['mape_pct']:.1f}% on average and "
        f"{mine['max_pct']:.1f}% at most, where their noise floor is {mine['noise_pct']:.1f}%; "
        f"ratio transfer by {ratio['mape_pct']:.1f}%. The difference of "
        f"{gap['advantage_pct']:.1f} points has the interval {gap['advantage_pct_low']:.1f} to "
        f"{gap['advantage_pct_high']:.1f}: which is better is {decided}."
    )


def dial_answer(t: dict[str, pd.DataFrame]) -> str:
    """What the dial says of the law's first claim, and of the law."""
    cells, slopes = t["dial"], t["dial_slopes"]
    if cells.empty:
        return ""
    flat = slopes.eval("slope_pct_low <= 0 <= slope_pct_high")
    known = slopes["slope_pct_low"].notna()
    off = cells[cells["held_out"]]["error_pct"].abs()
    held = f" The law is off by {off.mean():.1f}% on the held-out ones." if len(off) else ""
    return (
        f"Between no and full acceptance a step changes by {slopes['slope_pct'].median():+.1f}% in "
        f"the median; in {(flat & known).sum()} of {known.sum()} cases the interval holds none."
        f"{held}"
    )


def device_answer(table: pd.DataFrame) -> str:
    """Where the roofline is furthest from the device, and how far it is at each batch."""
    off = table["step_error_pct"].abs()
    if off.isna().all():
        return "no verify step was traced."
    worst = table.loc[off.idxmax()]
    by_batch = off.groupby(table["batch"]).mean()
    means = ", ".join(f"{error:.0f}% at N = {n}" for n, error in by_batch.items())
    return (
        f"It is furthest off on {worst['platform']} at N = {worst['batch']}, γ = {worst['gamma']}: "
        f"d is {worst['d_predicted']:.2f} predicted and {worst['d_measured']:.2f} traced, which is "
        f"{worst['step_error_pct']:+.0f}% of a verify step; on average {means}."
    )


def errors_by_predictor(table: pd.DataFrame) -> pd.DataFrame:
    """One row a predictor: mean error per workload, then the largest and the signed mean of all."""
    rows = ["cells_of", "predictor"]
    means = table.pivot(index=rows, columns="workload", values="mape_pct").add_prefix("mean % ")
    whole = table[table["workload"] == "all"].set_index(rows)
    whole = whole[["max_pct", "signed_pct", "cells", "origin"]]
    whole.columns = ["max %", "signed %", "cells", "origin"]
    return means.join(whole).sort_index(ascending=[False, True]).reset_index()


def divergence(table: pd.DataFrame) -> str:
    """Whether drafting changed greedy text, which it must not."""
    if table.empty:
        return "No greedy text was compared between draft lengths."
    differ = table["first_difference"].dropna()
    if differ.empty:
        return f"Greedy text is the same at every γ in all {len(table)} sequences compared."
    return (
        f"Greedy text differs from γ = 0 in {len(differ)} of {len(table)} sequences compared, "
        f"earliest at token {int(differ.min())}, at token {int(differ.median())} in the median: "
        "kernels at other row counts round differently, and a near tie flips."
    )


def _show(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        if value != value:
            return "–"
        return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"
    return str(value)
