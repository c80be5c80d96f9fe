"""Traces: what is in them, against answers worked another way, and one step by differencing."""

import gzip
import json
import os
import random
import sqlite3
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import nsys_export
from specamort.errors import SpecamortError, Unreadable
from specamort.measure.tracing import kineto, nsys, trace
from specamort.model import kernels, step
from specamort.study import tracer


def test_union_by_hand():
    # [0,10] and [5,7] inside it, a gap, [20,30] and [25,40] overlapping: 10 + 20
    assert trace.union(np.array([5, 0, 25, 20]), np.array([7, 10, 40, 30])) == 30
    assert trace.union(np.array([]), np.array([])) == 0


@given(st.lists(st.tuples(st.integers(0, 500), st.integers(0, 60)), min_size=1, max_size=40))
def test_union_counts_every_covered_nanosecond_once(spans):
    start = np.array([s for s, _ in spans])
    end = start + np.array([n for _, n in spans])
    covered = nsys_export.covered([(s, s + n) for s, n in spans])
    assert trace.union(start, end) == covered


@pytest.mark.parametrize(
    ("name", "family"),
    [(name, family) for name, (_, family) in nsys_export.KERNELS.items()]
    + [
        # operators of the CPU build
        ("_C::onednn_mm", "gemm"),
        ("aten::addmm", "gemm"),
        ("aten::linear", "gemm"),
        ("vllm::unified_attention_with_output", "attention"),
        ("_C::greedy_argmax", "sampling"),
        ("aten::to", "copy"),
        ("aten::_to_copy", "copy"),
        ("aten::silu", "other"),
        # short names, all that an old export may have
        ("flash_fwd_splitkv_kernel", "attention"),
        ("fused_add_rms_norm_kernel", "norm"),
        # Kineto's own, and its other spelling of C++
        ("Memcpy DtoH (Device -> Pinned)", "copy"),
        ("Memset (Device)", "copy"),
        ("void at::native::(anonymous namespace)::CatArrayBatchedCopy_contig<...>", "copy"),
        # vLLM's Triton attention and KV cache write
        ("kernel_unified_attention", "attention"),
        ("reshape_and_cache_kernel_flash", "attention"),
        ("reduce_segments", "attention"),
        # what a part of the name would decide wrongly
        ("void flashinfer::norm::FusedAddRMSNormKernel<8u, __nv_bfloat16>", "norm"),
        ("void flashinfer::sampling::TopPSamplingFromProbKernel<1024u>(float*)", "sampling"),
        ("void vllm::act_and_mul_kernel<cutlass::gemm::T, vllm::softmax_norm>(T1*)", "other"),
        ("void vllm::some_kernel<float>(flash::Flash_fwd_params, CopyParams)", "other"),
        ("triton_poi_fused__to_copy_add_cat_index_mul_split_sub_0", "other"),
        ("triton_poi_fused__to_copy_clamp_div_preshuffle_gemm_squeeze_view_1", "other"),
        ("triton_poi_fused__to_copy_3", "copy"),
        ("triton_tem_fused_mm_0", "gemm"),
        ("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "other"),
        ("_stop_kernel", "other"),
        ("", "other"),
    ],
)
def test_families(name, family):
    assert kernels.family(name) == family


SETTINGS = [{"version": v} for v in nsys_export.VERSIONS]
SETTINGS += [
    {"devices": 2, "overlap": 0.5},
    {"processes": 3, "shuffled": True},
    {"marks": "textId", "rows": 7},
    {"overlap": 0.0},
    {"overlap": 0.9, "per_step": 700, "devices": 2},
]


@pytest.mark.parametrize("chunk", [37, 65536])
@pytest.mark.parametrize("options", SETTINGS, ids=str)
def test_nsys_export(tmp_path, options, chunk, monkeypatch):
    monkeypatch.setattr(nsys, "_CHUNK", chunk)
    path = tmp_path / "with space, # and 50%.sqlite"
    answer = nsys_export.write(path, **options)
    found = nsys.read(path)
    assert found.busy_ms == pytest.approx(answer.busy_ns / 1e6, rel=1e-12)
    assert found.sum_ms == pytest.approx(answer.sum_ns / 1e6, rel=1e-12)
    assert found.family_ms == pytest.approx({k: v / 1e6 for k, v in answer.family_ns.items()})
    assert found.events == answer.events
    assert found.steps == 4 and found.step_tokens == [options.get("rows", 1)] * 4
    if options.get("overlap", 1):
        assert found.busy_ms < found.sum_ms


NAMES = st.sampled_from([-(2**62), -(2**40), -1, 0, 3, 2**33])
ROW = st.tuples(
    st.integers(1, 90), st.integers(0, 30), st.sampled_from([0, 1, 3, trace.DEVICES - 1]), NAMES
)


def an_export(path: Path, tables: dict[str, list[tuple]], columns="demangledName", names=()):
    """An export of (start, length, device, names...) rows, and nothing that is not needed."""
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT)")
        db.executemany("INSERT INTO StringIds VALUES (?, ?)", names)
        for table, rows in tables.items():
            named = columns if table == "KERNEL" else "bytes"
            name = f"CUPTI_ACTIVITY_KIND_{table}"
            db.execute(f"CREATE TABLE {name} (start, end, deviceId, {named})")
            made = [(s, s + n, *more) for s, n, *more in rows]
            blanks = ", ".join("?" * (3 + len(named.split(","))))
            db.executemany(f"INSERT INTO {name} VALUES ({blanks})", made)
    db.close()


@settings(max_examples=60, deadline=None)
@given(st.lists(ROW, min_size=1, max_size=25), st.lists(ROW, max_size=6), st.booleans())
def test_nsys_sums_any_rows(kernels, copies, ordered):
    """Any order, negative, huge and dangling ids of names: the answer of counting by hand."""
    kernels = [*(sorted(kernels) if ordered else kernels), (95, 1, 0, -1)]
    with tempfile.TemporaryDirectory() as d:
        path = Path(d) / "it.sqlite"
        names = [(-1, "aten::mm"), (2**33, "aten::to")]
        an_export(path, {"KERNEL": kernels, "MEMCPY": copies}, names=names)
        found = nsys.read(path)
    rows = kernels + copies
    families = {-1: "gemm", 2**33: "copy"}
    expected: dict[str, float] = {}
    for i, (_, n, _, name) in enumerate(rows):
        kind = families.get(name, "other") if i < len(kernels) else "copy"
        expected[kind] = expected.get(kind, 0) + n / 1e6
    took = {k: ms for k, ms in expected.items() if ms}
    assert {k: ms for k, ms in found.family_ms.items() if ms} == pytest.approx(took)
    assert found.events == len(rows)
    assert found.busy_ms * 1e6 == pytest.approx(
        sum(
            nsys_export.covered([(s, s + n) for s, n, at, _ in rows if at == d])
            for d in {at for _, _, at, _ in rows}
        )
    )


@pytest.mark.parametrize(
    ("columns", "kernel", "family"),
    [
        ("demangledName, shortName", (1, 9, 0, 1, 2), "attention"),
        ("demangledName, shortName", (1, 9, 0, None, 2), "gemm"),
        ("demangledName, shortName", (1, 9, 0, 0, 2), "gemm"),
        ("demangledName", (1, 9, 0, 1), "attention"),
        ("shortName", (1, 9, 0, 2), "gemm"),
    ],
)
def test_nsys_takes_the_longest_name_there_is(tmp_path, columns, kernel, family):
    names = [(1, next(iter(nsys_export.KERNELS))), (2, "nvjet_tst_64x8")]
    an_export(tmp_path / "it.sqlite", {"KERNEL": [kernel]}, columns, names)
    assert nsys.read(tmp_path / "it.sqlite").family_ms == {family: 9e-6}


def test_nsys_a_kernel_without_a_name_is_still_a_kernel(tmp_path):
    names = [(1, "aten::mm"), (2, None), (3, "")]
    rows = [(1, 9, 0, name) for name in (1, None, 0, 2, 3, -(2**62), 2**63 - 1)]
    an_export(tmp_path / "it.sqlite", {"KERNEL": rows, "MEMCPY": [(1, 5, 0, 64)]}, names=names)
    found = nsys.read(tmp_path / "it.sqlite")
    assert found.family_ms == pytest.approx({"gemm": 9e-6, "other": 54e-6, "copy": 5e-6})
    assert found.events == 8


def test_nsys_without_marks_counts_no_steps(tmp_path):
    nsys_export.write(tmp_path / "it.sqlite", marks=None)
    assert nsys.read(tmp_path / "it.sqlite").steps is None


GRAPHS = (
    "CREATE TABLE CUPTI_ACTIVITY_KIND_GRAPH_TRACE (start INTEGER, end INTEGER, deviceId INTEGER)",
    "INSERT INTO CUPTI_ACTIVITY_KIND_GRAPH_TRACE VALUES (1, 2, 0)",
)
CALLS = (
    "CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER, end INTEGER, nameId INTEGER)",
    "INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (1, 2, 1000)",
)
KERNEL = "CUPTI_ACTIVITY_KIND_KERNEL"
MEMCPY = "CUPTI_ACTIVITY_KIND_MEMCPY"


def without_types(table):
    """As another program may have written it: any value in any column, ids more than once."""
    made = f"CREATE TABLE made AS SELECT * FROM {table}"
    return [made, f"DROP TABLE {table}", f"ALTER TABLE made RENAME TO {table}"]


def mark_reads(text):
    return [f"UPDATE NVTX_EVENTS SET text = {text} WHERE rowid = 3"]


@pytest.mark.parametrize(
    ("statements", "why"),
    [
        ([f"DROP TABLE {KERNEL}"], "holds no kernel; .* export the report again, then trace again"),
        ([f"DELETE FROM {KERNEL}"], "holds no kernel; the traced process did no work"),
        ([f"DROP TABLE {KERNEL}", *CALLS], "holds CUDA calls but none of the kernels .*`nsys -z`"),
        ([f"DROP TABLE {KERNEL}", *GRAPHS], "CUDA graphs as wholes.*--cuda-graph-trace=node"),
        (GRAPHS, "CUDA graphs as wholes, whose kernels would be missing"),
        (["DROP TABLE StringIds"], "no table StringIds; it is not an nsys export, or an interrupt"),
        (["DELETE FROM StringIds"], "no kernel has a name"),
        ([f"UPDATE {KERNEL} SET demangledName = -1, shortName = NULL"], "no kernel has a name"),
        (["UPDATE StringIds SET value = x'00'"], "several values of id .*, or one that is no text"),
        (
            [*without_types("StringIds"), "INSERT INTO StringIds SELECT id, 'x' FROM StringIds"],
            "StringIds has several values of id",
        ),
        (
            ["UPDATE StringIds SET value = value || char(0)"],
            "the kernel name .* is damaged or longer",
        ),
        ([f"UPDATE StringIds SET value = '{'x' * 100_001}'"], "is damaged or longer than 100000"),
        (
            [f"UPDATE {KERNEL} SET demangledName = 'x' WHERE rowid = 3"],
            "name id is no whole number",
        ),
        ([f"UPDATE {KERNEL} SET start = start + 0.5"], "whose start is no whole number"),
        ([f"UPDATE {KERNEL} SET end = start - 5 WHERE rowid = 3"], "an end before its start"),
        ([f"UPDATE {MEMCPY} SET start = 0 WHERE rowid = 3"], "MEMCPY has a start of 0"),
        ([f"UPDATE {MEMCPY} SET end = NULL WHERE rowid = 3"], "MEMCPY .* end is no whole number"),
        ([f"UPDATE {MEMCPY} SET end = {2**63 - 1} WHERE rowid = 3"], "more than a day apart"),
        ([f"UPDATE {KERNEL} SET start = {-(2**63)} WHERE rowid = 3"], "more than a day apart"),
        ([f"UPDATE {KERNEL} SET deviceId = NULL WHERE rowid = 3"], "deviceId is no whole number"),
        ([f"UPDATE {KERNEL} SET deviceId = rowid - 2"], "deviceId that is none of 0 to 1023"),
        ([f"UPDATE {KERNEL} SET deviceId = 1024"], "deviceId that is none of 0 to 1023"),
        (["UPDATE NVTX_EVENTS SET start = NULL WHERE rowid = 3"], "start, end or text is none"),
        (["UPDATE NVTX_EVENTS SET end = 'x' WHERE rowid = 3"], "start, end or text is none"),
        ([f"UPDATE NVTX_EVENTS SET end = {2**62} WHERE rowid = 3"], "more than a day apart"),
        (mark_reads("NULL"), "start, end or text is none"),
        (mark_reads("NULL, textId = -5"), "start, end or text is none"),
        (mark_reads("x'65'"), "start, end or text is none"),
        (["INSERT INTO NVTX_EVENTS SELECT * FROM NVTX_EVENTS"], "a range that is there twice"),
        (mark_reads("'execute_context_' || char(0)"), r"a mark of vLLM's reads 'execute.*\\x00'"),
        (mark_reads("char(0) || 'execute_context_'"), r"a mark of vLLM's reads '\\x00execute"),
        (mark_reads(f"'{trace.MARK}0(0)_generation_1({10**12})'"), "no requests and tokens"),
        (mark_reads(f"'{trace.MARK}0(0)_generation_1({'9' * 5000})'"), "no requests and tokens"),
        (mark_reads(f"'{trace.MARK}0(0)_generation_-1(3)'"), "no requests and tokens"),
        *[
            ([*without_types(table), f"ALTER TABLE {table} DROP COLUMN {column}"], f"{column}, so")
            for table, columns in (
                (KERNEL, ("start", "end", "deviceId")),
                (MEMCPY, ("start", "end", "deviceId")),
                ("NVTX_EVENTS", ("start", "end", "text")),
                ("StringIds", ("id", "value")),
            )
            for column in columns
        ],
    ],
)
def test_nsys_tells_bad_exports_apart(tmp_path, statements, why):
    path = tmp_path / "it.sqlite"
    nsys_export.write(path)
    with sqlite3.connect(path) as db:
        for s in statements:
            db.execute(s)
    db.close()
    with pytest.raises(SpecamortError, match=rf"it\.sqlite: .*{why}") as e:
        nsys.read(path)
    assert "\n" not in str(e.value)


@pytest.mark.parametrize(
    "statements",
    [
        ["INSERT INTO StringIds VALUES (3000000000, 'x')"],
        ["INSERT INTO StringIds SELECT id + 100000, value FROM StringIds"],
        ["UPDATE NVTX_EVENTS SET end = NULL"],  # still open when the capture ended
        ["INSERT INTO NVTX_EVENTS (start, eventType, text) VALUES (1, 75, 'CCCL')"],
        [  # another library's range, whose text was registered before the capture
            "ALTER TABLE NVTX_EVENTS ADD COLUMN domainId INTEGER DEFAULT 0",
            "INSERT INTO NVTX_EVENTS (start, end, eventType, textId, domainId) "
            "VALUES (1, 2, 59, 77, 5)",
        ],
        ["CREATE INDEX by_value ON StringIds (value)"],
        without_types(KERNEL),
    ],
)
def test_nsys_what_changes_nothing(tmp_path, statements):
    nsys_export.write(tmp_path / "it.sqlite")
    sound = nsys.read(tmp_path / "it.sqlite")
    with sqlite3.connect(tmp_path / "it.sqlite") as db:
        for s in statements:
            db.execute(s)
    db.close()
    assert nsys.read(tmp_path / "it.sqlite") == sound


def test_nsys_tables_that_are_there_but_empty(tmp_path):
    """As `nsys export --lazy=false` makes them."""
    path = tmp_path / "it.sqlite"
    answer = nsys_export.write(path, marks=None)
    with sqlite3.connect(path) as db:
        db.execute(GRAPHS[0])
        db.execute(CALLS[0])
        db.execute("DELETE FROM CUPTI_ACTIVITY_KIND_MEMCPY")
        db.execute("CREATE TABLE NVTX_EVENTS (start INTEGER, end INTEGER, text TEXT)")
    db.close()
    found = nsys.read(path)
    assert found.steps is None
    assert found.sum_ms == pytest.approx((answer.sum_ns - answer.family_ns["copy"]) / 1e6, rel=0.5)


def test_nsys_export_cut_short_or_left_in_the_middle(tmp_path):
    path = tmp_path / "it.sqlite"
    nsys_export.write(path)
    whole = path.read_bytes()
    not_one = b"not a database, but long enough to be looked at" * 9
    for made in (whole[: len(whole) // 2], whole[:-1], whole[:-4096], whole * 2, not_one):
        path.write_bytes(made)
        with pytest.raises(SpecamortError, match=r"it\.sqlite: damaged, cut short or not an nsys"):
            nsys.read(path)
    path.write_bytes(whole)
    for end in ("-journal", "-wal"):
        left = tmp_path / f"it.sqlite{end}"
        left.touch()
        assert nsys.read(path).events  # an empty one is what a reader may leave
        left.write_bytes(b"pages")
        with pytest.raises(SpecamortError, match=f"was interrupted, it.sqlite{end} is still besid"):
            nsys.read(path)
        left.unlink()
    path.write_bytes(whole[:18] + b"\2\2" + whole[20:])  # made in WAL mode, and closed
    assert nsys.read(path).events and [p.name for p in tmp_path.iterdir()] == ["it.sqlite"]


@pytest.mark.parametrize("read", [nsys.read, kineto.read])
def test_what_is_no_file_is_unreadable(tmp_path, read):
    os.mkfifo(tmp_path / "pipe")  # a reader would wait for its writer
    for path, why in (
        (tmp_path / "pipe", "is no file"),
        (tmp_path, "is no file"),
        (tmp_path / "gone", "No such file"),
        (tmp_path / "a\0b", "no file can have that name"),
    ):
        with pytest.raises(Unreadable, match=why):
            read(path)
    assert not (tmp_path / "gone").exists()


@pytest.mark.parametrize("size", [16, 512, 4096, 65536])
def test_nsys_zeros_anywhere_are_an_error_or_change_nothing(tmp_path, size):
    """Also those that leave a page's first byte, its kind, and take its number of rows."""
    path = tmp_path / "it.sqlite"
    nsys_export.write(path)
    whole, sound = path.read_bytes(), nsys.read(path)
    refused = 0
    for page in range(0, len(whole), 4096):
        for at in (page, page + 1, page + 100, page + 2048):
            zeros = bytes(len(whole[at : at + size]))
            path.write_bytes(whole[:at] + zeros + whole[at + size :])
            try:
                assert nsys.read(path) == sound
            except SpecamortError:
                refused += 1
    assert refused > len(whole) / 4096


@pytest.mark.parametrize("table", [KERNEL, MEMCPY])
@pytest.mark.parametrize("chunk", [50, 65536])
def test_nsys_a_damaged_page_is_an_error_and_not_a_shorter_sum(tmp_path, table, chunk, monkeypatch):
    """Wherever in a table it is, and whatever was read of the table before it."""
    monkeypatch.setattr(nsys, "_CHUNK", chunk)
    path = tmp_path / "it.sqlite"
    nsys_export.write(path, steps=300)
    with sqlite3.connect(path) as db:
        (size,) = db.execute("PRAGMA page_size").fetchone()
        starts = [s for (s,) in db.execute(f"SELECT start FROM {table}")]
    db.close()
    whole = path.read_bytes()
    noise = random.Random(0).randbytes(size)
    for start in (starts[0], starts[len(starts) // 2], starts[-1]):
        at = whole.index(start.to_bytes(8, "big")) // size * size  # the page that has this row
        path.write_bytes(whole[:at] + noise + whole[at + size :])
        with pytest.raises(SpecamortError, match=r"it\.sqlite: damaged.* is malformed\); export"):
            nsys.read(path)
    path.write_bytes(whole)
    assert nsys.read(path).steps == 300


@pytest.fixture
def fake_nsys(tmp_path, monkeypatch):
    """Puts an nsys that says one thing alone on the PATH."""

    def make(said: str) -> str:
        it = tmp_path / "nsys"
        it.write_text(f"#!/bin/sh\necho '{said}'\n")
        it.chmod(0o755)
        return str(it)

    monkeypatch.setenv("PATH", str(tmp_path))
    return make


def test_nsys_command(tmp_path, fake_nsys):
    with pytest.raises(SpecamortError, match=r"nsys is not on the PATH; load its module"):
        nsys.profile_command(tmp_path / "out", ["true"])
    it = fake_nsys("")
    command = nsys.profile_command(tmp_path / "out", ["python", "-m", "it"])
    assert command[:2] == [it, "profile"] and command[-3:] == ["python", "-m", "it"]
    assert {"--trace-fork-before-exec=true", "--cuda-graph-trace=node"} <= set(command)


def test_nsys_version(fake_nsys):
    with pytest.raises(SpecamortError, match="nsys is not on the PATH"):
        tracer.require_version()
    for said in ("2024.5.1.113-245134619542v0", "2025.2", "2024.10.1", "2024.2.3.38-2423v0"):
        fake_nsys(f"NVIDIA Nsight Systems version {said}")
        assert tracer.require_version() == said
    for said in ("2023.4.1.97-234133557503v0", "2024.1.1", "2020.5.1.85-5ee086b"):
        fake_nsys(f"NVIDIA Nsight Systems version {said}")
        with pytest.raises(SpecamortError, match=rf"is version {said}, older than 2024\.2; load"):
            tracer.require_version()
    fake_nsys("usage: nsys")
    with pytest.raises(SpecamortError, match="says 'usage: nsys' for its version"):
        tracer.require_version()


@pytest.mark.parametrize(
    "names",
    [
        ["out.nsys-rep"],
        ["out.1.nsys-rep", "out.2.nsys-rep", "out.9.nsys-rep", "out.10.nsys-rep"],
        ["out.0001.nsys-rep", "out.0002.nsys-rep", "out.0010.nsys-rep"],
        ["out_2.nsys-rep", "out_10.nsys-rep"],
        ["out1.nsys-rep", "out2.nsys-rep", "out10.nsys-rep"],
    ],
    ids=str,
)
def test_nsys_reports_by_number(tmp_path, names):
    for i, name in enumerate(reversed(names)):  # copied elsewhere, times tell nothing
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (i, i))
    for other in ("outer.1.nsys-rep", "out.1.sqlite", "another.out.3.nsys-rep", "out.x.nsys-rep"):
        (tmp_path / other).touch()
    assert [p.name for p in nsys.reports(tmp_path / "out")] == names
    (tmp_path / "out.11.qdstrm").touch()
    with pytest.raises(SpecamortError, match="did not finish this report"):
        nsys.reports(tmp_path / "out")


def test_nsys_reports_by_time_where_one_has_no_number(tmp_path):
    names = ["out.nsys-rep", "out.2.nsys-rep", "out.1.nsys-rep"]
    for i, name in enumerate(names):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (i, i))
    assert [p.name for p in nsys.reports(tmp_path / "out")] == names


def event(name, ts, dur, cat="cpu_op", tid=1):
    return {"ph": "X", "name": name, "ts": ts, "dur": dur, "cat": cat, "tid": tid, "pid": 3}


CPU = [
    event("execute_context_1(9)_generation_0(0)", 0, 100, "user_annotation"),
    event("execute_context_0(0)_generation_1(3)", 100, 100, "user_annotation"),
    event("aten::mm", 10, 80),  # prefill: left out
    event("vllm::unified_attention", 110, 50),
    event("aten::mm", 120, 10),  # inside attention: not counted again
    event("aten::mm", 160, 30),
    event("aten::silu", 170, 40, tid=2),  # another thread, 20 of it beside the mm
    {"ph": "M", "name": "process_name"},
]


def test_kineto_of_a_cpu_by_hand(tmp_path):
    path = tmp_path / "it.json.gz"
    path.write_bytes(gzip.compress(json.dumps({"traceEvents": CPU}).encode()))
    found = kineto.read(path)
    assert found.busy_ms == pytest.approx((80 + 20) / 1e3)
    assert found.sum_ms == pytest.approx((50 + 30 + 40) / 1e3)
    assert found.family_ms == pytest.approx({"attention": 0.05, "gemm": 0.03, "other": 0.04})
    assert found.steps == 1 and found.step_tokens == [3]


def test_kineto_of_a_gpu_counts_kernels_and_not_operators(tmp_path):
    path = tmp_path / "it.json"
    on_gpu = [
        # CUDA's copy of the host's mark, over the kernels that were launched under it
        event("execute_context_1(9)_generation_0(0)", 20, 90, "gpu_user_annotation"),
        event("execute_context_0(0)_generation_1(3)", 130, 7, "gpu_user_annotation"),
        event(next(iter(nsys_export.KERNELS)), 30, 70, "kernel"),  # prefill: left out
        event(next(iter(nsys_export.KERNELS)), 130, 5, "kernel"),
        event("Memcpy DtoH (Device -> Pinned)", 133, 4, "gpu_memcpy"),
    ]
    path.write_text(json.dumps({"traceEvents": CPU + on_gpu}))
    found = kineto.read(path)
    assert found.busy_ms == pytest.approx(7 / 1e3) and found.sum_ms == pytest.approx(9 / 1e3)
    assert found.family_ms == pytest.approx({"attention": 0.005, "copy": 0.004})
    assert found.steps == 1 and found.step_tokens == [3] and found.events == 2


def test_kineto_as_torch_writes_it(tmp_path):
    """Marks and operators of a real profile have the categories that are read."""
    torch = pytest.importorskip("torch")
    from torch.profiler import ProfilerActivity, profile, record_function

    with profile(activities=[ProfilerActivity.CPU]) as made:
        for mark in ("1(9)_generation_0(0)", "0(0)_generation_1(3)", "0(0)_generation_1(3)"):
            with record_function(f"execute_context_{mark}"):
                torch.mm(torch.ones(64, 64), torch.ones(64, 64)).argmax()
    made.export_chrome_trace(str(tmp_path / "it.json"))
    found = kineto.read(tmp_path / "it.json")
    assert found.steps == 2 and found.step_tokens == [3, 3]
    assert found.family_ms["gemm"] > 0 and found.family_ms["sampling"] > 0


def kineto_of(tmp_path, content):
    path = tmp_path / ("it.json.gz" if content[:2] == b"\x1f\x8b" else "it.json")
    path.write_bytes(content)
    return kineto.read(path)


def test_kineto_without_a_decode_step(tmp_path):
    found = kineto_of(tmp_path, json.dumps({"traceEvents": [CPU[0], CPU[2]]}).encode())
    assert found.steps == 0 and found.busy_ms == 0


def test_kineto_as_a_gpu_and_other_writers_have_it(tmp_path):
    """Epoch microseconds, marks and flows without dur, cat or tid, several gzip members."""
    t = 1.7e15
    others: list[dict] = [
        {"ph": "M", "name": "process_name", "pid": "Spans"},
        {"ph": "i", "s": "g", "name": "Record Window End", "pid": "", "tid": "", "ts": t},
        {"ph": "s", "id": 1, "pid": 3, "tid": 1, "ts": t, "cat": "ac2g", "name": "ac2g"},
        {"ph": "f", "id": 1, "pid": 0, "tid": 7, "ts": t, "cat": "ac2g", "name": "ac2g"},
        event("PyTorch Profiler (0)", None, None, "Trace"),  # of what is not read, not its times
        event("aten::mm", t + 5.25, 10.5, "kernel") | {"args": {"x": [float("nan"), 9**99]}},
    ]
    mark = event(f"{trace.MARK}0(0)_generation_1(3)", t, 99, "user_annotation")
    made = {"schemaVersion": 1, "deviceProperties": [{"id": 0}], "traceEvents": [*others, mark]}
    text = json.dumps(made, indent=2).replace("\n", "\r\n").encode() + b" \n"
    for packed in (text, gzip.compress(text[:300]) + gzip.compress(text[300:]) + bytes(512)):
        found = kineto_of(tmp_path, packed)
        assert found.busy_ms == 10.5e-3 and found.family_ms == {"gemm": 10.5e-3}
        assert found.steps == 1


def test_kineto_reads_values_wherever_its_pieces_end(tmp_path, monkeypatch):
    text = json.dumps({"a": 12345, "traceEvents": CPU, "b": "x y", "c": 1.5e3}, indent=1).encode()
    whole = kineto_of(tmp_path, text)
    for size in (1, 2, 7):
        monkeypatch.setattr(kineto, "_READ", size)
        assert kineto_of(tmp_path, text) == whole


SOUND = json.dumps({"traceEvents": CPU})
PACKED = gzip.compress(SOUND.encode(), mtime=0)  # two collections name one test alike


@pytest.mark.parametrize(
    "content",
    [SOUND[:n].encode() for n in (0, 1, 5, 16, 18, 60, 400, len(SOUND) - 1)]
    + [PACKED[:n] for n in (2, 9, 100, len(PACKED) - 1)]
    + [
        PACKED * 2,
        PACKED + b"x",
        PACKED[:-8] + bytes(8),  # another checksum
        PACKED[:60] + bytes(30) + PACKED[90:],
        SOUND.encode() * 2,
        SOUND.encode("utf-16"),
        SOUND.replace("aten", "\xe9").encode("latin-1"),
        bytes(500),
        *(f'{{"traceEvents": {v}}}'.encode() for v in ("[1 2]", "[1,]", "[" * 10**5, "nul")),
        SOUND.replace('"ts": 110', f'"ts": {"1" * 5000}').encode(),
        *(x.encode() for x in ("[]", "null", "5", "{5: 3}", '{"a" 1}', '{"a": 1 "b": 2}')),
    ],
    ids=lambda c: f"{len(c)} {c[:9]}",
)
def test_kineto_cut_short_or_no_json(tmp_path, content):
    with pytest.raises(SpecamortError, match=r"it\.json(\.gz)?: .*trace again") as e:
        kineto_of(tmp_path, content)
    assert "\n" not in str(e.value)


@pytest.mark.parametrize("filling", ["", '"', "[", "{", "9", "0,", "{},"])
def test_kineto_of_millions_of_nothing_is_refused_at_once(tmp_path, filling):
    bomb = '{"traceEvents": [' + filling[:1] + (filling or " ") * (40 * 2**20)
    with pytest.raises(SpecamortError, match=r"it\.json\.gz: "):
        kineto_of(tmp_path, gzip.compress(bomb.encode(), 1))


def changed(**keys):
    """The sound trace and its attention operator once more, with other keys; `...` is none."""
    again = CPU[3] | keys
    return [*CPU, {k: v for k, v in again.items() if v is not ...}]


NO_TIME = (None, "5", True, [1], {}, -1, 10**400, 1e300, 2**63, *map(float, ("nan", "inf", "-inf")))


@pytest.mark.parametrize(
    ("events", "why"),
    [(changed(**{key: v}), f"whose {key} is no number") for key in ("ts", "dur") for v in NO_TIME]
    + [
        (changed(**{key: v}), f"whose {key} is no whole number or text")
        for key in ("pid", "tid")
        for v in (None, True, 1.5, [1], {}, ...)
    ]
    + [(changed(**{k: v}), "name or cat") for k in ("name", "cat") for v in (None, 5, ["x"], ...)]
    + [(changed(ph=v), "no event with a ph") for v in (None, 5, ["X"], ...)]
    + [([*CPU, v], "no event with a ph") for v in (None, 5, "x", True, [1], {})]
    + [(v, "traceEvents is no list") for v in (None, 5, "abc", True, {})]
    + [(changed(cat="kernel", pid=v), "no device of 0 to 1023") for v in ("x", -1, 1024, 10**30)]
    + [
        ([], "no device activity"),
        (CPU[:2], "no device activity"),
        ([CPU[1], CPU[2]], "no device activity in its decode steps"),
        (CPU[2:], "none of vLLM's marks"),
        ([*CPU, CPU[1]], "one of them twice"),
        (changed(dur=3e13), "span more than a day"),
        (changed(ts=1.7e15), "span more than a day"),
        (changed(cat="user_annotation", dur=3e13), "span more than a day"),
        ([*CPU[:2], event("", 110, 5)], "no kernel has a name"),
        (changed(name="x" * 100_001, tid=9), "damaged or longer than 100000 characters"),
        *(
            (changed(cat="user_annotation", name=f"{trace.MARK}0(0)_generation_{what}"), "a mark")
            for what in (f"1({'9' * 5000})", f"1({10**12})", "1(-3)", "1()", f"{10**12}(3)", "x")
        ),
    ],
    ids=lambda v: str(v[-1:])[:40] if isinstance(v, list) else str(v)[:40],
)
def test_kineto_tells_bad_traces_apart(tmp_path, events, why):
    with pytest.raises(SpecamortError, match=rf"it\.json: .*{why}") as e:
        kineto_of(tmp_path, json.dumps({"traceEvents": events}).encode())
    assert "\n" not in str(e.value)


def test_kineto_has_its_events_once(tmp_path):
    for text, why in (
        ("{}", "has no traceEvents"),
        (f'{SOUND[:-1]}, "traceEvents": []}}', "twice"),
    ):
        with pytest.raises(SpecamortError, match=why):
            kineto_of(tmp_path, text.encode())


def run(steps, wall, busy=None, rows=1, seen=None):
    traced = None
    if busy is not None:
        seen = steps if seen is None else seen
        traced = {
            "steps": seen,
            "step_tokens": [rows] * seen,
            "busy_ms": busy,
            "sum_ms": busy * 1.1,
        }
        traced["family_ms"] = {"gemm": busy * 0.8, "other": busy * 0.3}
    return {"decode_steps": steps, "wall_ms": wall, "trace": traced}


def test_a_step_by_hand():
    """16 - 1 = 15 steps; 300 - 30 = 270 ms of wall time, 220 - 40 = 180 ms of device time."""
    found = step.per_step(run(1, 30.0, 40.0), run(16, 300.0, 220.0), tokens_per_step=1)
    assert found["step_ms"] == 18 and found["device_ms"] == 12 and found["host_ms"] == 6
    assert found["device_sum_ms"] == pytest.approx(13.2)
    assert found["family_ms"] == pytest.approx({"gemm": 9.6, "other": 3.6})
    assert step.per_step(run(0, 0.0), run(10, 50.0), tokens_per_step=1) == {"step_ms": 5}


@pytest.mark.parametrize(
    ("short", "long", "why"),
    [
        (run(4, 9.0, 5.0), run(4, 9.0, 5.0), "there is no step to take apart"),
        (run(1, 9.0, 5.0), run(4, 8.0, 6.0), "wall time of 4 steps is 8.000 ms, of 1 steps 9.000"),
        (run(1, 1.0, 7.0), run(4, 9.0, 6.0), "device time of 4 steps.*noise is larger"),
        (run(1, 1.0, 1.0), run(4, 9.0, 60.0), "the device is busy 19.667 ms in a step of 2.667"),
        (run(1, 1.0, 1.0), run(4, 9.0, 6.0, seen=3), "shows 3 decode steps, the engine made 4"),
        (run(1, 1.0, 1.0), run(4, 9.0, 6.0, rows=3), "computed other than 1 tokens"),
    ],
)
def test_pairs_that_are_refused(short, long, why):
    with pytest.raises(ValueError, match=why):
        step.per_step(short, long, tokens_per_step=1)
