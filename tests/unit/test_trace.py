"""Traces: what is in them, against answers worked another way, and one step by differencing."""

import gzip
import json
import os
import sqlite3
import tempfile
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import nsys_export
from specamort import kineto, nsys, nsys_scan, trace
from specamort.errors import SpecamortError
from specamort.nsys_scan import OutOfOrder


def test_union_by_hand():
    # [0,10] and [5,7] inside it, a gap, [20,30] and [25,40] overlapping: 10 + 20
    assert trace.union(np.array([5, 0, 25, 20]), np.array([7, 10, 40, 30])) == 30
    assert trace.union(np.array([]), np.array([])) == 0


@given(st.lists(st.tuples(st.integers(0, 500), st.integers(0, 60)), min_size=1, max_size=40))
def test_union_counts_every_covered_nanosecond_once(spans):
    start = np.array([s for s, _ in spans])
    end = start + np.array([n for _, n in spans])
    assert trace.union(start, end) == nsys_export.covered(list(zip(start, end, strict=True)))


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("_C::onednn_mm", "gemm"),
        ("aten::addmm", "gemm"),
        ("void cutlass::Kernel2<cutlass_80_wmma_tensorop_bf16>", "gemm"),
        ("vllm::unified_attention_with_output", "attention"),
        ("flash_fwd_splitkv_kernel", "attention"),
        ("fused_add_rms_norm_kernel", "norm"),
        ("_C::greedy_argmax", "sampling"),
        ("aten::to", "copy"),
        ("aten::silu", "other"),
    ],
)
def test_families(name, family):
    assert trace.family(name) == family


@pytest.fixture(params=["one pass", "in SQL"])
def way(request, monkeypatch):
    """Both ways through an export must give the same."""
    if request.param == "in SQL":
        monkeypatch.setattr(nsys_scan, "scan", lambda *a: (_ for _ in ()).throw(OutOfOrder))
    else:
        monkeypatch.setattr(os, "cpu_count", lambda: 3)


SETTINGS = [{"version": v} for v in nsys_export.VERSIONS]
SETTINGS += [
    {"devices": 2, "overlap": 0.5},
    {"processes": 3, "shuffled": True},
    {"marks": "textId", "rows": 7},
    {"overlap": 0.0},
    {"overlap": 0.9, "per_step": 700, "devices": 2},
]


@pytest.mark.parametrize("options", SETTINGS, ids=str)
def test_nsys_export(tmp_path, options, way):
    path = tmp_path / "it.sqlite"
    answer = nsys_export.write(path, **options)
    found = nsys.read(path)
    assert found.busy_ms == pytest.approx(answer.busy_ns / 1e6, rel=1e-12)
    assert found.sum_ms == pytest.approx(answer.sum_ns / 1e6, rel=1e-12)
    assert found.family_ms == pytest.approx({k: v / 1e6 for k, v in answer.family_ns.items()})
    assert found.events == answer.events
    assert found.steps == 4 and found.rows == [options.get("rows", 1)] * 4
    if options.get("overlap", 1):
        assert found.busy_ms < found.sum_ms


def test_one_pass_refuses_what_is_out_of_order(tmp_path):
    pytest.importorskip("numba")
    tables = {"CUPTI_ACTIVITY_KIND_KERNEL": "shortName", "CUPTI_ACTIVITY_KIND_MEMCPY": "2000"}
    path = tmp_path / "it.sqlite"
    answer = nsys_export.write(path)
    sums, busy, rows = nsys_scan.scan(path, tables, 2001)
    assert (sums.sum(), busy, rows) == (answer.sum_ns, answer.busy_ns, answer.events)
    path.unlink()
    nsys_export.write(path, shuffled=True)
    with pytest.raises(OutOfOrder):
        nsys_scan.scan(path, tables, 2001)


ROW = st.tuples(st.integers(0, 90), st.integers(0, 30), st.integers(0, 1), st.integers(0, 3))


@settings(max_examples=60, deadline=None)
@given(st.lists(ROW, max_size=25), st.lists(ROW, max_size=6), st.booleans(), st.integers(1, 4))
def test_one_pass_agrees_with_sql_or_refuses(kernels, copies, ordered, parts):
    """Any rows, any cut: the same sums and union as by sorting, never a wrong one."""
    tables = {"CUPTI_ACTIVITY_KIND_KERNEL": "shortName", "CUPTI_ACTIVITY_KIND_MEMCPY": "4"}
    with tempfile.TemporaryDirectory() as d:
        path = Path(d) / "it.sqlite"
        with sqlite3.connect(path) as db:
            for table, rows in zip(tables, (kernels, copies), strict=True):
                db.execute(f"CREATE TABLE {table} (start, end, deviceId, shortName)")
                rows = sorted(rows) if ordered else rows
                made = [(s, s + n, device, name) for s, n, device, name in rows]
                db.executemany(f"INSERT INTO {table} VALUES (?, ?, ?, ?)", made)
            by_name, busy, events = nsys._in_sql(db, tables)
        with mock.patch.object(os, "cpu_count", lambda: parts):
            try:
                sums, fast_busy, rows = nsys_scan.scan(path, tables, 5)
            except OutOfOrder:
                assert not ordered
                return
    assert (fast_busy, rows) == (busy, events)
    assert {i: n for i, n in enumerate(sums) if n} == {i: n for i, n in by_name.items() if n}


def test_nsys_without_marks_counts_no_steps(tmp_path):
    nsys_export.write(tmp_path / "it.sqlite", marks=None)
    assert nsys.read(tmp_path / "it.sqlite").steps is None


def test_nsys_tells_bad_exports_apart(tmp_path, way):
    path = tmp_path / "it.sqlite"
    nsys_export.write(path)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(SpecamortError, match=r"it\.sqlite: cut short or not an nsys export"):
        nsys.read(path)
    path.write_bytes(b"not a database, but long enough to be looked at" * 10)
    with pytest.raises(SpecamortError, match="cut short or not an nsys export"):
        nsys.read(path)

    def after(*statements):
        path.write_bytes(whole)
        with sqlite3.connect(path) as db:
            for s in statements:
                db.execute(s)
        return pytest.raises(SpecamortError, match=why)

    why = "holds no kernel; the traced process did no work"
    with after("DROP TABLE CUPTI_ACTIVITY_KIND_KERNEL"):
        nsys.read(path)
    why = "holds CUDA graphs as wholes; trace with --cuda-graph-trace=node"
    graphs = "CREATE TABLE CUPTI_ACTIVITY_KIND_GRAPH_TRACE (start INTEGER, end INTEGER)"
    with after("DROP TABLE CUPTI_ACTIVITY_KIND_KERNEL", graphs):
        nsys.read(path)
    why = "no table StringIds; it is not an nsys export"
    with after("DROP TABLE StringIds"):
        nsys.read(path)
    why = "kernels that end before they start"
    with after("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET end = start - 5 WHERE rowid = 3"):
        nsys.read(path)


def test_nsys_command_and_unfinished_reports(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SpecamortError, match=r"nsys is not on the PATH; load its module"):
        nsys.profile_command(tmp_path / "out", ["true"])
    (tmp_path / "nsys").write_text("#!/bin/sh\n")
    (tmp_path / "nsys").chmod(0o755)
    command = nsys.profile_command(tmp_path / "out", ["python", "-m", "it"])
    assert command[:2] == [str(tmp_path / "nsys"), "profile"] and command[-3:] == [
        "python",
        "-m",
        "it",
    ]
    assert {"--trace-fork-before-exec=true", "--cuda-graph-trace=node"} <= set(command)
    for n in (1, 2, 10):
        (tmp_path / f"out.{n}.nsys-rep").touch()
    assert [p.name for p in nsys.reports(tmp_path / "out")] == [
        f"out.{n}.nsys-rep" for n in (1, 2, 10)
    ]
    (tmp_path / "out.11.qdstrm").touch()
    with pytest.raises(SpecamortError, match="did not finish this report"):
        nsys.reports(tmp_path / "out")


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
    assert found.steps == 1 and found.rows == [3]


def test_kineto_of_a_gpu_counts_kernels_and_not_operators(tmp_path):
    path = tmp_path / "it.json"
    kernels = [event("nvjet_gemm", 130, 5, "kernel"), event("Memcpy DtoH", 133, 4, "gpu_memcpy")]
    path.write_text(json.dumps({"traceEvents": CPU + kernels}))
    found = kineto.read(path)
    assert found.busy_ms == pytest.approx(7 / 1e3) and found.sum_ms == pytest.approx(9 / 1e3)
    assert found.family_ms == pytest.approx({"gemm": 0.005, "copy": 0.004})


def test_kineto_tells_bad_traces_apart(tmp_path):
    path = tmp_path / "it.json.gz"
    whole = gzip.compress(json.dumps({"traceEvents": CPU}).encode())
    for cut in (5, len(whole) // 2, len(whole) - 3):
        path.write_bytes(whole[:cut])
        with pytest.raises(SpecamortError, match=r"it\.json\.gz: (cut short|not a Kineto)"):
            kineto.read(path)
    path = tmp_path / "it.json"
    path.write_text(json.dumps({"traceEvents": [CPU[0], CPU[2]]}))
    assert kineto.read(path).steps == 0 and kineto.read(path).busy_ms == 0
    for text, why in [
        ("[]", "not a Kineto trace"),
        (json.dumps({"traceEvents": CPU[:2]}), "no device activity"),
        (
            json.dumps({"traceEvents": [CPU[1], event("aten::mm", 105, -1)]}),
            "end before they start",
        ),
    ]:
        path.write_text(text)
        with pytest.raises(SpecamortError, match=why):
            kineto.read(path)


def run(steps, wall, busy=None, rows=1, seen=None):
    traced = None
    if busy is not None:
        seen = steps if seen is None else seen
        traced = {"steps": seen, "rows": [rows] * seen, "busy_ms": busy, "sum_ms": busy * 1.1}
        traced["family_ms"] = {"gemm": busy * 0.8, "other": busy * 0.3}
    return {"decode_steps": steps, "wall_ms": wall, "trace": traced}


def test_a_step_by_hand():
    """16 - 1 = 15 steps; 300 - 30 = 270 ms of wall time, 220 - 40 = 180 ms of device time."""
    found = trace.per_step(run(1, 30.0, 40.0), run(16, 300.0, 220.0), rows=1)
    assert found["step_ms"] == 18 and found["device_ms"] == 12 and found["host_ms"] == 6
    assert found["device_sum_ms"] == pytest.approx(13.2)
    assert found["family_ms"] == pytest.approx({"gemm": 9.6, "other": 3.6})
    assert trace.per_step(run(0, 0.0), run(10, 50.0), rows=1) == {"step_ms": 5}


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
    with pytest.raises(SpecamortError, match=why):
        trace.per_step(short, long, rows=1)
