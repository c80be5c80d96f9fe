"""Steps, floors and the device's d from trace records made by hand."""

import pandas as pd
import pytest

import synthetic
from specamort.analysis import decomposition
from specamort.study.study_file import read_study


@pytest.fixture
def study(root):
    return read_study(root / "config/study.yaml")


def run(steps, step_ms, device_ms=None):
    """A run whose steps take `step_ms`; traced if `device_ms` is given."""
    seen = None
    if device_ms is not None:
        busy = steps * device_ms
        seen = {"steps": steps, "step_tokens": [1] * steps, "busy_ms": busy, "sum_ms": busy}
        seen |= {"tracer": "nsys", "family_ms": {"gemm": busy}, "events": steps}
    return {"decode_steps": steps, "wall_ms": steps * step_ms, "trace": seen}


def traced(*pairs, **more):
    """A record of one cell; per pair a step's wall time untraced, traced, and its device time."""
    cell = dict(platform="p", model="m", context_tokens=8, batch=1, gamma=0)
    made = [
        {
            "untraced": [run(n, untraced) for n in (1, 3)],
            "traced": [run(n, step, device) for n in (1, 3)],
        }
        for untraced, step, device in pairs
    ]
    t = {**cell, "weights": "trained", "tracer": "nsys", "tokens_per_step": 1, "pairs": made}
    return {"origin": "synthetic", "trace": t, **more}


def test_the_tracers_own_cost_is_not_the_hosts():
    """Of an untraced step of 10 ms the device is busy 6; the tracer makes the step 12."""
    one = decomposition.pairs([traced((10.0, 12.0, 6.0))]).iloc[0]
    assert one["step_ms"] == 10 and one["traced_step_ms"] == 12
    assert one["device_ms"] == 6 and one["host_ms"] == 4
    assert one["tracer_cost_pct"] == pytest.approx(20)
    assert one["exclusions"] == ""


def test_a_steps_medians_add_up_and_keep_every_records_mark():
    """Hosts of 4, 7 and 9 ms by pairs; the median step of 11 has 6 on the device, so 5."""
    hot = {"before": synthetic.reading(), "after": synthetic.reading(throttle_reasons=0x40)}
    shared = {"before": synthetic.reading(other_processes=[7]), "after": synthetic.reading()}
    pairs = decomposition.pairs(
        [
            traced((10.0, 12.0, 6.0), (11.0, 12.0, 4.0), device_state=hot),
            traced((15.0, 15.0, 6.0), device_state=shared, origin="measured"),
        ]
    )
    assert pairs["exclusions"].to_list() == ["throttled", "throttled", "shared"]
    step = decomposition.steps(pairs).iloc[0]
    assert step[["step_ms", "host_ms_low", "host_ms", "host_ms_high"]].to_list() == [11, 4, 5, 9]
    assert step["pairs"] == 3 and step["exclusions"] == "shared throttled"
    assert step["origin"] == "measured synthetic"


def steps(*rows):
    """Steps of the local study: (platform, context, batch, gamma, host)."""
    keys = ("platform", "context_tokens", "batch", "gamma", "host_ms")
    model = {"model": "smollm2-135m-instruct", "origin": "synthetic"}
    return pd.DataFrame([dict(zip(keys, r, strict=True)) | model for r in rows])


def test_the_floor_is_the_calibration_platforms_at_the_profiles_context(study):
    made = steps(
        *[("h100", 2048, 1, 0, 5.8), ("h200", 2048, 1, 0, 5.0)],
        *[("h100", 1024, 1, 0, 4.0), ("h200", 1024, 1, 0, 3.0)],
        *[("h100", 1024, 4, 0, 77), ("h100", 1024, 1, 6, 88)],
    ).assign(model=study.model.name)
    other = steps(("h100", 2048, 1, 0, 99))
    f = decomposition.floors(study, pd.concat([made, other])).set_index("platform")
    assert f["floor_ms"].to_dict() == {"h100": 5.8, "h200": 5.8}
    assert f["own_floor_ms"].to_dict() == {"h100": 4.0, "h200": 3.0}
    none = decomposition.floors(study, made[:0])
    assert len(none) == 2 and none[["floor_ms", "own_floor_ms"]].isna().all(axis=None)


def test_the_device_is_told_at_every_batch_in_shares_and_in_milliseconds(local):
    """From 4 to 5 ms at N = 1 and from 5 to 10 at N = 4: d is 0.25 and 1."""
    forward = {(1, 0): 4.0, (1, 2): 5.0, (4, 0): 5.0, (4, 2): 10.0}
    pairs = pd.DataFrame(
        [
            dict(origin="synthetic", platform="cpu-bf16", model=local.model.name, batch=n, gamma=g)
            | dict(context_tokens=256, device_ms=ms + 1 + drift, sampling_ms=1.0)
            for (n, g), ms in forward.items()
            for drift in (-0.5, 0, 0.5)
        ]
    )
    predicted = pd.DataFrame({"batch": [1, 1, 4, 4], "gamma": [0, 2] * 2, "d": [0, 0.25, 0, 1.5]})
    predicted["device_ms"], predicted["roofline_ms"] = [3.0, 3.75, 5.0, 12.5], 2.0
    predicted = predicted.assign(platform="cpu-bf16", origin="rehearsal")
    both = decomposition.device_verify_overhead(local, pairs, predicted)
    d = both[both["gamma"] > 0].set_index("batch")
    assert d["d_measured"].to_dict() == {1: 0.25, 4: 1.0}
    assert d.loc[1, "d_measured_low"] == pytest.approx(4.5 / 4.5 - 1)
    assert d.loc[4, "d_measured_high"] == pytest.approx(10.5 / 4.5 - 1)
    assert d["step_error_pct"].to_dict() == {1: 0, 4: pytest.approx(25)}
    assert set(d["origin"]) == {"rehearsal synthetic"}
    ms = both.set_index(["batch", "gamma"])
    assert ms["traced_ms"].to_dict() == forward
    assert ms["passes_error_pct"].to_dict() == {(1, 0): -25, (1, 2): -25, (4, 0): 0, (4, 2): 25}
    assert ms["roofline_error_pct"].to_list() == [-50, -60, -60, -80]
    shares = [c for c in both if c.startswith("d_")] + ["step_error_pct"]
    assert both.loc[both["gamma"] == 0, shares].isna().all(axis=None)
