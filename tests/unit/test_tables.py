import pytest

import synthetic
from specamort.analysis import (
    tables,
)
from specamort.errors import SpecamortError
from specamort.records import record
from specamort.study.settings import digest


def test_the_device_confirms_a_right_roofline(made):
    """The synthetic traces verify at the predicted cost."""
    both = made["device_verify_overhead"].query("gamma > 0")
    assert both["d_measured"].to_list() == pytest.approx(both["d_predicted"].to_list())
    assert both["step_error_pct"].abs().max() < 1e-9


def test_vendor_figures_by_hand(made):
    """H100, N = 1, gamma 6: the weights, read once, dominate; activations add little."""
    v = made["vendor_verify_overhead"].set_index(["gpu", "batch", "gamma"])
    assert len(v) == 12 and (v["study_at_most"] == 0.023).all()
    one = v.loc[("H100 SXM 80GB", 1, 6)]
    weights = 32 * (4096 * 6144 + 4096 * 4096 + 3 * 4096 * 14336) + 4096 * 128256
    base_bytes = 2 * weights + 32 * 2 * 2 * 8 * 128 * 1024
    assert one["device_ms"] == pytest.approx(1e3 * base_bytes / 3.35e12 / 0.7, rel=0.01)
    assert 0 < one["d"] < 0.01


def test_records_out_of_place_are_refused(local, tmp_path):
    synthetic.write_study(local, tmp_path)
    home = tmp_path / "raw/timing/cpu-bf16/r0"
    one = home / f"{local.cells[1]}.json"
    whole = record.read(one)

    def refused(change, why):
        record.write(one, {**whole, **change})
        with pytest.raises(SpecamortError, match=why):
            tables.timing_records(local, tmp_path)

    refused({"cell": whole["cell"] | {"replicate": 1}}, r"cell\.replicate: is 1, its place is")
    longer = whole["settings"] | {"seed": 7}
    refused({"settings": longer, "settings_hash": digest(longer)}, "measured with other settings")
    moved = synthetic.provenance(local, "cpu-bf16", "another-gpu")
    refused({"provenance": moved}, "provenance.device.uuid: is 'another-gpu'")
    one.unlink()
    with pytest.raises(SpecamortError, match="cannot be read"):
        tables.timing_records(local, tmp_path)
