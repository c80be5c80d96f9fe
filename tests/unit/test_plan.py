"""The planner against answers worked by hand."""

import json
import subprocess
import sys
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import synthetic
from specamort import cli
from specamort.analysis import tables
from specamort.errors import SpecamortError
from specamort.model.law import Law
from specamort.planner import plan
from specamort.planner.acceptance import Acceptance
from specamort.planner.calibration import Calibration
from specamort.planner.server_metrics import ServerMetrics

FREE = Calibration(t_base_ms=10.0, d={6: 0.0})


def test_by_hand():
    """t_base 10, d(2) 0.2, h 1, draft 0.5 a token, c 0.5, a = (0.8, 0.4): per step
    10 + 0.5 (2 + 1) + 1 = 12.5 ms for 1 + 0.5 x 1.2 = 1.6 tokens."""
    c = Calibration(10.0, {2: 0.2}, h_ms=1.0, draft_ms=0.5)
    a = Acceptance((0.8, 0.4), coverage=0.5, measured_to=2)
    two = plan.plan(c, a, max_gamma=2).choices[2]
    assert two.pot_ms == pytest.approx(7.8125) and two.speedup == pytest.approx(1.28)
    # half the steps must save 2.5 ms: half a token of 10 ms each
    assert two.break_even == pytest.approx(0.5)
    at_break_even = plan.pot_ms(c, a, 2, two.break_even)
    assert at_break_even == pytest.approx(10.0)
    one = plan.plan(c, a, max_gamma=2).choices[1]
    # 10 + 0.5 (1 + 0.5) + 1 = 11.75 ms for 1.4 tokens; one more token: to 7.8125
    assert one.pot_ms == pytest.approx(11.75 / 1.4)
    assert one.next_token_ms == pytest.approx(11.75 / 1.4 - 7.8125)


def test_it_is_the_studys_equation_where_that_holds():
    from specamort.model import equation

    c = Calibration(9.4, {6: 0.022})
    for alpha in (0.0, 0.3, 1.0):
        a = Acceptance((alpha,) * 6, measured_to=6)
        mine = plan.plan(c, a, max_gamma=6).choices[6].pot_ms
        assert mine == pytest.approx(equation.pot(9.4, 0.022, alpha, 6))


def test_a_law_of_a_study_by_hand():
    """t_base 10, 2 ms more on the device of which half show, h 1 a step and 0.5 a verify step; of
    two sequences each has a draft every second step, so that 3 of 4 steps verify."""
    law = Law(0.5, {"step": 1.0, "verify": 0.5})
    c = Calibration(10.0, increment_ms={2: 2.0}, law=law, batch=2)
    a = Acceptance((1.0, 1.0), coverage=0.5, measured_to=2)
    two = plan.plan(c, a, max_gamma=2).choices[2]
    assert two.pot_ms == pytest.approx((10 + 0.5 * 0.5 * 2 + 1 + 0.75 * 0.5) / 2)


def test_free_drafts_that_are_accepted_want_the_longest():
    answer = plan.plan(FREE, Acceptance((1.0,) * 6, measured_to=6), max_gamma=6)
    assert answer.best.gamma == 6 and answer.worth_it
    assert answer.best.speedup == pytest.approx(7)


def test_costly_refused_drafts_are_turned_off():
    c = Calibration(10.0, {2: 0.3, 6: 0.9}, gammas=(2, 6))
    answer = plan.plan(c, Acceptance((0.02, 0.0), measured_to=2))
    assert answer.best.gamma == 0 and not answer.worth_it
    assert "Do not speculate" in answer.advice and "Its drafts are refused" in answer.advice


def test_a_silent_drafter_is_told_from_a_refused_one():
    c = Calibration(10.0, {1: 0.9}, h_ms=1.0)
    silent = plan.plan(c, Acceptance((0.9,), coverage=0.05, measured_to=1), 1).advice
    assert "silent on 95% of the steps, though what it proposes holds" in silent
    both = plan.plan(c, Acceptance((0.1,), coverage=0.3, measured_to=1), 1).advice
    assert "silent on 70% of the steps, and refused on most others" in both
    dear = plan.plan(replace(c, draft_ms=20.0), Acceptance((0.9,), measured_to=1), 1).advice
    assert "costs more than they save" in dear


def test_a_gain_within_the_calibrations_own_error_is_none():
    """1.04x is no reason to speculate where predictions are good to 6%; to 1%, it is."""
    c = Calibration(10.0, {1: 0.25})
    a = Acceptance((0.3,), measured_to=1)  # 12.5 ms for 1.3 tokens: 1.04x
    vague, sharp = (plan.plan(replace(c, error=e), a, 1) for e in (0.06, 0.01))
    assert not vague.worth_it and "predictions are good to 6.0%" in vague.advice
    assert sharp.worth_it and sharp.best.gamma == 1
    wide, narrow = vague.choices[1], sharp.choices[1]
    assert wide.pot_high_ms - wide.pot_low_ms > narrow.pot_high_ms - narrow.pot_low_ms
    assert wide.speedup_low < 1 < narrow.speedup_low


def test_a_drafter_that_costs_wants_fewer_tokens():
    a = Acceptance(tuple(0.8**k for k in range(1, 9)), measured_to=8)
    cheap = plan.plan(FREE, a, max_gamma=8).best.gamma
    dear = plan.plan(replace(FREE, draft_ms=1.5), a, max_gamma=8).best.gamma
    assert 0 < dear < cheap == 8


@given(st.floats(0, 1), st.integers(1, 10))
def test_one_number_keeps_its_mean(alpha, gamma):
    a = Acceptance.of(alpha, gamma)
    assert sum(a.survival) / gamma == pytest.approx(alpha, abs=1e-6)
    assert list(a.survival) == sorted(a.survival, reverse=True)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8), st.integers(1, 12), st.integers(1, 9999))
def test_intervals_hold_the_value(shares, gamma, drafts):
    a = Acceptance(tuple(sorted(shares, reverse=True)), drafts=drafts, measured_to=len(shares))
    mean, low, high = a.accepted(gamma)
    assert 0 <= low <= mean + 1e-9 and mean <= high + 1e-9 and high <= gamma + 1e-9


def test_more_drafts_narrow_the_interval_and_extrapolation_widens_it():
    few, many = (Acceptance((0.6, 0.3), drafts=n, measured_to=2) for n in (20, 2000))
    assert few.accepted(2)[2] - few.accepted(2)[1] > many.accepted(2)[2] - many.accepted(2)[1]
    mean, low, high = many.accepted(4)
    # known 0.9; none further, or 0.3 for each of two more
    assert low < 0.9 < mean < 0.9 + 2 * 0.3 < high


def test_one_number_bounds_shorter_drafts():
    """alpha 0.5 at gamma 4 is 2 accepted tokens: at gamma 2 at least half of them, at most 2."""
    mean, low, high = Acceptance.of(0.5, 4).accepted(2)
    assert (low, high) == (pytest.approx(1.0), pytest.approx(2.0)) and 1 < mean < 2


@pytest.mark.parametrize("known", ["measured", "modelled", "extrapolated"])
def test_says_what_is_known(known):
    a = {
        "measured": Acceptance((0.5,) * 6, measured_to=6),
        "modelled": Acceptance.of(0.5, 6),
        "extrapolated": Acceptance((0.5,), measured_to=1),
    }[known]
    answer = plan.plan(FREE, a, max_gamma=6)
    assert answer.choices[6].known == known
    assert any(word in " ".join(answer.assumed) for word in ("measured up to", "modelled from"))


def at(batch=1.0, tpot_ms=None, gamma=2):
    return ServerMetrics(gamma, Acceptance((0.9, 0.8), drafts=1000, measured_to=2), tpot_ms, batch)


def test_outside_the_calibration_it_says_so():
    c = Calibration(10.0, {2: 0.0}, batches=(1, 4), gammas=(0, 2), eager=True)

    def warned(now):
        return " ".join(plan.plan(c, now.acceptance, 2, now).warnings)

    assert warned(at()) == ""
    assert "decodes 9.0 requests at once, the calibration goes up to 4" in warned(at(batch=9))
    expected = 10 / 2.7
    assert warned(at(tpot_ms=expected)) == ""
    assert "is not of this server" in warned(at(tpot_ms=2 * expected))
    assert "CUDA graphs" in warned(at(tpot_ms=expected / 2))
    beyond = plan.plan(c, Acceptance((1.0,) * 5, measured_to=5), 5).warnings
    assert any("beyond the calibrated 2" in w for w in beyond)
    bound = plan.plan(replace(c, d={2: 0.9}), at().acceptance, 2).warnings
    assert any("bound by the device" in w for w in bound)
    little = plan.plan(replace(c, d={2: 0.7}), Acceptance((0.4,), drafts=200, measured_to=1), 1)
    assert any("within the uncertainty" in w for w in little.warnings)
    few = plan.plan(c, replace(at().acceptance, drafts=5), 2).warnings
    assert any("only 5 drafts" in w for w in few)


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: Calibration(float("nan")), "t_base_ms is nan"),
        (lambda: Calibration(0.0), "t_base_ms is 0"),
        (lambda: Calibration(1.0, {2: -1.5}), "d of gamma 2 is -1.5"),
        (lambda: Acceptance((1.2,)), "between 0 and 1"),
        (lambda: Acceptance(()), "between 0 and 1"),
        (lambda: Acceptance((0.2, 0.5)), "cannot rise"),
        (lambda: Acceptance.of(0.5, 0), "gamma between 1"),
        (lambda: plan.plan(FREE, Acceptance((0.5,)), -1), "draft length is -1"),
    ],
)
def test_bad_input(make, why):
    with pytest.raises(SpecamortError, match=why):
        make()


@pytest.fixture
def finished(root, tmp_path, monkeypatch, local):
    synthetic.write_study(local, tmp_path / "results/local", noise=0.02)
    tables.write_tables(local, tmp_path / "results/local")
    monkeypatch.chdir(tmp_path)
    return str(root / "config/local.yaml")


def said(capsys, *arguments):
    try:
        code = cli.main(["plan", *arguments])
    except SystemExit as refused:  # an option's own value
        code = refused.code
    out = capsys.readouterr()
    return code, out.out + out.err


def test_from_a_finished_study(finished, capsys, tmp_path):
    code, out = said(capsys, "--study", finished, "--workload", "repeat", "--json")
    answer = json.loads(out)
    assert code == 0 and answer["best"]["gamma"] == 6
    assert answer["acceptance"]["survival"] == [1.0] * 6
    assert answer["calibration"]["source"] == "study local (synthetic), cpu-bf16, N = 1"
    picture = tmp_path / "plan.png"
    code, out = said(capsys, "--study", finished, "--workload", "open", "--figure", str(picture))
    assert code == 0 and "Do not speculate" in out and picture.stat().st_size > 10_000


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ((), "say what becomes of drafts with one of --url"),
        (("--alpha", "0.5", "--at-gamma", "2"), "say what a step costs with one of --study"),
        (("--t-base-ms", "9", "--alpha", "0.5"), "--alpha does nothing without --at-gamma"),
        (("--t-base-ms", "9", "--workload", "open"), "--workload does nothing without --study"),
        (("--t-base-ms", "9", "--alpha", "0.5", "--at-gamma", "2", "--d", "x"), "write it as 2:0"),
        (("--t-base-ms", "9", "--url", "http://127.0.0.1:9"), "no answer"),
        (("--study", "STUDY", "--workload", "none"), "it has repeat, open"),
        (("--study", "STUDY", "--workload", "open", "--platform", "x"), "it has cpu-bf16, cpu-fp"),
        (("--study", "STUDY", "--workload", "open", "--batch", "3"), "it has 1, 4"),
    ],
)
def test_bad_questions_are_a_sentence(finished, capsys, arguments, why):
    code, out = said(capsys, *[finished if a == "STUDY" else a for a in arguments])
    assert code and why in out and "unexpected" not in out


BY_HAND = ("--t-base-ms", "9", "--alpha", "0.5", "--at-gamma", "2")


@pytest.mark.parametrize(
    ("option", "value", "without"),
    [
        *(("--platform", "p", "--study"), ("--batch", "1", "--study")),
        *(("--window", "5", "--url"), ("--token-env", "HOME", "--url")),
        *(("--model", "m", "--url or --scrape"), ("--engine", "0", "--url or --scrape")),
        ("--before", "x", "--scrape"),
    ],
)
def test_an_option_that_would_do_nothing_is_refused(capsys, option, value, without):
    code, out = said(capsys, *BY_HAND, option, value)
    assert code == 1 and f"{option} does nothing without {without}" in out


@pytest.mark.parametrize(
    ("option", "values"),
    [
        ("--t-base-ms", ["0", "-1", "nan", "inf", "1e308", "1_0", ""]),
        ("--h-ms", ["-1", "nan"]),
        ("--coverage", ["-0.1", "1.1", "50%"]),
        ("--max-gamma", ["0", "257", "2.0"]),
        ("--window", ["-1", "3601"]),
        ("--d", ["", "2:-0.1", "0:0.1", "2:0.1,2:0.2", "2:0.2,6:0.1", "2.5:0.1"]),
        ("--workload", ["", " "]),
        ("--scrape", ["http://user:secret@host"]),
        ("--figure", ["", "x.xyz", "x", "/nonexistent/x.png"]),
    ],
)
def test_a_value_out_of_range_is_refused_by_its_option(capsys, option, values):
    for value in values:
        code, out = said(capsys, *BY_HAND, option, value)
        last = out.splitlines()[-1]
        assert code and option in last and "secret" not in last, value


def test_options_are_not_abbreviated(capsys):
    code, out = said(capsys, *BY_HAND, "--max", "3")
    assert code == 2 and "unrecognized arguments: --max" in out


def test_json_holds_no_infinity(capsys):
    """Where no step has a draft nothing is enough to break even."""
    code, out = said(capsys, *BY_HAND, "--coverage", "0", "--json")
    choices = json.loads(out, parse_constant=pytest.fail)["choices"]
    assert code == 0 and choices[2]["break_even"] is None
    assert "no break-even" in said(capsys, *BY_HAND, "--coverage", "0")[1]


def test_a_host_term_that_makes_up_for_the_step_is_refused():
    with pytest.raises(SpecamortError, match="by hand: a step with gamma 1 would take"):
        plan.plan(Calibration(10.0, h_ms=-20.0), Acceptance.of(0.5, 2))


def test_verifying_more_never_gets_cheaper_beyond_what_is_calibrated():
    assert Calibration(10.0, {1: 0.3, 2: 0.1}).increment(9) == pytest.approx(1.0)


def test_a_study_that_is_not_finished(root, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    file = str(root / "config/local.yaml")
    code, out = said(capsys, "--study", file, "--workload", "open")
    assert code == 1 and "holds no tables; run the study first" in out


def test_the_library_loads_no_engine():
    loaded = "print({'vllm', 'torch', 'matplotlib', 'pandas'} & set(sys.modules))"
    code = f"import sys; from specamort import plan; {loaded}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_what_people_meet_in_the_trackers():
    """vllm-project/vllm#19254: n-gram, per-position 0.543, 0.357, 0.264, hundreds of requests at
    once; #21278: draft models of 4B beside a small target, slower the more tokens they draft."""
    small_batch = Calibration(10.0, {3: 0.02}, batches=(1, 4), gammas=(0, 3))
    seen = Acceptance((0.543, 0.357, 0.264), drafts=129, measured_to=3)
    busy = plan.plan(small_batch, seen, 3, ServerMetrics(3, seen, 120.0, batch=337))
    said = " ".join(busy.warnings)
    assert "decodes 337.0 requests at once" in said and "is not of this server" in said
    dear = Calibration(30.0, {10: 0.1}, draft_ms=25.0)
    drafted = plan.plan(dear, Acceptance.of(0.5, 3), 10)
    pots = [c.pot_ms for c in drafted.choices]
    assert drafted.best.gamma == 0 and pots[3] < pots[5] < pots[10]
