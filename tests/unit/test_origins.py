import pandas as pd

import cases
from cases import cells_of
from specamort.analysis import (
    calibration,
    origins,
    predictions,
)


def test_every_table_says_whose_numbers_it_holds(made):
    assert made.pop("categories").empty  # of prompts from a file alone
    for name, table in made.items():
        expected = "datasheet" if name == "vendor_verify_overhead" else "synthetic"
        assert set(table["origin"]) == {expected}, name


def test_a_row_made_of_two_origins_carries_both():
    one = pd.DataFrame({"k": [1, 2], "origin": ["measured", "rehearsal"]})
    other = pd.DataFrame({"k": [1, 2], "origin": ["synthetic", "rehearsal"]})
    both = origins.merged(one, other, on=["k"])
    assert both["origin"].to_list() == ["measured synthetic", "rehearsal"]
    assert origins.not_measured([both, one]) == "rehearsal synthetic"
    assert origins.not_measured([one[:1]]) == ""


def test_what_is_calibrated_on_rehearsed_cells_is_no_measurement(local):
    """The held-out cells are measured, their prediction is not."""
    table, d = cells_of(local, lambda gamma: 0.0)
    table["origin"], d["origin"] = "measured", "measured"
    table.loc[table["platform"] == local.calibration.name, "origin"] = "rehearsal"
    calibrated = calibration.acceptance(local, table)
    host = calibration.host_terms(local, table, calibrated, d)
    assert set(calibrated["origin"]) == {"rehearsal"}
    assert set(host["origin"]) == {"measured rehearsal"}
    predicted = cases.predicted(local, table, calibrated, d, host)
    held = predicted.loc[predicted["held_out"], "origin"]
    assert set(held) == {"measured rehearsal"}
    assert set(predictions.errors(predicted)["origin"]) == {"measured rehearsal"}
