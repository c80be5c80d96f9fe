"""An nsys export of 5 million kernels: our aggregation against one bare SUM over it in sqlite3.

PYTHONPATH=tests python benchmarks/traces.py [--kernels 5000000]
"""

import argparse
import resource
import sqlite3
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from pathlib import Path

import nsys_export
from specamort.measure.tracing import nsys


def seconds(call) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def memory_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kernels", type=int, default=5_000_000)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir="/var/tmp") as d:
        per_step = 1000
        shape = {"steps": args.kernels // per_step - 1, "per_step": per_step}
        small = Path(d) / "small.sqlite"
        nsys_export.write(small)
        nsys.read(small)  # loads libraries
        before = memory_mb()
        for order, shuffled in (("in time order", False), ("shuffled", True)):
            path = Path(d) / f"{shuffled}.sqlite"
            with ProcessPoolExecutor(1) as other:  # so that its memory is not ours
                making = other.submit(nsys_export.write, path, shuffled=shuffled, **shape)
                answer = making.result()

            def bare(path=path):
                with closing(sqlite3.connect(path)) as db:
                    db.execute("SELECT SUM(end - start) FROM CUPTI_ACTIVITY_KIND_KERNEL").fetchone()

            def ours(path=path, answer=answer):
                found = nsys.read(path)
                assert round(found.busy_ms * 1e6) == answer.busy_ns

            print(f"{args.kernels} kernels, {order}, {path.stat().st_size / 1e6:.0f} MB on disk")
            for base, own in [(seconds(bare), seconds(ours)) for _ in range(5)]:
                print(f"bare SUM {base:.2f} s, read {own:.2f} s, ratio {own / base:.2f}")
            print(f"+{memory_mb() - before:.0f} MB memory at its peak")
            path.unlink()


if __name__ == "__main__":
    main()
