"""Runs malformed inputs against specamort's own command line and puts each outcome into a class.

Every case is a child process of its own with limits on time and memory, in a temporary directory
that looks like a checkout. SLURM's tools are stand-ins, the engine's packages cannot be imported,
and nothing beyond 127.0.0.1 can be reached. The cases themselves are in fuzz.py.
"""

import contextlib
import copy
import importlib
import json
import os
import pkgutil
import random
import re
import resource
import shlex
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import xml.dom.minidom
from pathlib import Path

GOOD, BAD = ("clean", "fine"), (
    "vague", "traceback", "nonsense", "ignored", "absurd", "hang", "crash",
)  # fmt: skip
BUDGET_S = 175  # CPU time of everything
ROOT = Path.cwd()
WORK: Path  # a temporary directory that looks like a checkout; set by `main`
WORDS: list[str] = []
SHOW = False  # all that a failing case printed
COUNTS: dict[tuple[str, str], int] = {}
KINDS: set[str] = set()
STUBBED = ("vllm", "torch", "transformers")
NAN, INF = float("nan"), float("inf")

# What Python says of itself. In parentheses, behind a sentence, it may stand.
_PYTHON = re.compile(
    r"\b[A-Z]\w+(Error|Exception)\b|object (has no attribute|is not \w+able)"
    r"|unhashable type|unsupported operand|index out of range|expected str instance|to unpack"
    r"|codec can't|NoneType|division by zero|not supported between|recursion depth|string conversion"
    r"|cannot convert|required positional|could not be broadcast|has no len|not callable"
)
# Where what it has to say begins, at a line's start or behind a progress bar.
_SAID = re.compile(r"(?:^|\]\s*)(specamort[\w -]*: |[\w.]+(?:Error|Exception)\b)", re.MULTILINE)


class Spent(Exception):
    """The budget of CPU time is used up."""


# ------------------------------------------------------------------------------------- one case
def run(
    group, kind, what, call, accept="nonsense", names=(), right=None, never=None,
    wall_s=8, cpu_s=6, gib=6,
):  # fmt: skip
    """Run one case in a child of its own and class the outcome.

    Args:
        call: arguments of the command line, or a function that returns a status.
        accept: `must` for a valid input, `may` where both answers are sound, else the class that
            counts when the input is accepted (`nonsense`, `ignored`, `absurd`).
        names: patterns; the sentence that refuses must match each, else it is `vague`.
        right: called with what was printed when the input is accepted; what is wrong, or None.
        never: what must not be printed, whether the input is accepted or not.
    """
    line = f"{group}: {kind}: {what}"
    if not all(w in line for w in WORDS):
        return
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    if time.process_time() + children.ru_utime + children.ru_stime > BUDGET_S:
        raise Spent
    said, code, sig, hung = in_child(call, wall_s, cpu_s, gib)
    kind_of, why = _class(said, code, sig, hung, accept, names, right)
    if kind_of in GOOD and never and never in said:
        kind_of, why = "nonsense", f"prints {never}"
    COUNTS[group, kind_of] = COUNTS.get((group, kind_of), 0) + 1
    KINDS.add(kind)
    if kind_of in BAD:
        text = f"{line} -> {why}".replace(str(WORK), "…")
        text = re.sub(r"[\x00-\x1f]+", " ", text)
        print(f"{kind_of:9} {text[:230]}", flush=True)
        if SHOW:
            print("    | " + said.strip().replace("\n", "\n    | "))


def _class(said, code, sig, hung, accept, names, right):
    lines = [
        x for x in said.splitlines() if x.strip() and not re.match(r"[^\n]*\d+%\|.*\|.*\]$", x)
    ]
    last = next((x for x in reversed(lines) if _SAID.search(x)), lines[-1] if lines else "")
    at = [m.start(1) for m in _SAID.finditer("\n".join(lines)) if m[1].startswith("specamort")]
    sentence = "\n".join(lines)[at[-1] :].strip() if at else last
    if hung or sig == signal.SIGXCPU:
        return "hang", "gave no answer"
    if sig:
        return "crash", f"signal {sig}"
    if "Traceback (most recent call last)" in said or "nobody foresaw" in said:
        return "traceback", last
    if code:
        if accept == "must":
            return "nonsense", f"valid, but refused: {sentence}"
        outside = re.sub(r"\([^()]*(\([^()]*\)[^()]*)*\)", "", sentence)
        if not re.match(r"specamort[\w -]*: ", sentence):
            return "vague", f"no sentence of specamort's: {last}"
        if "\n" in sentence:
            return "vague", f"more than one line: {sentence}"
        if missing := [n for n in names if not re.search(n, sentence, re.IGNORECASE)]:
            wanted = missing[0].replace("\\", "")
            return "vague", f"does not name {wanted}: {sentence}"
        if found := _PYTHON.search(outside):
            return "vague", f"Python's own words ({found[0]}): {sentence}"
        return "clean", ""
    if right and (wrong := right(said)):
        return "nonsense", f"accepted, but {wrong}"
    if accept in ("must", "may"):
        return "fine", ""
    return accept, f"accepted: {last.strip()[:70]}"


def in_child(call, wall_s, cpu_s, gib):
    """Run `call` in a child with limits: (what it printed, status, signal, whether it hung)."""
    read, write = os.pipe()
    started = time.monotonic()
    sys.stdout.flush()
    pid = os.fork()
    if not pid:
        os.close(read)
        for i in (1, 2):
            os.dup2(write, i)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        # streams of their own: those of the parent remember what kind of file they were on
        sys.stdout = open(1, "w", buffering=1, encoding="utf-8", closefd=False)
        sys.stderr = open(2, "w", 1, "utf-8", "backslashreplace", closefd=False)
        os.setsid()
        for limit, value in (
            (resource.RLIMIT_AS, int(gib * 2**30)),
            (resource.RLIMIT_CPU, cpu_s),
            (resource.RLIMIT_CORE, 0),
        ):
            resource.setrlimit(limit, (value, value + 2 if limit == resource.RLIMIT_CPU else value))
        code = 99
        try:
            code = call() if callable(call) else cli(call)
        except SystemExit as e:
            code = e.code if isinstance(e.code, int) else 1
        except BaseException:
            traceback.print_exc()
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(code or 0)
    os.close(write)
    os.set_blocking(read, False)
    text, status, hung = b"", None, False
    while status is None:
        done, state = os.waitpid(pid, os.WNOHANG)
        text = (text + _drain(read))[-200_000:]
        if done:
            status = state
        elif time.monotonic() - started > wall_s:
            hung = True
            os.kill(pid, signal.SIGKILL)
            _, status = os.waitpid(pid, 0)
        else:
            time.sleep(0.004)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)  # what the case started and left behind
    text += _drain(read)
    os.close(read)
    sig = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
    code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else 0
    return text.decode(errors="replace"), code, sig, hung


def _drain(fd):
    found = b""
    try:
        while chunk := os.read(fd, 65536):
            found += chunk
    except BlockingIOError:
        pass
    return found


def cli(argv):
    from specamort.cli import main

    return main([str(a) for a in argv])


def reader(function):
    """A reader that has no command of its own, under the command line's rule for errors."""

    def call():
        from specamort.errors import SpecamortError

        try:
            print(function())
        except SpecamortError as e:
            print(f"specamort: {e}", file=sys.stderr)
            return 1
        return 0

    return call


def process(argv, cwd=None, **env):
    """A command as a process of its own, with the package and the stubs on its path."""

    def call():
        done = subprocess.run(
            [str(a) for a in argv], cwd=cwd or WORK, env=os.environ | env, check=False
        )
        return done.returncode if done.returncode >= 0 else 128 - done.returncode

    return call


# ----------------------------------------------------------------------------------- the stage
_FAKES = {
    "sinfo": "gpu-h100|gpu:h100:8\ngpu-h200|gpu:h200:8\ncpu-small|(null)",
    "sacctmgr": "gts-test|inferno,embers",
    "sbatch": "Submitted batch job 77",
    **dict.fromkeys(("squeue", "sacct", "srun", "fallocate"), ""),
}


def tool(name, script):
    """Put a stand-in for one of the site's tools on the PATH."""
    path = WORK / "bin" / name
    path.write_bytes(b"#!/bin/sh\n" + (script if isinstance(script, bytes) else script.encode()))
    path.chmod(0o755)


def say(text):
    """A script that prints it."""
    return f"cat <<'END'\n{text}\nEND\n" if text else ""


def reset_tool(name):
    tool(name, say(_FAKES[name]))


def clone(name):
    """A second checkout below the first, with its models and, once made, its records."""
    home = WORK / name
    for part in ("Snakefile", "Makefile", "pyproject.toml", "config", "profiles", "envs",
                 "workflow", "tests", "results"):  # fmt: skip
        source = WORK / part if part in ("config", "results") else ROOT / part
        if source.is_dir():
            shutil.copytree(source, home / part, dirs_exist_ok=True)
        elif source.is_file():
            home.mkdir(exist_ok=True)
            shutil.copy(source, home / part)
    return home


def stage():
    """Make the temporary checkout, the stand-ins and the environment; go there."""
    global WORK
    if not (ROOT / "config/small.yaml").is_file():
        sys.exit("run it from the project's root, where config/ is")
    WORK = Path(tempfile.mkdtemp(prefix="specamort-fuzz-")).resolve()
    shutil.copytree(ROOT / "config", WORK / "config")
    for name in ("Snakefile", "workflow"):
        (WORK / name).symlink_to(ROOT / name)
    (WORK / "bin").mkdir()
    for name in _FAKES:
        reset_tool(name)
    for name in STUBBED:
        (WORK / "stub" / name).mkdir(parents=True)
        (WORK / "stub" / name / "__init__.py").write_text("raise ImportError('not needed here')\n")
    try:
        import specamort
    except ImportError:
        sys.exit("specamort cannot be imported; activate the project's environment")
    package = str(Path(specamort.__file__).resolve().parent.parent)
    print(f"specamort of {os.path.relpath(package, ROOT)}", flush=True)
    sys.path[:0] = [str(WORK / "stub"), package]
    sys.path += [str(ROOT / "tests/support"), str(ROOT / "tests/unit")]
    for name in list(os.environ):
        if name.lower().endswith("_proxy") or name.startswith(("SPECAMORT_", "SLURM_")):
            del os.environ[name]
    known = [str(WORK / "stub"), package, os.environ.get("PYTHONPATH", "")]
    os.environ |= {
        "PYTHONPATH": os.pathsep.join(filter(None, known)),
        "PATH": f"{WORK / 'bin'}:{os.environ['PATH']}",
        "HOME": str(WORK), "USER": "tester", "SPECAMORT_ACCOUNT": "gts-test",
        "MPLBACKEND": "Agg", "no_proxy": "*",
    }  # fmt: skip
    os.chdir(WORK)
    for model in (small()["model"], *small()["tracing"]["models"]):
        home = WORK / "results/models" / model["name"]
        home.mkdir(parents=True)
        (home / "config.json").write_text("{}")
    # what children would otherwise import each for themselves
    modules = [m.name for m in pkgutil.walk_packages(specamort.__path__, "specamort.")]
    libraries = ["matplotlib.figure", "pandas", "prometheus_client.parser", "submitit"]
    for name in [*modules, *libraries]:
        if not name.endswith("__main__"):
            with contextlib.suppress(ImportError):
                importlib.import_module(name)
    _only_this_machine()


def leave():
    os.chdir(ROOT)
    shutil.rmtree(WORK, ignore_errors=True)


def _only_this_machine():
    here = {"127.0.0.1", "localhost", "::1"}
    connect, look_up = socket.socket.connect, socket.getaddrinfo

    def guarded(self, address):
        if self.family in (socket.AF_INET, socket.AF_INET6) and address[0] not in here:
            raise OSError(101, "Network is unreachable")
        return connect(self, address)

    def local(host, *args, **kwargs):
        name = host.decode() if isinstance(host, bytes) else host
        if name not in here:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return look_up(host, *args, **kwargs)

    socket.socket.connect, socket.getaddrinfo = guarded, local


def main(groups):
    """Run the groups of cases; the process's exit status."""
    global SHOW
    SHOW = "-v" in sys.argv
    WORDS[:] = [a for a in sys.argv[1:] if a != "-v"]
    groups = {n: f for n, f in groups.items() if n in WORDS} or groups
    stage()
    broken = []
    try:
        for name, function in groups.items():
            began, before = time.monotonic(), sum(COUNTS.values())
            try:
                function()
            except Spent:
                broken.append(f"{BUDGET_S} CPU-seconds are spent, {name} and what follows is left")
                break
            except Exception as e:
                traceback.print_exc()
                broken.append(f"{name}: this tool itself fails ({type(e).__name__}: {e})")
            number = sum(COUNTS.values()) - before
            if number:
                print(f"          {name}: {number} cases, {time.monotonic() - began:.0f} s")
    finally:
        leave()
    columns = GOOD + BAD
    print(f"\n{'group':9}" + "".join(f"{c:>10}" for c in columns))
    for g in [g for g in groups if any(name == g for name, _ in COUNTS)]:
        print(f"{g:9}" + "".join(f"{COUNTS.get((g, c), 0):10}" for c in columns))
    totals = {c: sum(n for (_, k), n in COUNTS.items() if k == c) for c in columns}
    print(f"{'all':9}" + "".join(f"{totals[c]:10}" for c in columns))
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = time.process_time() + children.ru_utime + children.ru_stime
    wrong = sum(totals[c] for c in BAD)
    print(f"{sum(totals.values())} cases of {len(KINDS)} kinds, {wrong} to mend, {used:.0f} CPU-s")
    for line in broken:
        print(line)
    return 2 if broken or not COUNTS else int(wrong > 0)


# ---------------------------------------------------------------------------------- mutations
NASTY = [
    None, True, -1, 0, 2.0, 1.5, NAN, INF, 10**400, 10**12, "", " ", "\n", "a\nb", "../../x",
    "$(touch x)", "<b>x</b>", "x\0y", "é漢", [], {}, [[]], [None], {"a": 1},
]  # fmt: skip


def _places(value, at=()):
    yield at
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(
        value, list) else ()  # fmt: skip
    for k, v in items:
        yield from _places(v, (*at, k))


def mutate(value, rng):
    """One key deleted, renamed or given another value, at random; and which, in words."""
    value = copy.deepcopy(value)
    at = rng.choice([p for p in _places(value) if p])
    home = value
    for k in at[:-1]:
        home = home[k]
    key, where, how = at[-1], ".".join(map(str, at)), rng.random()
    if how < 0.12:
        del home[key]
        return value, f"{where} deleted"
    if how < 0.2 and isinstance(home, dict):
        new = rng.choice([1, True, "unknown", "a b", "../x"])
        home[new] = home.pop(key)
        return value, f"{where} renamed {new!r}"
    home[key] = new = rng.choice(NASTY)
    return value, f"{where} = {str(new)[:30]!r} ({type(new).__name__})"


def altered(value, at, to):
    """A copy of `value` with the key at the dotted path `at` set to `to`."""
    value = copy.deepcopy(value)
    *path, last = at.split(".")
    home = value
    for k in path:
        home = home[int(k) if isinstance(home, list) else k]
    home[int(last) if isinstance(home, list) else last] = to
    return value


def keys(at):
    return "|".join(re.escape(k) for k in at.split(".") if not k.isdigit())


def work(name=""):
    return WORK / name


def put(name, content):
    path = WORK / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def dump(value):
    import yaml

    return yaml.safe_dump(value, sort_keys=False, allow_unicode=True)


def load(path):
    import yaml

    return yaml.safe_load((ROOT / path).read_text(encoding="utf-8"))


def small():
    return load("config/small.yaml")


def small_text():
    return (ROOT / "config/small.yaml").read_text(encoding="utf-8")


# ------------------------------------------------------------------------------- study files
def study_texts(kind, cases, accept="nonsense"):
    for what, content in cases.items():
        argv = ["check", "--study", put("study.yaml", content)]
        run("study", kind, what, argv, accept, [r"study\.yaml"])


def study_fields(kind, cases, accept="nonsense"):
    for at, to in cases:
        argv = ["check", "--study", put("study.yaml", dump(altered(small(), at, to)))]
        run("study", kind, f"{at} = {str(to)[:60]!r}", argv, accept, [r"study\.yaml", keys(at)])


def study_paths(cases):
    for path in cases:
        names = [re.escape(path[:20])]
        run("study", "odd names", f"--study {path[:20]!r}", ["check", "--study", path], names=names)


def study_random(seed, number):
    rng = random.Random(seed)
    for _ in range(number):
        value, what = mutate(small(), rng)
        try:
            content = dump(value)
        except Exception:
            continue
        argv = ["check", "--study", put("study.yaml", content)]
        run("study", "random mutations", what, argv, "may", [r"study\.yaml"])


def study_labels(cases):
    """A label that `check` takes must be one that the figures and the report can show."""
    records_once()
    for label in cases:
        value = altered(small(), "platforms.cpu-bf16.label", label)

        def call(value=value):
            home = clone("labels")
            put("labels/study.yaml", dump(value))
            os.chdir(home)
            if code := cli(["check", "--study", "study.yaml"]):
                return code
            for command in ("analyse", "figures", "report"):
                if cli([command, "--study", "study.yaml"]):
                    print("REFUSED LATE")
                    return 0
            for figure in home.glob("results/small/figures/*.svg"):
                try:
                    xml.dom.minidom.parse(str(figure))
                except Exception:
                    print("NOT XML")
            return 0

        def right(said):
            late = "refused only after the measurements" if "REFUSED LATE" in said else None
            return late or ("an SVG of it is not XML" if "NOT XML" in said else None)

        run("study", "odd names", f"label {label!r}", call, "may", [r"study\.yaml", "label"],
            right, wall_s=40, cpu_s=30)  # fmt: skip
        shutil.rmtree(WORK / "labels", ignore_errors=True)


# ----------------------------------------------------------------------------- cluster files
LAUNCH = ["launch", "--study", "config/small.yaml", "--cluster", "cluster.yaml"]


def cluster():
    return load("tests/cluster/cluster.yaml")


def cluster_texts(kind, cases, accept="nonsense"):
    for what, content in cases.items():
        put("cluster.yaml", content)
        run("cluster", kind, what, LAUNCH, accept, [r"cluster\.yaml"])


def cluster_fields(kind, cases, accept="nonsense"):
    for at, to in cases:
        put("cluster.yaml", dump(altered(cluster(), at, to)))
        what = f"{at.removeprefix('platforms.cpu-bf16.')} = {to!r}"
        run("cluster", kind, what, LAUNCH, accept, [r"cluster\.yaml", keys(at)])


def cluster_random(seed, number):
    rng = random.Random(seed)
    for _ in range(number):
        value, what = mutate(cluster(), rng)
        put("cluster.yaml", dump(value))
        run("cluster", "random mutations", what, LAUNCH, "may", [r"cluster\.yaml"])


def user_files(cases, accept="nonsense"):
    """~/.config/specamort.yaml"""
    put("cluster.yaml", dump(cluster()))
    for content in cases:
        mine = put(".config/specamort.yaml", content)

        def call():
            del os.environ["SPECAMORT_ACCOUNT"]
            return cli(LAUNCH)

        run(
            "cluster", "user's file", repr(content)[:60], call, accept, [r"specamort\.yaml|account"]
        )
        mine.unlink()


def site_says(name, cases, argv, accept="nonsense", **more):
    """One of SLURM's tools answers in an unforeseen way."""
    put("cluster.yaml", dump(cluster()))
    for what, script in cases.items():
        tool(name, script)
        names = [f"{name}|SLURM|partition|account|cluster"]
        run("cluster", "SLURM's tools", f"{argv[0]}: {name} {what}", argv, accept, names, **more)
    reset_tool(name)


STATUS = ["status", "--study", "config/small.yaml"]
PLAN = ["plan", "--study", "config/small.yaml"]


# ----------------------------------------------------------------------------------- records
FILES = {
    "timing": "timing/cpu-bf16/r0/open-n1-g2.json",
    "base": "timing/cpu-bf16/r0/open-n1-g0.json",
    "bench": "microbenchmark/cpu-bf16/kernels.json",
    "counter": "counter_run/cpu-bf16/open-n1-g2.json",
    "on": "reading_cost/cpu-bf16/on.json",
}
ANALYSE = ["analyse", "--study", "config/small.yaml"]


def raw():
    return WORK / "results/small/raw"


def file(name):
    if name == "trace":
        return min(p for p in (raw() / "trace/cpu-bf16").glob("smollm2*-g0.json"))
    return raw() / FILES[name]


def records_once():
    """A whole study's records, made by the project's own tests/synthetic.py, and its tables."""
    if raw().exists():
        return
    import synthetic
    from specamort.study.study_file import read_study

    study = read_study("config/small.yaml")
    synthetic.write_study(study, study.results)
    if cli(ANALYSE):
        raise RuntimeError("sound records are refused")


def with_content(path, content, kind, what, argv, accept="nonsense", names=None, right=None):
    kept = path.read_bytes()
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    where = str(path.relative_to(WORK / "results/small"))
    if names is None:
        names = [f"{re.escape(path.stem)}|{re.escape(str(Path(where).parent))}"]
    what = f"{where.removeprefix('raw/')}: {what}"
    run("record", kind, what, argv, accept, names, right, wall_s=12, cpu_s=10)
    path.write_bytes(kept)


def record_texts(kind, cases, name="timing", accept="nonsense"):
    for what, content in cases.items():
        with_content(file(name), content, kind, what, ANALYSE, accept)


def record_fields(kind, cases, accept="nonsense"):
    for name, at, to in cases:
        content = json.dumps(altered(json.loads(file(name).read_text()), at, to))
        with_content(file(name), content, kind, f"{at} = {str(to)[:40]}", ANALYSE, accept)


def status_fields(kind, cases, accept="may", counted=False):
    """`status` may leave a malformed record out, but not count it as done (unless `counted`)."""

    def right(said):
        done = re.search(r"(\d+) of (\d+) cells done", said)
        return "counted as done" if done and done[1] == done[2] and not counted else None

    for at, to in cases:
        content = json.dumps(altered(json.loads(file("timing").read_text()), at, to))
        with_content(file("timing"), content, kind, f"status: {at} = {to}", STATUS, accept,
                     right=right)  # fmt: skip


def tables(kind, cases):
    for name, content in cases:
        path = WORK / f"results/small/tables/{name}.csv"
        with_content(path, content, kind, f"plan with it = {content[:12]!r}",
                     [*PLAN, "--workload", "open"], names=[f"{name}|tables"])  # fmt: skip


def record_random(seed, number):
    rng = random.Random(seed)
    for _ in range(number):
        path = file(rng.choice([*FILES, "trace"]))
        value, what = mutate(json.loads(path.read_text()), rng)
        with_content(path, json.dumps(value), "random mutations", what, ANALYSE, "may")


def remains(name, content):
    """What a killed write leaves beside the records is not a record."""
    left = put(f"results/small/raw/timing/cpu-bf16/r0/{name}", content)
    for argv in (["remeasure", "--study", "config/small.yaml"], STATUS):
        run("record", "truncated files", f"{argv[0]} beside {name}", argv, "must")
    left.unlink()


# ------------------------------------------------------------------------------------- traces
MARK = "execute_context_0(0)_generation_1(3)"


def event(**changed):
    """A span of a Kineto trace; `...` takes a key away."""
    one = {"ph": "X", "name": "aten::mm", "ts": 105, "dur": 10, "cat": "cpu_op", "tid": 1, "pid": 3}
    return {k: v for k, v in (one | changed).items() if v is not ...}


def mark(**changed):
    """vLLM's own mark around a decode step of three rows."""
    return event(**{"name": MARK, "ts": 100, "dur": 100, "cat": "user_annotation"} | changed)


def events(*of):
    return json.dumps({"traceEvents": list(of)})


def kineto_texts(kind, cases, name="t.json", accept="nonsense"):
    from specamort.measure.tracing import kineto

    for what, content in cases.items():
        path = put(name, content)
        run("kineto", kind, what, reader(lambda path=path: kineto.read(path)), accept,
            [re.escape(name)])  # fmt: skip


KERNEL = "CUPTI_ACTIVITY_KIND_KERNEL"
_EXPORT: dict = {}


def export():
    """An nsys export by hand: a prefill and four decode steps of 700 kernels and a copy each."""
    if _EXPORT:
        return _EXPORT["bytes"]
    path = WORK / "sound.sqlite"
    db = sqlite3.connect(path)
    db.execute("CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL)")
    names = ["sm90_xmma_gemm_bf16", "flash_fwd_kernel", "rms_norm_kernel", "argmax_kernel"]
    db.executemany("INSERT INTO StringIds VALUES (?, ?)", list(enumerate(names, 1000)))
    db.execute(f"CREATE TABLE {KERNEL} (start INTEGER, end INTEGER, deviceId INTEGER, "
               "globalPid INTEGER, demangledName INTEGER, shortName INTEGER)")  # fmt: skip
    db.execute("CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start INTEGER, end INTEGER, "
               "deviceId INTEGER, bytes INTEGER, copyKind INTEGER)")  # fmt: skip
    db.execute("CREATE TABLE NVTX_EVENTS (start INTEGER, end INTEGER, eventType INTEGER, "
               "text TEXT, textId INTEGER)")  # fmt: skip
    rng, clock = random.Random(0), 10**15
    for step in range(5):
        begin = clock
        for _ in range(700):
            start = clock + rng.randrange(900)
            clock, name = start + rng.randrange(1000, 9000), 1000 + rng.randrange(4)
            row = (start, clock, 0, 2**48 + 7, name, name)
            db.execute(f"INSERT INTO {KERNEL} VALUES (?, ?, ?, ?, ?, ?)", row)
        row = (clock, clock + 500)
        db.execute("INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES (?, ?, 0, 64, 2)", row)
        phase = "0(0)_generation_1(1)" if step else "1(256)_generation_0(0)"
        row = (begin, clock, f"execute_context_{phase}")
        db.execute("INSERT INTO NVTX_EVENTS VALUES (?, ?, 59, ?, NULL)", row)
        clock += 500
    db.commit()
    db.close()
    from specamort.measure.tracing import nsys

    _EXPORT["bytes"] = path.read_bytes()
    _EXPORT["trace"] = nsys.read(path)  # and compiles what it compiles, before any child
    return _EXPORT["bytes"]


def nsys_case(kind, what, content, accept="nonsense", judge=None, name="it.sqlite"):
    from specamort.measure.tracing import nsys

    path = put(name, content)

    def call():
        found = nsys.read(path)
        wrong = judge and judge(_EXPORT["trace"], found)
        return f"{found}\nJUDGED {wrong}" if wrong else found

    def right(said):
        return said.split("JUDGED ")[1].strip() if "JUDGED " in said else None

    run("nsys", kind, what, reader(call), accept, [re.escape(Path(name).name)], right, cpu_s=5)


def same(sound, found):
    """The answer of the sound export, or none."""
    return None if found == sound else f"{found.events} events, not {sound.events}, or other sums"


def same_sums(sound, found):
    """A kernel whose name is not known is still not a copy, and none is lost."""
    if found.events != sound.events or abs(found.sum_ms - sound.sum_ms) > 1e-6:
        return "a kernel is lost"
    grown = found.family_ms.get("copy", 0) - sound.family_ms.get("copy", 0)
    return "a kernel is counted as a copy" if abs(grown) > 1e-9 else None


def nsys_sql(kind, cases, accept="nonsense", judge=None):
    for what, statements in cases.items():
        path = put("made.sqlite", export())
        db = sqlite3.connect(path)
        for s in statements:
            db.execute(s)
        db.commit()
        db.close()
        nsys_case(kind, what, path.read_bytes(), accept, judge)


def nsys_zeroed(shares, size=4096):
    whole = export()
    for share in shares:
        at = int(len(whole) * share) // 4096 * 4096
        content = whole[:at] + bytes(size) + whole[at + size :]
        nsys_case("zeroed files", f"{size} bytes of zeros at {share:.0%}", content, "may", same)


def column_gone(column):
    left = [c for c in ("start", "end", "deviceId", "shortName") if c != column]
    return [f"CREATE TABLE t AS SELECT {', '.join(left)} FROM {KERNEL}", f"DROP TABLE {KERNEL}",
            f"ALTER TABLE t RENAME TO {KERNEL}"]  # fmt: skip


# ------------------------------------------------------------------------------------ metrics
def scrape(drafts=100, survivals=(80, 40), generated=400, requests=10, tpot=0.02):
    """A vLLM server's /metrics."""
    where = 'engine="0",model_name="m"'
    accepted = sum(survivals)
    spec, lines = "vllm:spec_decode_num", []
    for name, value in {
        f"{spec}_drafts": drafts, f"{spec}_draft_tokens": drafts * len(survivals),
        f"{spec}_accepted_tokens": accepted, "vllm:generation_tokens": generated,
    }.items():  # fmt: skip
        lines += [f"# TYPE {name} counter", f"{name}_total{{{where}}} {value}"]
    lines.append(f"# TYPE {spec}_accepted_tokens_per_pos counter")
    for k, n in enumerate(survivals):
        lines.append(f'{spec}_accepted_tokens_per_pos_total{{{where},position="{k}"}} {n}')
    for name, total, count in [
        ("time_to_first_token_seconds", 1, requests),
        ("iteration_tokens_total", 500, generated - accepted - requests),
        ("request_time_per_output_token_seconds", tpot * requests, requests),
    ]:
        lines.append(f"# TYPE vllm:{name} histogram")
        lines.append(f'vllm:{name}_bucket{{{where},le="+Inf"}} {count}')
        lines.append(f"vllm:{name}_count{{{where}}} {count}")
        lines.append(f"vllm:{name}_sum{{{where}}} {total}")
    return "\n".join(["# TYPE python_info gauge", "python_info 1", *lines, ""])


def samples():
    """The same scrape as the results of a Prometheus query."""
    found = []
    for line in scrape().splitlines():
        if m := re.fullmatch(r"(vllm:\w+)\{(.*)\} (\S+)", line):
            labels = dict(re.findall(r'(\w+)="([^"]*)"', m[2]))
            found.append({"metric": {"__name__": m[1], **labels}, "value": [0, m[3]]})
    return found


def query(results):
    data = {"resultType": "vector", "result": results}
    return json.dumps({"status": "success", "data": data})


def relabelled(**change):
    """The query's answer with labels changed; functions get the sample's number."""
    return query([
        x | {"metric": x["metric"] | {k: v(i) for k, v in change.items() if k in x["metric"]}}
        for i, x in enumerate(samples())
    ])  # fmt: skip


BY_HAND = ["--t-base-ms", "10", "--d", "2:0.01,6:0.03"]


def metrics_texts(kind, cases, accept="nonsense", name="metrics.txt"):
    for what, content in cases.items():
        argv = ["plan", *BY_HAND, "--scrape", put(name, content)]
        run("metrics", kind, what, argv, accept, [re.escape(name)])


def metrics_random(seed, number):
    rng = random.Random(seed)
    for i in range(number):
        letters = list(scrape())
        for _ in range(rng.choice([1, 3, 10])):
            letters[rng.randrange(len(letters))] = rng.choice('{}",= \n#\\0-eN')
        metrics_texts("random mutations", {f"letters {i}": "".join(letters)}, "may")


# --------------------------------------------------------------------------------------- plan
ALPHA = ["--alpha", "0.5", "--at-gamma", "4"]
# what else an option may be called in a sentence
_OPTIONS = {
    "max-gamma": "draft length", "t-base-ms": "t.base", "h-ms": "host|h.ms", "draft-ms": "draft",
    "at-gamma": "gamma", "d": r"\bd\b|overhead", "study": "yaml", "url": "http|127", "scrape": "x",
}  # fmt: skip


def option(name):
    name = name.lstrip("-")
    return f"{re.escape(name)}|{_OPTIONS.get(name, re.escape(name))}"


def finite(said):
    bad = re.search(r"\b(nan|inf|Infinity|NaN)\b", said)
    return f"prints {bad[0]}" if bad else None


def strict_json(said):
    def refuse(word):
        raise ValueError(word)

    try:
        json.loads(said, parse_constant=refuse)
    except ValueError as e:
        return f"prints what is not JSON ({e})"
    return None


def plan_options(kind, cases, accept="nonsense", base=None, right=None, names=True):
    base = [*BY_HAND, *ALPHA] if base is None else base
    for case in cases:
        argv = ["plan", *base, *case]
        run("plan", kind, " ".join(map(str, case))[:90], argv, accept,
            [option(case[0])] if names and case else [], right, wall_s=12)  # fmt: skip


def commands(kind, cases, accept="nonsense"):
    for argv, named in cases:
        run("plan", kind, " ".join(map(str, argv))[:110], argv, accept, [named])


# --------------------------------------------------------------------------------------- http
OK = b"HTTP/1.1 200 OK\r\n"


def sound(text=None):
    body = (text or scrape()).encode()
    return OK + b"Content-Length: %d\r\n\r\n" % len(body) + body


def live():
    """A server whose counters grow from one scrape to the next."""
    texts = [scrape(), scrape(300, (180, 60), 1000, 20)] * 20
    return lambda c: (c.recv(4096), c.sendall(sound(texts.pop(0))))


def serve(answer):
    """A server on this machine that answers every connection so; its port."""
    server = socket.create_server(("127.0.0.1", 0))

    def one(c):
        try:
            c.settimeout(60)
            if callable(answer):
                answer(c)
            else:
                c.recv(4096)
                c.sendall(answer)
        except OSError:
            pass
        finally:
            c.close()

    def loop():
        while True:
            c, _ = server.accept()
            threading.Thread(target=one, args=(c,), daemon=True).start()

    threading.Thread(target=loop, daemon=True).start()
    return server.getsockname()[1]


def every(seconds, head, piece):
    """A server that sends `piece` now and then, for ever."""

    def do(c):
        c.recv(4096)
        c.sendall(head)
        while True:
            c.sendall(piece)
            time.sleep(seconds)

    return do


def answers(kind, cases, accept="nonsense", path="", more=(), right=None, **limits):
    for what, answer in cases.items():

        def call(answer=answer):
            url = f"127.0.0.1:{serve(answer)}{path}"
            return cli(["plan", *BY_HAND, "--window", "0", "--url", url, *more])

        run("http", kind, what, call, accept, ["127.0.0.1"], right, **limits)


def urls(kind, cases, accept="nonsense"):
    for url in cases:

        def call(url=url):
            return cli(["plan", *BY_HAND, "--window", "0", "--url", url])

        run("http", kind, f"--url {url[:60]!r}", call, accept, ["url|http|address|127"])


def secrets(cases):
    """A password or token in an address must not come back out, in an answer or in a refusal."""
    for what, (url, secret, more) in cases.items():

        def call(url=url, more=more):
            return cli(["plan", *BY_HAND, "--window", "0", "--url", url(), *more])

        run("http", "secrets", what, call, "may", never=secret)


# ------------------------------------------------------------------------------- odd names
def snakemake(study="config/small.yaml", folder="plain", python=None):
    """The workflow's rule `analyse`, really run, for a study file or in a checkout of that name."""

    def call():
        home = clone(folder)
        if not (home / study).exists():
            shutil.copy(home / "config/small.yaml", home / study)
        shutil.rmtree(home / "results/small/tables")
        if python:
            (home / ".venv").symlink_to(sys.prefix)
        argv = [home / python if python else sys.executable, "-m", "snakemake", "-c1",
                "--configfile", study, "--rerun-triggers", "mtime", "--allowed-rules", "analyse",
                "--", "results/small/tables/cells.csv"]  # fmt: skip
        code = process(argv, home)()
        if list(home.rglob("PWNED*")):
            print("A PART OF IT RAN")
            return 0
        for log in home.glob("results/small/logs/analyse.log"):
            print(log.read_text()[-500:])
        return code

    def right(said):
        return "a part of the name was run as a command" if "PART OF IT RAN" in said else None

    records_once()
    what = f"Snakemake: {study}" if not python else f"Snakemake in a checkout named {folder!r}"
    # a failed job's own report is not specamort's sentence, so it must be accepted
    run("names", "odd names", what, call, "must", right=right, wall_s=60, cpu_s=40)
    shutil.rmtree(WORK / folder, ignore_errors=True)


def odd_paths(cases):
    """Valid names of files, accepted by the command line itself."""
    for what, argv in cases.items():
        run("names", "odd names", what, argv, "must", wall_s=20, cpu_s=10)


def quoted_make():
    """`make -n env` in a folder with a space prints lines that a shell takes as they are meant."""
    home = clone("my clone")

    def right(said):
        for line in said.splitlines():
            if str(home) in line and not any(str(home) in token for token in shlex.split(line)):
                return f"is not quoted: {line[:80]}"
        return None

    argv = ["make", "-n", "-C", home, "env", f"PYTHON={sys.executable}"]
    run("names", "odd names", "make env in a checkout named 'my clone'", process(argv), "must",
        right=right)  # fmt: skip
    shutil.rmtree(home)


def quoted_batch():
    """The controller's batch script, with a space in the interpreter's path."""
    home = clone("my clone")
    (home / ".venv").symlink_to(sys.prefix)
    put("my clone/cluster.yaml", dump(cluster()))
    python = home / ".venv/bin/python"

    def right(said):
        for script in home.glob("results/small/controller/*submission*.sh"):
            lines = [x for x in script.read_text().splitlines() if x and not x.startswith("#")]
            if not any(str(python) in shlex.split(x) for x in lines):
                return "the interpreter's path is not one word in its script"
            return None
        return "there is no submission script"

    argv = [python, "-m", "specamort", *LAUNCH]
    run("names", "odd names", "launch from a checkout named 'my clone'", process(argv, home),
        "must", right=right, wall_s=20, cpu_s=15)  # fmt: skip
    shutil.rmtree(home)


# ------------------------------------------------------------------------------------- locale
PLAIN = {"LC_ALL": "C", "LANG": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


def in_locale(cases, env=PLAIN):
    """Valid inputs, in a locale whose encoding is not UTF-8."""
    for what, argv in cases.items():
        call = process([sys.executable, "-m", "specamort", *argv], WORK, **env)
        run("locale", "locale", what, call, "must", wall_s=40, cpu_s=30)
