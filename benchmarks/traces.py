"""An nsys export of 5 million kernels: our aggregation against one bare SUM over it in sqlite3.

PYTHONPATH=tests python benchmarks/traces.py [--kernels 5000000]
"""

import argparse
import resource
import sqlite3
import tempfile
import time
from pathlib import Path

import nsys_export
from specamort import nsys, nsys_scan


def seconds(call) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kernels", type=int, default=5_000_000)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir="/var/tmp") as d:
        path = Path(d) / "it.sqlite"
        per_step = 1000
        nsys_export.write(path, steps=args.kernels // per_step - 1, per_step=per_step)

        def bare():
            with sqlite3.connect(path) as db:
                db.execute("SELECT SUM(end - start) FROM CUPTI_ACTIVITY_KIND_KERNEL").fetchone()

        def in_sql():
            with sqlite3.connect(path) as db:
                tables = {"CUPTI_ACTIVITY_KIND_KERNEL": "shortName"}
                nsys._in_sql(db, tables | {"CUPTI_ACTIVITY_KIND_MEMCPY": "0"})

        nsys_scan._compiled()
        nsys.read(path)  # compiles the loop
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        rounds = [(seconds(bare), seconds(lambda: nsys.read(path))) for _ in range(5)]
        after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for base, ours in rounds:
            print(f"bare SUM {base:.2f} s, read {ours:.2f} s, ratio {ours / base:.2f}")
        print(
            f"{path.stat().st_size / 1e6:.0f} MB on disk, +{(after - before) / 1024:.0f} MB memory"
        )
        print(f"by sorting, in SQL: {seconds(in_sql):.1f} s")


if __name__ == "__main__":
    main()
