"""A stand-in for nsys: refuses any command line that would miss vLLM's workers or their kernels.

`profile` writes what the engine under it would leave, and one report a traced run; `export` writes
a generated SQLite export.
"""

import json
import os
import sys
from pathlib import Path

NEEDED = {
    "--trace=cuda,nvtx",
    "--sample=none",
    "--cpuctxsw=none",
    "--trace-fork-before-exec=true",
    "--cuda-graph-trace=node",
    "--capture-range=cudaProfilerApi",
    "--capture-range-end=repeat",
    "--force-overwrite=true",
}


def refuse(why: str):
    print(f"stub nsys: {why}", file=sys.stderr)
    sys.exit(2)


def profile(arguments: list[str]) -> None:
    import synthetic

    split = next(i for i, a in enumerate(arguments) if not a.startswith("-"))
    options, program = arguments[:split], arguments[split:]
    given = {o for o in options if not o.startswith("--output=")}
    if given != NEEDED:
        refuse(f"options differ: {sorted(given ^ NEEDED)}")
    (output,) = (o.removeprefix("--output=") for o in options if o.startswith("--output="))
    if program[1:4] != ["-m", "specamort", "trace-engine"]:
        refuse(f"traces {program[:4]}")
    flags = dict(zip(program[4::2], program[5::2], strict=True))
    if Path(flags["--output"]) != Path(output).parent or not os.access(program[0], os.X_OK):
        refuse("program and reports do not belong together")
    cells = [v for k, v in zip(program[4::2], program[5::2], strict=True) if k == "--cell"]
    lengths, pairs = json.loads(os.environ["STUB_STEPS"]), int(os.environ["STUB_PAIRS"])
    runs, n = {}, 0
    for cell in cells:
        runs[cell] = []
        for _ in range(pairs):
            pair = {"untraced": [], "traced": []}
            for steps in lengths:
                wall = {"decode_steps": steps, "wall_ms": steps * 5.0}
                pair["untraced"].append(wall | {"trace": None})
                pair["traced"].append(wall | {"trace": n})
                n += 1
                rows = int(cell.split("-n")[-1].split("-g")[0]) * (int(cell.split("-g")[-1]) + 1)
                report = {"steps": steps, "rows": rows, "seed": n}
                Path(f"{output}.{n}.nsys-rep").write_text(json.dumps(report))
            runs[cell].append(pair)
    states = {cell: {"before": None, "after": None} for cell in runs}
    used = synthetic.ENGINE | {"device_states": states}
    Path(flags["--output"], "runs.json").write_text(json.dumps([runs, used]))


def export(arguments: list[str]) -> None:
    import nsys_export

    *options, report = arguments
    (target,) = (o.removeprefix("--output=") for o in options if o.startswith("--output="))
    if {"--type=sqlite", "--force-overwrite=true"} != set(options) - {f"--output={target}"}:
        refuse(f"export options {options}")
    Path(target).unlink(missing_ok=True)
    nsys_export.write(Path(target), **json.loads(Path(report).read_text()))


def version(arguments: list[str]) -> None:
    print("NVIDIA Nsight Systems version 2024.5.1.113-245134619542v0")


if __name__ == "__main__":
    {"profile": profile, "export": export, "--version": version}[sys.argv[1]](sys.argv[2:])
