"""Tables and figures to one self-contained HTML page."""

import base64
from pathlib import Path

import pandas as pd
from jinja2 import Environment, PackageLoader, StrictUndefined

from .figures import FIGURES
from .record import write_text
from .study import Study
from .tables import NAMES, read_table


def write_report(study: Study, results: Path) -> None:
    t = {n: read_table(results, n) for n in NAMES}
    environment = Environment(
        loader=PackageLoader("specamort"), autoescape=True, undefined=StrictUndefined
    )
    environment.filters["show"] = _show
    environment.tests["numbers"] = pd.api.types.is_numeric_dtype
    shown = ["platform", "workload", "batch", "gamma"]
    shown += [f"{v}{s}" for v in ("pot_ms", "speedup") for s in ("", "_low", "_high")]
    shown += ["alpha", "coverage", "tau", "timed", "origin"]
    page = environment.get_template("report.html").render(
        study=study,
        answer=answer(study, t),
        pictures={
            n: base64.b64encode((results / "figures" / f"{n}.svg").read_bytes()).decode()
            for n in FIGURES
        },
        synthetic=(t["cells"]["origin"] == "synthetic").any(),
        missed=t["acceptance"].query("not in_band").to_dict("records"),
        left_out=t["cells"].query("blocks_left_out > 0").to_dict("records"),
        disagree=t["counter_agreement"].query("not agree").to_dict("records"),
        errors=errors_by_predictor(t["errors"]),
        acceptance=t["acceptance"].drop(columns=["decode_tokens", "accepted_first"]),
        agreement=t["counter_agreement"],
        cost=t["reading_cost"].iloc[0],
        overheads=t["overheads"]
        .pivot(index=["platform", "batch"], columns="gamma", values="d")
        .rename(columns=lambda g: f"d at γ = {g}")
        .reset_index(),
        cells=t["cells"][shown],
        claims=t["claims"],
        provenance=t["provenance"],
        divergence=divergence(t["divergence"]),
        benches=", ".join(sorted(t["overheads"]["microbenchmark"].unique())),
    )
    write_text(results / "report.html", page)


def answer(study: Study, t: dict[str, pd.DataFrame]) -> str:
    """The study's question answered in its own numbers."""
    top, n = max(study.gammas), min(study.batches)
    said = []
    for w in study.workloads:
        cell = t["cells"].query(
            "workload == @w and batch == @n and gamma == @top "
            "and platform == @study.calibration.name"
        )
        alpha = t["acceptance"].query("workload == @w and gamma == @top")["alpha"].fillna(0)
        row = cell.iloc[0]
        said.append(
            f"on {w}, where the engine accepts {100 * alpha.iloc[0]:.0f}% of the drafts, a token "
            f"costs {row['pot_ms']:.1f} ms instead of {row['t_base_ms']:.1f} "
            f"({row['speedup']:.2f}x, 95% interval {row['speedup_low']:.2f} to "
            f"{row['speedup_high']:.2f})"
        )
    sentence = f"With γ = {top} at batch {n} on {study.calibration.label}, " + "; ".join(said) + "."
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


def errors_by_predictor(table: pd.DataFrame) -> pd.DataFrame:
    """One row a predictor: mean error per workload, then the largest and the signed mean of all."""
    rows = ["cells_of", "predictor"]
    means = table.pivot(index=rows, columns="workload", values="mape_pct").add_prefix("mean % ")
    whole = table[table["workload"] == "all"].set_index(rows)[["max_pct", "signed_pct", "cells"]]
    whole.columns = ["max %", "signed %", "cells"]
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
