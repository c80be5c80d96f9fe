"""Frames and records of small worlds whose answers are known."""

import pandas as pd

import synthetic
from specamort.analysis import (
    calibration,
    cells,
    dial,
    law,
    origins,
    predictions,
    repetitions,
)
from specamort.model.law import Law


def reps(rows):
    """A repetition table: (replicate, gamma, pots of timed repetitions)."""
    made = []
    for replicate, gamma, pots in rows:
        for i, pot in enumerate([99.0, *pots]):
            made.append(
                dict(origin="synthetic", platform="p", replicate=replicate, workload="w", batch=1)
                | dict(gamma=gamma, repetition=i, warmup=i == 0, pot_ms=pot, left_out=False)
                | dict(visit="v", when="first" * (gamma == 0), text_sha256="t")
                | dict(engine_steps=11, verify_steps=10, draft_ms=0.0)
                | dict(drafts=5, drafted=10, accepted=4, decode_steps=10, decode_tokens=14)
                | dict(accepted_first=3)
            )
    return pd.DataFrame(made)


def hot():
    return {"before": synthetic.reading(), "after": synthetic.reading(throttle_reasons=0x40)}


def analysed(study, records, benches, dialled=()):
    table = cells.cells(repetitions.repetitions(records), study.seed)
    d = calibration.verify_overhead(study, benches)
    calibrated = calibration.acceptance(study, table)
    host = calibration.host_terms(study, table, calibrated, d)
    points = law.points(study, table, d, dial.cells(dial.repetitions(dialled), 0))
    best, laws = law.law(points)
    everything = predictions.Calibrated(calibrated, host, best, origins.words(points["by"]))
    return calibrated, host, laws, predictions.predictions(study, table, d, everything)


def cells_of(local, h):
    """Cells of the local study that took `h(gamma)` ms a step more than the equation, and d."""
    rows = []
    for p in local.platforms:
        for c in local.cells:
            alpha = 1.0 if c.workload == "repeat" else 0.0
            tau = alpha * c.gamma + 1
            pot = (10.0 * (1 + 0.1 * c.gamma) + (h(c.gamma) if c.gamma else 0)) / tau
            rows.append(
                dict(origin="synthetic", platform=p, workload=c.workload, batch=c.batch)
                | dict(gamma=c.gamma, pot_ms=pot, pot_ms_low=pot, pot_ms_high=pot, t_base_ms=10.0)
                | dict(speedup=10 / pot, drafts=100, drafted=100 * c.gamma, decode_steps=100)
                | dict(accepted=100 * alpha * c.gamma, decode_tokens=100 * tau)
                | dict(accepted_first=100 * alpha, beta=alpha, alpha=alpha, coverage=1.0, tau=tau)
                | dict(verify_share=1.0 * (c.gamma > 0), noise_pct=0.0, draft_ms=0.0)
            )
    d = pd.DataFrame(
        [
            dict(origin="synthetic", platform=p, batch=n, gamma=g, d=0.1 * g, increment_ms=1.0 * g)
            for p in local.platforms
            for n in local.batches
            for g in local.gammas
        ]
    )
    return pd.DataFrame(rows), d


def predicted(local, table, calibrated, d, host):
    """Predictions by a law that nothing calibrated."""
    return predictions.predictions(local, table, d, predictions.Calibrated(calibrated, host, Law()))


def host_case(local, h):
    table, d = cells_of(local, h)
    calibrated = calibration.acceptance(local, table)
    host = calibration.host_terms(local, table, calibrated, d)
    errors = predictions.errors(predicted(local, table, calibrated, d, host))
    held = errors.query("cells_of == 'held out' and workload == 'all'").set_index("predictor")
    return host.set_index("form"), held["mape_pct"]
