"""The planner against a real server: predicted from counters at one gamma, measured at each.

PYTHONPATH=tests python benchmarks/planning.py --results RESULTS [--at 4]

RESULTS is `results/local` of a finished `make study` on this machine: the calibration. A server
runs at every gamma in turn, with two kinds of traffic; the counters of the one at `--at` are all
that the planner sees.
"""

import argparse
from pathlib import Path

import pandas as pd

from serve import load, server
from specamort import plan, serving
from specamort.study import read_study
from specamort.tables import read_calibration
from specamort.workloads import prompts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--at", type=int, default=4)
    args = parser.parse_args()
    from transformers import AutoTokenizer

    study = read_study("config/local.yaml")
    model = args.results.parent / "models" / study.model.name
    tokenizer = AutoTokenizer.from_pretrained(model)
    calibration = read_calibration(study, args.results, study.calibration.name, 1)
    tokens, requests = 1 + 14 * 12, 6  # whole steps at gamma 0, 1, 2, 3 and 6
    measured, answers = {}, {}
    for gamma in sorted({*study.gammas, 1, args.at}):
        with server(study, model, gamma, args.results / "server.log") as url:
            for w in study.workloads.values():
                made = prompts(study, tokenizer, study.timing_prompts(w.name))
                asked = [p.token_ids for p in made[: requests + 1]]
                load(url, study.model.name, asked[:1], tokens, w.sampling)
                before = serving.fetch(url)
                measured[w.name, gamma] = load(url, study.model.name, asked[1:], tokens, w.sampling)
                if gamma == args.at:
                    counted = serving.difference(
                        serving.parse(before, url), serving.parse(serving.fetch(url), url)
                    )
                    now = serving.read(counted)
                    answers[w.name] = plan.plan(calibration, now.acceptance, 6, now)
                    print(f"--- {w.name}\n{plan.overview(answers[w.name], now)}\n", flush=True)
    rows = []
    for (workload, gamma), tpot in sorted(measured.items()):
        choice = answers[workload].choices[gamma]
        rows.append(
            {"workload": workload, "gamma": gamma, "measured_ms": tpot}
            | {"predicted_ms": choice.pot_ms, "error_pct": 100 * (choice.pot_ms / tpot - 1)}
            | {"measured_speedup": measured[workload, 0] / tpot}
            | {"predicted_speedup": choice.speedup, "recommended": choice == answers[workload].best}
        )
    print(pd.DataFrame(rows).round(2).to_string(index=False))


if __name__ == "__main__":
    main()
