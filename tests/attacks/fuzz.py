#!/usr/bin/env python3
"""Malformed inputs against specamort's own command line; every outcome is put into a class.

    cd CHECKOUT && python ../shared/attacks/fuzz.py [-v] [WORD ...]

With WORDs, only cases whose line `group: kind: case` holds every one of them; with -v also what
a failing case printed. How to judge, and what the classes mean: README.md beside this file. Here
are the cases; harness.py runs them.
"""

import gzip
import os
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.dont_write_bytecode = True  # this folder stays as it is

from harness import *  # noqa: E402


def study():
    text = small_text()
    study_texts("sound inputs", {
        "as it is": text, "a byte order mark": "\ufeff" + text, "crlf": text.replace("\n", "\r\n"),
        "a list that stands once": text.replace("gammas: [0, 2]", "gammas: &g [0, 2]"),
        "a label that looks like a date": text.replace("CPU bf16", "2026-01-01"),
    }, "must")  # fmt: skip
    study_texts("wrong-typed keys", {
        "int key": text + "1: 2\n", "bool key": text + "on: 2\n",
        "list key": text + "? [a, b]\n: 2\n",
        "int platform": text.replace("cpu-fp32:", "32:"), "null key": text + "~: 2\n",
        "mapping key": text + "? {a: b}\n: 2\n", "date key": text + "2026-01-01: 2\n",
        "float workload": text.replace("  open:", "  1.5:"),
    })  # fmt: skip
    study_texts("unknown encodings", {
        "latin-1": text.replace("CPU bf16", "CPÜ").encode("latin-1"),
        "binary": bytes(range(256)) * 4, "utf-16": text.encode("utf-16"), "NUL": text + "\0",
        "utf-32": text.encode("utf-32"), "utf-16 without a mark": text.encode("utf-16-le"),
    })  # fmt: skip
    study_texts("broken files", {
        "empty": "", "list": "[1, 2]", "tabs": "name:\t\tx\n\t- y", "unclosed": "name: {a: [",
        "duplicate": text + "seed: 3\n", "two documents": text + "---\nname: two\n",
        "python tag": "name: !!python/object/apply:os.getpid []", "self": "&a [*a]",
        "null": "null", "number": "3", "undefined alias": text + "x: *nowhere\n",
        "set": text + "x: !!set {a, b}\n", "an unknown tag": "name: !mine x\n",
        "a word for an int": text.replace("seed: ", "seed: !!int x"),
        "a word for a bool": text.replace("chat: false", "chat: !!bool 5"),
        "merge key": "base: &b {x: 1}\n" + text + "y: {<<: *b}\n",
    })  # fmt: skip
    laughs = "a: &a [x, x, x, x, x, x, x, x, x, x]\n"
    for x, y in zip("abcdefgh", "bcdefghi", strict=True):
        laughs += f"{y}: &{y} [{', '.join(['*' + x] * 10)}]\n"
    study_texts("absurd sizes", {
        "levels of mappings": "{a: " * 3000, "a megabyte": text + "# " + "x" * 2**20,
        "20,000 brackets": "[" * 20000, "laughs": laughs + "name: *i\n",
        "an int of 5,000 digits": text.replace("20260101", "9" * 5000),
    }, "absurd")  # fmt: skip
    study_fields("absurd sizes", [
        ("name", "a" * 300), ("gammas", [0, 10**9]), ("batches", [10**12]),
        ("repetitions", 10**12), ("seed", 10**30), ("context_tokens", 10**15),
        ("replicates", 10**6), ("warmup", 10**9), ("output_tokens", 10**9),
        ("tracing.tokens", [1, 10**9]), ("platforms.cpu-bf16.threads", 10**6),
        ("tracing.models.0.shape.hidden_size", 10**9), ("drafter.prompt_lookup_max", 10**6),
        ("workloads.open.sampling", {"temperature": 1e308}),
        ("tracing.pairs", 10**12), ("tracing.context_tokens", 10**12),
    ], "absurd")  # fmt: skip
    study_fields("odd names", [
        ("name", "../up"), ("name", "a/b"), ("name", "A"), ("name", "models"),
        ("name", "a; touch x"), ("workloads.open.text", ""),
        ("model.name", ".."), ("workloads.open.text", "../schemas/../texts/alice"),
        ("platforms.raw", small()["platforms"]["cpu-fp32"] | {"label": "x"}),
        ("tracing.models.0.name", "superseded"), ("workloads.all", small()["workloads"]["open"]),
        ("platforms.cpu-bf16.label", "_"), ("platforms.cpu-bf16.label", "\u202ex"),
        ("model", {"name": "m", "source": "directory", "path": "x" * 300}),
        ("tracing.models.0.shape.num_attention_heads", 7), ("tracing.tokens", [2, 3]),
        ("platforms.cpu-bf16.label", ""), ("platforms.cpu-bf16.label", "CPU fp32"),
        ("model", {"name": "m", "source": "directory", "path": "/dev/null"}),
        ("model", {"name": "m", "source": "huggingface", "repo": "../..", "revision": "0" * 40}),
        ("model", {"name": "m", "source": "package", "package": "../x"}),
        ("platforms.cpu-fp32", {"role": "heldout", "device": "cuda", "dtype": "bfloat16",
                                "label": "x", "gpu": ""}),
    ])  # fmt: skip
    study_fields("floats for integers", [
        ("gammas", [0, 2.0]), ("replicates", 2.0), ("seed", 1.0), ("output_tokens", 16.0),
        ("tracing.pairs", 2.0), ("batches", [1.0]), ("context_tokens", 256.0),
        ("tracing.models.0.shape.num_hidden_layers", 4.0), ("drafter.prompt_lookup_min", 1.0),
    ])  # fmt: skip
    study_fields("wrong types", [
        ("gammas", [False, 2]), ("name", {"a": 1}), ("workloads", [1]), ("seed", True),
    ])  # fmt: skip
    study_fields("non-finite numbers", [
        ("gammas", [0, NAN]), ("workloads.open.alpha_max", NAN),
        ("workloads.open.sampling", {"temperature": NAN}),
        ("workloads.open.sampling", {"repetition_penalty": INF}),
        ("engine.gpu_memory_utilization", NAN), ("seed", INF), ("tracing.context_tokens", -INF),
    ])  # fmt: skip
    study_fields("ignored options", [
        ("platforms.cpu-bf16.gpu", "H100"), ("tracing.models.0.repo", "a/b"),
    ], "ignored")  # fmt: skip
    os.mkfifo(work("pipe"))
    lines = put("asked.jsonl", '{"prompt": "a"}\n\n{"prompt": "b"}\n')
    asked = {"kind": "file", "chat": False}
    study_fields("axes", [
        ("context_tokens", []), ("context_tokens", [256, 256]), ("context_tokens", [256, 10**15]),
        ("context_tokens", [256.0]), ("modes", {}), ("modes", {"a": 1}), ("modes", {"A": {}}),
        ("modes", {"a": {"enforce_eager": 1}}), ("modes", {"a": {"model": "x"}}),
        ("modes", {"a": {"model_runner": "v2"}}), ("modes", {"a": {"block_sise": 4}}),
        ("modes", {"a": {"async_scheduling": True}}), ("engine.max_num_seqs", 4),
        ("engine.block_size", NAN), ("drafters", {}), ("drafter.method", "eagle4"),
        ("drafter.method", "eagle3"), ("drafter.num_speculative_tokens", 4),
        ("drafter.model", {"name": "m", "source": "package"}), ("drafter.model", "x/y"),
        ("tracing.batches", [64]), ("tracing.gammas", [2]), ("workloads.open.path", "x"),
        ("workloads.more", asked), ("workloads.more", asked | {"path": "/nonexistent"}),
        ("workloads.more", asked | {"path": "/dev/zero"}), ("workloads.more", asked | {"path": "/"}),
        ("workloads.more", asked | {"path": str(work("pipe"))}),
        ("workloads.more", asked | {"path": str(lines)}),
        ("workloads.more", asked | {"path": "x" * 5000}), ("workloads.more", asked | {"text": "alice"}),
    ])  # fmt: skip
    study_paths(["/nonexistent", "/", "/proc/self/mem", "/dev/zero", "pipe", "x" * 300])
    study_labels(["A$_{$", "bell\x07", "<b>&\"'\\frac{%s}"])
    study_random(1, 15)


def clusters():
    good = dump(cluster())
    cluster_texts("sound inputs", {"as it is": good}, "must")
    cluster_texts("wrong-typed keys", {
        "int key": good + "1: 2\n", "bool platform": good.replace("cpu-fp32:", "no:"),
    })  # fmt: skip
    cluster_texts("unknown encodings", {
        "binary": bytes(range(128, 256)), "utf-16": good.encode("utf-16"),
    })  # fmt: skip
    cluster_texts("broken files", {
        "empty": "", "list": "[]", "duplicate": good + "name: x\n", "self": "&a {name: *a}",
        "merge key": good.replace("controller:", "controller:\n  <<: {minutes: 5}"),
    })  # fmt: skip
    here = "platforms.cpu-bf16"
    cluster_fields("non-finite numbers", [
        (f"{here}.step_ms", NAN), (f"{here}.start_minutes", INF), (f"{here}.mem_gb", NAN),
        ("controller.mem_gb", INF), ("controller.minutes", NAN), (f"{here}.cpus", INF),
    ])  # fmt: skip
    cluster_fields("absurd sizes", [
        (f"{here}.step_ms", 1e308), (f"{here}.mem_gb", 1e-12), ("controller.mem_gb", 1e-9),
        (f"{here}.start_minutes", 1e9), (f"{here}.start_minutes", 1e-300), (f"{here}.cpus", 10**6),
        (f"{here}.mem_gb", 1e300), ("controller.minutes", 10**9),
    ], "absurd")  # fmt: skip
    cluster_fields("floats for integers", [(f"{here}.cpus", 2.0), ("controller.minutes", 2.0)])
    cluster_fields("odd names", [
        (f"{here}.partition", "gpu-h100; touch x"), (f"{here}.partition", ""), (f"{here}.gres", ""),
        (f"{here}.gres", "gpu:h100:-1"), (f"{here}.gres", "gpu:h100:1 --uid=0"), (f"{here}.qos", ""),
        ("controller.partition", "cpu-small\n#SBATCH --uid=0"),
        ("container", tempfile.gettempdir()), ("container", ""), ("container", "x" * 300),
        (f"{here}.gres", "gpu:0"), (f"{here}.constraint", ""), (f"{here}.constraint", "a b"),
        (f"{here}.qos", "$(touch x)"), ("controller.qos", "a\nb"), ("modules", ["a; touch x"]),
        ("modules", [""]), ("modules", ["-x"]), ("name", " "),
    ])  # fmt: skip
    whole = cluster()
    for platform in whole["platforms"].values():
        platform |= {"gres": "gpu", "constraint": "a&b|c"}
    cluster_texts("sound inputs", {"no count, a constraint": dump(whole)}, "may")
    del whole["platforms"]["cpu-bf16"]["constraint"]
    cluster_texts("ignored options", {"a constraint for one platform": dump(whole)}, "ignored")
    cluster_random(2, 5)
    user_files([
        "account gts-test", "- account: x", "account: [a]", "account: 12", "a: b: c", b"\xff\xfe",
        "account: a\naccount: b", "account:", "account: a b", "account: $(x)", "acount: a",
        "account: a\nmail: [b]", "[]", "0", "1: 2", b"account: \xe9", "account: a\0", "[" * 9000,
    ])  # fmt: skip
    mine = f"rule_measure_wildcards_small_cpu-bf16_0|{work()}|n"
    latin = "printf '\\377\\376\\n'"
    nothing = {"says nothing": "true", "ends by a signal": "kill -9 $$"}
    site_says("squeue", {
        "lists a job with | in its comment": say("7|RUNNING|my|comment|/x|n|1:00"),
        "lists a job of ours with INVALID time": say(f"7|RUNNING|{mine}|INVALID"),
        "fails": "echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1",
        "says garbage": say("garbage"), "says bytes": latin, "says |": say("|"),
        "complains and hangs": "echo 'Socket timed out' >&2; sleep 60",
    } | nothing, STATUS, "must", wall_s=40)  # fmt: skip
    site_says("squeue", {"says garbage": say("garbage"), "fails": "exit 1"}, LAUNCH)
    site_says("sinfo", {
        "says garbage": say("garbage"), "says |": say("|"), "fails": "echo no >&2; exit 3",
        "says bytes": latin, "names a limit below the request": say("gpu-h100|gpu:h100:1|1:00|1|1"),
    } | nothing, LAUNCH)  # fmt: skip
    site_says("sacctmgr", {"says garbage": say("garbage"), "says bytes": latin}, LAUNCH)
    # an account that is not known is sbatch's to refuse
    site_says("sacctmgr", {"fails": "echo no >&2; exit 1"} | nothing, LAUNCH, "must")
    site_says("sacct", {"says garbage": say("garbage"), "says |": say("|"), "fails": "exit 1"},
              STATUS, "must")  # fmt: skip
    site_says("sbatch", {
        "says garbage": say("garbage"), "fails on two lines": "printf 'a\\nb\\n' >&2; exit 1",
        "says bytes": latin,
    } | nothing, LAUNCH)  # fmt: skip


def records():
    records_once()
    import synthetic

    whole, seq = file("timing").read_text(), "repetitions.1.sequences.0"
    pair = "trace.pairs.0.traced.1"
    run("record", "sound inputs", "as they are", ANALYSE, "must")
    record_texts(
        "truncated files", {"empty": "", "half": whole[: len(whole) // 2], "twice": whole * 2}
    )
    record_texts("unknown encodings", {
        "binary": bytes(range(256)), "latin-1": whole.replace('"none"', '"Ü"').encode("latin-1"),
    })  # fmt: skip
    record_texts("zeroed files", {"NULs": bytes(len(whole))})
    record_texts("wrong types", {"null": "null"})
    record_texts("non-finite numbers", {"NaN": "NaN"})
    record_texts("absurd sizes", {"100,000 brackets": "[" * 100_000}, accept="absurd")
    record_fields("non-finite numbers", [
        ("timing", f"{seq}.pot_ms", NAN), ("base", f"{seq}.pot_ms", INF),
        ("bench", "microbenchmark.bandwidth", NAN), ("trace", f"{pair}.wall_ms", INF),
        ("trace", f"{pair}.trace.busy_ms", NAN), ("on", f"{seq}.arrival_pot_ms", NAN),
    ])  # fmt: skip
    record_fields("absurd sizes", [
        ("timing", f"{seq}.pot_ms", 1e308), ("timing", f"{seq}.tokens", 10**400),
    ], "absurd")  # fmt: skip
    record_fields("wrong types", [
        ("timing", f"{seq}.pot_ms", None), ("timing", "repetitions.1.counters", None),
        ("timing", "block", {"id": [], "seed": {}, "gamma_order": 3}),
        ("timing", "provenance.started", 5), ("timing", "repetitions.1.token_ids", 5),
        ("timing", "device_state", {"before": synthetic.reading(throttle_reasons="x"),
                                    "after": synthetic.reading()}),
        ("trace", f"{pair}.trace.family_ms", []), ("trace", f"{pair}.trace", None),
        ("timing", "settings", {}), ("timing", "repetitions", []),
        ("bench", "microbenchmark", {}), ("bench", "microbenchmark.one_row_ms", {}),
        ("timing", f"{seq}.pot_ms", True), ("counter", "repetitions.1.counters", None),
        ("timing", "schema_version", True), ("bench", "microbenchmark.passes", []),
    ])  # fmt: skip
    record_fields("floats for integers", [("timing", "cell.gamma", 2.0)], "may")
    record_fields("impossible values", [
        ("timing", "repetitions.1.counters.accepted", 10**6),
        ("timing", "repetitions.1.counters.drafted", 0),
        ("timing", "repetitions.1.counters.accepted_per_pos", []),
        ("bench", "microbenchmark.bandwidth", -1), ("bench", "microbenchmark.one_row_ms.qkv", 0),
        ("trace", "trace.tokens_per_step", 0), ("timing", "provenance.finished", "yesterday"),
        ("timing", "device_state", {"before": synthetic.reading(at_ns=10**9),
                                    "after": synthetic.reading(at_ns=0)}),
    ])  # fmt: skip
    record_fields("impossible values", [
        ("timing", "repetitions.1.index", 0), ("timing", f"{seq}.sha256", ""),
    ], "may")  # fmt: skip
    record_fields("foreign records", [
        ("timing", "cell.gamma", 6), ("timing", "origin", "measured"),
        ("timing", "block.id", "another block"), ("timing", "provenance.device.uuid", "another"),
        ("timing", "provenance.vllm", "another"),
        ("bench", "settings", {"platform": "cpu-fp32", "dtype": "float32"}),
        ("trace", "trace.platform", "cpu-fp32"), ("trace", "settings_hash", "stale"),
        ("counter", "cell.platform", "cpu-fp32"), ("on", "provenance.device.uuid", "another"),
    ])  # fmt: skip
    record_texts("foreign records", {"a timing record in its place": whole}, "bench")
    other = (raw() / "microbenchmark/cpu-fp32/kernels.json").read_text()
    record_texts("foreign records", {"another platform's in its place": other}, "bench")
    status_fields("foreign records", [("cell.platform", "gone"), ("settings_hash", "stale")])
    status_fields("wrong types", [("provenance.job_id", 7), ("provenance.host", [])])
    status_fields("impossible values", [
        ("provenance.started", "yesterday"), ("provenance.finished", "2000-01-01T00:00:00+00:00"),
        ("provenance.finished", "9999999-01-01"),
    ])  # fmt: skip
    remains(".open-n1-g2.123.json", '{"schema')
    tables("broken files", [
        ("cells", ""), ("cells", "a,b\n1,2\n"), ("host_terms", "form\n"),
        ("errors", "x\n"),
        ("acceptance", "workload,gamma\n"),
    ])  # fmt: skip
    tables("zeroed files", [("cells", "\0" * 100)])
    gone = work() / "results/small/tables/verify_overhead.csv"
    kept = gone.read_bytes()
    gone.unlink()
    argv = [*PLAN, "--workload", "open"]
    run(
        "record",
        "broken files",
        "plan without tables/verify_overhead.csv",
        argv,
        names=["verify_overhead|tables"],
    )
    gone.write_bytes(kept)
    record_random(3, 8)


def kineto():
    m, e = mark(), event()
    whole = events(m, e)
    others = [
        {"ph": "M", "name": "process_name", "pid": 1},
        {"ph": "i", "s": "g", "name": "End", "pid": "", "tid": "", "ts": 1},
        {"ph": "s", "id": 1, "pid": 3, "tid": 1, "ts": 1, "cat": "ac2g", "name": "ac2g"},
    ]
    kineto_texts("sound inputs", {
        "as it is": whole, "spaces around": f"\n {whole}\n", "crlf": whole.replace(", ", ",\r\n"),
        "marks, instants and flows": events(*others, m, e),
        "epoch, float": events(mark(ts=1.7e15), event(ts=1.7e15 + 5.5, dur=2.25)),
        "a kernel": events(m, event(cat="kernel", pid=0, tid="stream 7")),
    }, accept="must")  # fmt: skip
    kineto_texts("truncated files", {
        "empty": "", "cut in a string": whole[:60], "cut in a number": whole[:18],
        "without its last character": whole[:-1], "twice": whole * 2,
    })  # fmt: skip
    kineto_texts("zeroed files", {"NULs": bytes(500), "zeros in it": whole[:60] + "\0" * 64})
    kineto_texts("unknown encodings", {"binary": bytes(range(128, 256))})
    kineto_texts("wrong types", {
        "list": "[]", "events null": '{"traceEvents": null}', "events string": '{"traceEvents": "abc"}',
        "event is a number": events(m, 5), "event is null": events(None),
        "no name": events(m, event(name=...)), "no dur": events(m, event(dur=...)),
        "name number": events(m, event(name=5)), "ts string": events(m, event(ts="105")),
        "cat list": events(m, event(cat=["kernel"])), "{}": "{}",
        "event is a list": events(m, [1]), "no tid": events(m, event(tid=...)),
        "top is null": "null", "events is an object": '{"traceEvents": {}}',
        "no ph": events(m, e, event(ph=...)), "ph number": events(m, e, event(ph=5)),
        "no cat": events(m, e, event(cat=...)), "no ts": events(m, e, event(ts=...)),
        "no pid": events(m, e, event(pid=...)), "pid list": events(m, e, event(pid=[3])),
        "tid bool": events(m, e, event(tid=True)), "dur bool": events(m, e, event(dur=True)),
        "mark's ts null": events(mark(ts=None), e), "mark's name null": events(mark(name=None), e),
        "kernel's pid text": events(m, e, event(cat="kernel", pid="x")),
    })  # fmt: skip
    kineto_texts("foreign records", {
        "no mark": events(e), "a mark twice": events(m, m, e), "nothing in its step": events(m, event(ts=5)),
        "a mark of another form": events(mark(name="execute_context_1"), e),
    })  # fmt: skip
    kineto_texts("impossible values", {
        "ts negative": events(m, e, event(ts=-5)), "dur negative": events(m, e, event(dur=-5)),
        "a mark's count negative": events(mark(name=MARK.replace("(3)", "(-3)")), e),
    })  # fmt: skip
    kineto_texts("non-finite numbers", {
        "mark's ts NaN": events(mark(ts=NAN), e), "ts -inf": events(m, e, event(ts=-INF)),
        "ts NaN": events(m, event(ts=NAN)), "dur inf": events(m, event(dur=INF)),
        "dur 1e400": whole.replace('"dur": 10,', '"dur": 1e400,'),
    })  # fmt: skip
    kineto_texts("absurd sizes", {
        "ts 10**400": events(m, event(ts=10**400)),
        "a mark's count of 5,000 digits": events(mark(name=MARK.replace("(3)", f"({'9' * 5000})")), e),
        "a mark's count of 10**12": events(mark(name=MARK.replace("(3)", f"({10**12})")), e),
        "dur of a year": events(m, event(dur=3.2e13)), "ts a year later": events(m, e, event(ts=3.2e13)),
        "dur 2**63": events(m, event(dur=2**63)), "ts of 5,000 digits": whole.replace("105", "9" * 5000),
        "brackets in args": whole.replace('"tid"', f'"args": {"[" * 10**5}{"]" * 10**5}, "tid"'),
        "a name of a million letters": events(m, event(name="x" * 10**6)),
    }, accept="absurd")  # fmt: skip
    packed = gzip.compress(whole.encode())
    members = gzip.compress(whole[:50].encode()) + gzip.compress(whole[50:].encode())
    kineto_texts("sound inputs", {"gz in two members": members}, "t.json.gz", "must")
    kineto_texts("truncated files", {
        "gz cut": packed[:-9], "gz empty": b"", "gz without its last byte": packed[:-1],
        "gz twice": packed * 2,
    }, "t.json.gz")  # fmt: skip
    kineto_texts("broken files", {
        "gz bad crc": packed[:-8] + bytes(8), "not gz": b"hello", "gz and more": packed + b"x",
    }, "t.json.gz")  # fmt: skip
    for what, filling, mb in (
        ("spaces", b" ", 300), ("brackets", b"[", 40), ("empty events", b"{},", 40), ("text", b'"a', 40),
    ):  # fmt: skip
        inside = filling * (mb * 1_000_000 // len(filling))
        bomb = {f"gz of {mb} MB of {what}": gzip.compress(b'{"traceEvents": [' + inside + b"]}", 1)}
        kineto_texts("absurd sizes", bomb, "t.json.gz", "absurd")


def nsys():
    whole, memcpy, nvtx = export(), "CUPTI_ACTIVITY_KIND_MEMCPY", "NVTX_EVENTS"

    def row(table, change):
        return [f"UPDATE {table} SET {change} WHERE rowid = 3"]

    nsys_case("sound inputs", "as it is", whole, "must", same)
    nsys_case("sound inputs", "in WAL mode", whole[:18] + b"\2\2" + whole[20:], "must", same)
    nsys_sql("sound inputs", {
        "marks without an end": [f"UPDATE {nvtx} SET end = NULL"],
        "an event that is no range": [f"INSERT INTO {nvtx} (start, eventType, text) VALUES (1, 75, 'x')"],
        "no column demangledName": column_gone("demangledName"),
        "a name twice": ["INSERT INTO StringIds SELECT id + 9000, value FROM StringIds"],
    }, "must", same)  # fmt: skip
    nsys_case("truncated files", "empty", b"")
    for left in (1, 50, 100, 4096, len(whole) // 2, len(whole) - 4096, len(whole) - 1):
        nsys_case("truncated files", f"cut to {left}", whole[:left])
    nsys_case("truncated files", "twice", whole * 2, "may", same)
    nsys_zeroed((0.3, 0.7))
    for size in (64, 512, 1024, 65536, len(whole)):
        nsys_zeroed((0, 0.05, 0.5, 0.95), size)
    for page in range(4096, len(whole), 5 * 4096):  # its kind stays, its rows are gone
        content = whole[: page + 1] + bytes(512) + whole[page + 513 :]
        nsys_case("zeroed files", f"512 bytes of zeros at {page + 1}", content, "may", same)
    nsys_sql("foreign records", {
        "another program's": [f"DROP TABLE {t}" for t in ("StringIds", KERNEL, nvtx)],
        "a mark of another form": row(nvtx, "text = 'execute_context_1'"),
    })  # fmt: skip
    nsys_sql("broken files", {
        "no names": ["DELETE FROM StringIds"], "no kernel rows": [f"DELETE FROM {KERNEL}"],
        "no column shortName": column_gone("shortName"), "no column end": column_gone("end"),
        "no column deviceId": column_gone("deviceId"),
        "no column text": [f"ALTER TABLE {nvtx} DROP COLUMN text"],
        "every name id null": [f"UPDATE {KERNEL} SET shortName = NULL, demangledName = NULL"],
        "a mark twice": [f"INSERT INTO {nvtx} SELECT * FROM {nvtx} WHERE rowid = 3"],
        "a mark without text": row(nvtx, "text = NULL"),
        "a mark of no text known": row(nvtx, "text = NULL, textId = 5"),
        "an id of two names": [
            "CREATE TABLE t AS SELECT * FROM StringIds", "DROP TABLE StringIds",
            "ALTER TABLE t RENAME TO StringIds", "INSERT INTO StringIds VALUES (1001, 'x')",
        ],
    })  # fmt: skip
    nsys_sql("ids out of range", {
        "a name id of null": row(KERNEL, "shortName = NULL"),
        "a name id of -5000000000": row(KERNEL, "shortName = -5000000000"),
        "both name ids of -2**62": row(KERNEL, f"shortName = {-(2**62)}, demangledName = {-(2**62)}"),
        "both name ids null": row(KERNEL, "shortName = NULL, demangledName = NULL"),
        "a device id of -10**9": row(KERNEL, "deviceId = -1000000000"),
    }, "may", same_sums)  # fmt: skip
    nsys_sql("ids out of range", {
        "a spare name of id 3*10**9": ["INSERT INTO StringIds VALUES (3000000000, 'x')"],
        "a spare text id": row(nvtx, "textId = -5"),
    }, "may", same)  # fmt: skip
    nsys_sql("ids out of range", {
        "a device id of 10**12": row(memcpy, "deviceId = 1000000000000"),
        "a device for each kernel": [f"UPDATE {KERNEL} SET deviceId = rowid"],
    })  # fmt: skip
    nsys_sql("wrong types", {
        "start is text": row(KERNEL, "start = 'soon'"), "start is a float": row(KERNEL, "start = 0.5"),
        "a name id is text": row(KERNEL, "demangledName = 'gemm'"),
        "a name is binary": ["UPDATE StringIds SET value = x'00ff' WHERE id = 1001"],
        "a copy's end is null": row(memcpy, "end = NULL"), "a copy's device is text": row(memcpy, "deviceId = 'x'"),
        "a mark's start is null": row(nvtx, "start = NULL"), "a mark's end is text": row(nvtx, "end = 'x'"),
        "a mark is binary": row(nvtx, "text = CAST(text AS BLOB)"),
    })  # fmt: skip
    nsys_sql("impossible values", {
        "an end before its start": row(memcpy, "end = start - 1"), "a start of 0": row(KERNEL, "start = 0"),
        "zeros in a name": ["UPDATE StringIds SET value = value || char(0)"],
        "zeros in a mark": row(nvtx, "text = char(0) || text"),
    })  # fmt: skip
    counts = {"5,000 digits": "9" * 5000, "10**12": 10**12, "-3": -3}
    nsys_sql("absurd sizes", {
        "end is 2**63 - 1": row(KERNEL, "end = 9223372036854775807"),
        "start is -2**63": row(KERNEL, f"start = {-(2**63)}"),
        "a copy of a year": row(memcpy, "end = start + 32000000000000000"),
        "a mark of years": row(nvtx, f"end = {2**62}"),
        "a name of a million letters": [f"UPDATE StringIds SET value = '{'x' * 10**6}' WHERE id = 1001"],
        **{
            f"a mark's count of {what}": row(nvtx, f"text = 'execute_context_0(0)_generation_1({n})'")
            for what, n in counts.items()
        },
    }, "absurd")  # fmt: skip
    for folder in ("a#b", "a b", "a?b", "a%20b", "ä&=日"):
        nsys_case("odd names", f"{folder} in the path", whole, "must", same, f"{folder}/it.sqlite")


def metrics():
    good = scrape()
    metrics_texts("sound inputs", {"as it is": good}, "must")
    metrics_texts("broken files", {
        "empty": "", "a brace short": good.replace("}", "", 1), "no value": good.replace("} 100", "}", 1),
        "drafts is 0x10": good.replace("} 100", "} 0x10", 1), "doubled": good + good,
        "html": "<html><body>404</body></html>", "NUL": good + "\0",
        "a quote short": good.replace('"', "", 1),
    })  # fmt: skip
    metrics_texts("unknown encodings", {"binary": bytes(range(128, 256))})
    metrics_texts(
        "wrong types", {"position is a word": good.replace('position="0"', 'position="first"')}
    )
    metrics_texts("ids out of range", {
        "position is -1": good.replace('position="0"', 'position="-1"'),
        "position is 10**6": good.replace('position="1"', 'position="1000000"'),
    })  # fmt: skip
    metrics_texts("non-finite numbers", {"drafts is NaN": good.replace("} 100", "} NaN", 1)})
    unplaced = "\n".join(x for x in good.splitlines() if "per_pos" not in x) + "\n"
    metrics_texts("impossible values", {
        "drafted is 0, no positions": unplaced.replace('draft_tokens_total{engine="0",model_name="m"} 200',
                                                       'draft_tokens_total{engine="0",model_name="m"} 0'),
        "drafts is -5": good.replace("} 100", "} -5", 1), "generated is 0": good.replace("} 400", "} 0"),
        "accepted above drafted": good.replace("} 80", "} 800").replace("} 120", "} 9000"),
        "acceptance rises along a draft": good.replace("} 80", "} 8"),
        "tpot is negative": good.replace('_sum{engine="0",model_name="m"} 0.2',
                                         '_sum{engine="0",model_name="m"} -5'),
    })  # fmt: skip
    many = ",".join(f'a{i}="1"' for i in range(100_000))
    metrics_texts("absurd sizes", {
        "100,000 labels": f"vllm:x{{{many}}} 1\n{good}",
        "drafts is 1e308": good.replace("} 100", "} 1e308", 1),
    }, "may")  # fmt: skip
    metrics_texts("odd names", {
        "html in a label": good.replace('model_name="m"', 'model_name="<script>"'),
        "a wrong escape": good.replace('model_name="m"', 'model_name="\\x"'),
    }, "may")  # fmt: skip
    found = samples()
    metrics_texts("sound inputs", {"a query's answer": query(found)}, "must")
    metrics_texts("wrong types", {
        "query: result null": query(None), "query: result string": query("abc"),
        "query: result map": query({}),
        "query: metric is a list": query([{"metric": [], "value": [0, "1"]}]),
        "query: name is a number": query([{"metric": {"__name__": 5}, "value": [0, "1"]}]),
        "query: value is a map": query([{"metric": found[0]["metric"], "value": {}}]),
        "query: labels are numbers": relabelled(engine=lambda i: i),
        "query: labels of two types": relabelled(engine=lambda i: [1, "a", None][i % 3]),
        "query: a range": query([{"metric": x["metric"], "values": [x["value"]]} for x in found]),
        "query: an error": '{"status": "error", "error": "bad"}',
    })  # fmt: skip
    metrics_texts("truncated files", {"query: cut": query(found)[:-10]})
    metrics_random(4, 7)


def plan():
    plan_options("sound inputs", [()], "must", right=finite)
    plan_options("sound inputs", [("--d", "2:7"), ("--figure", "/dev/null")], "may")
    plan_options("non-finite numbers", [
        ("--max-gamma", "nan"), ("--alpha", "nan"), ("--t-base-ms", "inf"), ("--h-ms", "nan"),
        ("--draft-ms", "nan"), ("--d", "2:inf"), ("--coverage", "nan"),
    ])  # fmt: skip
    plan_options("non-finite numbers", [("--coverage", "0", "--json")], "may", right=strict_json)
    plan_options("impossible values", [
        ("--max-gamma", 0), ("--max-gamma", -1), ("--at-gamma", -3), ("--alpha", -0.1),
        ("--at-gamma", 0), ("--alpha", 1.1), ("--t-base-ms", -5),
        ("--coverage", 2), ("--t-base-ms", 0), ("--h-ms", -100), ("--draft-ms", -1), ("--d", "0:0.5"),
        ("--d", "2:0.01,2:0.5"), ("--d", "2:-1"), ("--d", "1:0,2:-0.5"), ("--figure", ""),
        ("--figure", "x.xyz"), ("--figure", "/nonexistent/x.png"),
    ])  # fmt: skip
    plan_options("absurd sizes", [
        ("--max-gamma", 10**6), ("--at-gamma", 10**12), ("--alpha", "1e400"),
    ], "absurd")  # fmt: skip
    plan_options(
        "absurd sizes", [("--t-base-ms", "1e308"), ("--h-ms", "1e308")], "may", right=finite
    )
    plan_options("wrong types", [("--alpha", "50%"), ("--d", "x"), ("--d", "2.5:0.1"), ("--d", "2:1%"),
                                 ("--d", "2:0.01;6:0.03")])  # fmt: skip
    plan_options("ignored options", [
        ("--batch", 4), ("--before", "/nonexistent"), ("--engine", "7"), ("--model", "x"),
    ], "ignored")  # fmt: skip
    of_study = PLAN[1:]
    records_once()
    plan_options("sound inputs", [("--workload", "open")], "must", of_study)
    plan_options("ignored options", [
        ("--d", "2:5"), ("--at-gamma", 9), ("--before", "/nonexistent"),
    ], "ignored", [*of_study, "--workload", "open"])  # fmt: skip
    plan_options("impossible values", [
        ("--workload", "gone"), ("--workload", ""), ("--batch", 3), ("--platform", "gone"),
    ], "nonsense", [*of_study, "--workload", "open"])  # fmt: skip
    plan_options("impossible values", [
        ("--alpha", 0.5), ("--scrape", "/"), ("--scrape", "x", "--url", "y"), ("--url", ""),
    ], base=of_study)  # fmt: skip
    study = ["--study", "config/small.yaml", "--platform"]
    commands("impossible values", [
        (["measure", *study, "gone", "--replicate", "0"], "gone"),
        (["measure", *study, "cpu-bf16", "--replicate", "999"], "replicate"),
        (["model", *study[:2], "--model", "gone"], "gone"),
        (["trace-engine", *study, "cpu-bf16", "--output", "o", "--cell", "none"], "cell"),
        (["check", *study[:2], "--log", "/"], "log|/"), (["nonsense"], "nonsense"),
        (["check"], "study"),
        (["status", *study[:2], "--cluster", "x"], "cluster"),
    ])  # fmt: skip


def http():
    answers("sound inputs", {"a server": live()}, "must")
    answers("HTTP misbehaviour", {
        "an SSH server": b"SSH-2.0-OpenSSH_9.2\r\n", "nothing, closes": b"",
        "gzip": OK + b"Content-Encoding: gzip\r\n\r\n" + gzip.compress(b"x 1\n"),
        "a body shorter than its Content-Length": OK + b"Content-Length: 1000\r\n\r\nabc",
        "200 headers": OK + b"".join(b"X%d: y\r\n" % i for i in range(200)) + b"\r\n",
        "401": b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n",
        "a redirect to itself": b"HTTP/1.1 302 Found\r\nLocation: /metrics\r\n"
        b"Content-Length: 0\r\nConnection: close\r\n\r\n",
    })  # fmt: skip
    # each read is in time, the whole never ends
    answers("HTTP misbehaviour", {"a line now and then, for ever": every(0.2, OK + b"\r\n", b"#\n")},
            wall_s=25)  # fmt: skip
    answers("absurd sizes", {"a body without end": every(0, OK + b"\r\n", b"# " + b"x" * 65536 + b"\n")},
            "absurd", wall_s=25, cpu_s=12, gib=3)  # fmt: skip
    urls("HTTP misbehaviour", ["http://127.0.0.1:x", "http://a b", "http://[::1", "http://127.0.0.1:1",
                               "http://x\r\nHost: y", "data:text/plain,x"])  # fmt: skip
    secrets(
        {"a password, nobody there": (lambda: "http://user:hunter2@127.0.0.1:1", "hunter2", ())}
    )


def names():
    put("my scrape;x.txt", scrape())
    odd_paths({
        "--scrape 'my scrape;x.txt'": ["plan", *BY_HAND, "--scrape", "my scrape;x.txt"],
        "--log 'my logs/a $x.log'": ["check", "--study", "config/small.yaml",
                                     "--log", "my logs/a $x.log"],
    })  # fmt: skip
    snakemake("config/my study.yaml")
    snakemake("config/a&touch PWNED&.yaml")
    snakemake("config/$(touch PWNED) {x}'s.yaml")
    snakemake(folder="my clone", python=".venv/bin/python")
    snakemake(folder="it's {x} $HOME", python=".venv/bin/python")
    quoted_make()


def locale():
    records_once()
    put("umlaut.yaml", dump(altered(small(), "platforms.cpu-bf16.label", "CPÜ γ")))
    in_locale({"status": STATUS, "a label that is not ASCII": ["check", "--study", "umlaut.yaml"],
               "figures": ["figures", "--study", "umlaut.yaml", "--log", "γ.log"],
               "report": ["report", "--study", "umlaut.yaml"]})  # fmt: skip


GROUPS = {
    "study": study, "cluster": clusters, "record": records, "kineto": kineto, "nsys": nsys,
    "metrics": metrics, "plan": plan, "http": http, "names": names, "locale": locale,
}  # fmt: skip

if __name__ == "__main__":
    sys.exit(main(GROUPS))
