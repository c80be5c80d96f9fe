"""Analysis and figures of synthetic studies of growing size: seconds, and whether it is linear.

PYTHONPATH=tests python benchmarks/analysis.py [--records 2500 5000 10000]
"""

import argparse
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import synthetic
from specamort.analysis.tables import write_tables
from specamort.report.figures import draw_all
from specamort.study.study_file import read_study


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, nargs="+", default=[2500, 5000, 10000])
    args = parser.parse_args()
    small = read_study("config/local.yaml")
    print("synthetic records, 10 timed repetitions each")
    for wanted in args.records:
        per_replicate = len(small.platforms) * len(small.cells)
        study = replace(small, replicates=-(-wanted // per_replicate), repetitions=10)
        with tempfile.TemporaryDirectory() as d:
            synthetic.write_study(study, Path(d), noise=0.02)
            begin = time.perf_counter()
            write_tables(study, Path(d))
            tables = time.perf_counter() - begin
            draw_all(study, Path(d))
            total = time.perf_counter() - begin
        records = study.replicates * per_replicate
        print(
            f"{records} records: tables {tables:.1f} s, figures {total - tables:.1f} s, "
            f"{1e3 * total / records:.2f} ms a record",
            flush=True,
        )


if __name__ == "__main__":
    main()
