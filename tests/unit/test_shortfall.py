import pandas as pd
import pytest

from specamort.analysis.shortfall import shortfall


@pytest.fixture
def parts(local):
    """Cells at gamma 6, tau 6, d 0.5 on half of the steps: verified, a speedup of 6 / 1.25."""
    columns = ["platform", "workload", "batch", "gamma", "ideal", "tau", "coverage", "speedup"]
    rows = [
        ("cpu-bf16", "repeat", 1, 0, 1, 1.0, 0.0, 1.0),
        ("cpu-bf16", "repeat", 1, 6, 7, 6.0, 0.5, 4.1),
        ("cpu-fp32", "repeat", 1, 6, 7, 6.0, 0.5, 5.5),
        ("cpu-bf16", "open", 1, 6, 7, 1.0, 0.5, 0.8),
    ]
    cells = pd.DataFrame(rows, columns=columns).assign(origin="measured")
    cells = cells.assign(speedup_low=cells["speedup"] - 1, speedup_high=cells["speedup"] + 1)
    d = pd.DataFrame({"platform": ["cpu-bf16", "cpu-fp32"], "batch": 1, "gamma": 6, "d": 0.5})
    d["increment_ms"] = 5.0
    return shortfall(local, cells, d.assign(origin="synthetic")).set_index("platform")


def test_the_gap_by_hand(parts):
    assert parts.loc["cpu-bf16"].drop(["origin", "workload"]).to_dict() == pytest.approx(
        {"batch": 1, "gamma": 6, "ideal": 7, "tau": 6, "coverage": 0.5, "d": 0.5}
        | {"speedup_after_verify": 4.8, "speedup": 4.1, "speedup_low": 3.1, "speedup_high": 5.1}
        | {"acceptance_loss": 1, "verify_loss": 1.2, "residual_loss": 0.7}
        | {"speedup_pct": 410 / 7, "acceptance_loss_pct": 100 / 7, "verify_loss_pct": 120 / 7}
        | {"residual_loss_pct": 10}
    )


def test_a_verify_cost_predicted_too_large_is_a_negative_residual(parts):
    held_out = parts.loc["cpu-fp32"]
    assert held_out["verify_loss"] == pytest.approx(1.2)
    assert held_out["residual_loss"] == pytest.approx(-0.7)
    assert held_out["residual_loss_pct"] == pytest.approx(-10)


def test_speculative_cells_of_repeat_workloads_only_with_both_origins(parts):
    assert parts["workload"].to_list() == ["repeat", "repeat"]
    assert parts["gamma"].to_list() == [6, 6]
    assert set(parts["origin"]) == {"measured synthetic"}


def test_the_parts_add_up_to_the_ideal(parts):
    losses = ["acceptance_loss", "verify_loss", "residual_loss"]
    assert parts[["speedup", *losses]].sum(axis=1).to_list() == pytest.approx([7, 7])
    shares = parts[[f"{part}_pct" for part in ("speedup", *losses)]]
    assert shares.sum(axis=1).to_list() == pytest.approx([100, 100])
