"""A server's counters, from scrapes as vLLM writes them."""

import http.server
import json
import threading
from dataclasses import replace

import pytest

from specamort.errors import SpecamortError
from specamort.planner import server_metrics


def scrape(
    drafts=100, survivals=(80, 40), generated=400, requests=10, model="m", engine="0", tpot=0.02
):
    """vLLM's /metrics after `requests` requests."""
    accepted = sum(survivals)
    where = f'engine="{engine}",model_name="{model}"'
    counters = {
        "spec_decode_num_drafts": drafts,
        "spec_decode_num_draft_tokens": drafts * len(survivals),
        "spec_decode_num_accepted_tokens": accepted,
        "generation_tokens": generated,
    }
    lines = []
    for name, value in counters.items():
        lines += [f"# TYPE vllm:{name} counter", f"vllm:{name}_total{{{where}}} {value}"]
    per = "vllm:spec_decode_num_accepted_tokens_per_pos"
    lines.append(f"# TYPE {per} counter")
    lines += [f'{per}_total{{{where},position="{k}"}} {n}' for k, n in enumerate(survivals)]
    for name, total, count in [
        ("time_to_first_token_seconds", 1, requests),
        ("iteration_tokens_total", 500, generated - accepted - requests),
        ("request_time_per_output_token_seconds", tpot * requests, requests),
    ]:
        lines.append(f"# TYPE vllm:{name} histogram")
        lines.append(f'vllm:{name}_bucket{{{where},le="+Inf"}} {count}')
        lines += [f"vllm:{name}_count{{{where}}} {count}", f"vllm:{name}_sum{{{where}}} {total}"]
    return "\n".join(["# TYPE python_info gauge", "python_info 1", *lines, ""])


def test_a_scrape_by_hand():
    """400 tokens of 10 requests, 120 of them accepted: 270 decode steps, 100 with a draft."""
    now = server_metrics.read(server_metrics.parse(scrape(), "here"))
    assert now.gamma == 2
    assert now.acceptance.survival == (0.8, 0.4) and now.acceptance.measured_to == 2
    assert now.acceptance.coverage == pytest.approx(100 / 270)
    assert now.tpot_ms == pytest.approx(20) and now.batch == pytest.approx(1)


def test_a_window_is_a_difference():
    before = server_metrics.parse(scrape(), "here")
    after = server_metrics.parse(
        scrape(drafts=300, survivals=(180, 60), generated=1000, requests=20), "h"
    )
    now = server_metrics.read(server_metrics.difference(before, after, 30))
    assert now.acceptance.survival == (0.5, 0.1) and now.acceptance.drafts == 200
    assert "200 drafts in 30 s" in now.acceptance.source
    with pytest.raises(SpecamortError, match="the server was restarted"):
        server_metrics.difference(after, before)


def test_models_and_engines_are_chosen_or_added():
    text = scrape() + scrape(drafts=50, survivals=(50, 50), engine="1")
    with pytest.raises(SpecamortError, match=r"has engine 0, 1; choose one with --engine .*all"):
        server_metrics.parse(text, "here")
    assert server_metrics.parse(text, "here", engine="1").drafts == 50
    both = server_metrics.parse(text, "here", engine="all")
    assert both.drafts == 150 and both.per_position == (130, 90)
    text = scrape() + scrape(model="other")
    with pytest.raises(SpecamortError, match="has model_name m, other; choose one with --model"):
        server_metrics.parse(text, "here")
    assert server_metrics.parse(text, "here", model="other").drafts == 100
    with pytest.raises(SpecamortError, match=r"has no model_name third \(--model\); it has m"):
        server_metrics.parse(text, "here", model="third")


def test_a_prometheus_query(tmp_path):
    found = server_metrics._samples(scrape(), "here")
    results = [
        {"metric": {"__name__": n, **labels}, "value": [0, str(v)]} for n, labels, v in found
    ]
    path = tmp_path / "query.json"
    path.write_text(json.dumps({"status": "success", "data": {"result": results}}))
    same = server_metrics.parse(scrape(), "x")
    assert server_metrics.read_file(path).per_position == same.per_position


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "holds no metric of vLLM"),
        ("# TYPE a counter\na_total 1\n", "holds no metric of vLLM"),
        ("<html>not metrics</html>", "line 1 is none of a scrape of Prometheus metrics"),
        ('{"data": 3}', "not the answer of a Prometheus instant query"),
        (
            "\n".join(x for x in scrape().split("\n") if "spec_decode" not in x),
            "the server does not speculate",
        ),
        (scrape(generated=777).replace(" 777", " NaN"), "vllm:generation_tokens_total is nan"),
        (
            "\n".join(x for x in scrape().split("\n") if "first_token" not in x),
            "has no vllm:time_to_first_token_seconds_count",
        ),
    ],
)
def test_bad_scrapes(text, why):
    with pytest.raises(SpecamortError, match=why):
        server_metrics.read(server_metrics.parse(text, "here"))


def changed(**values):
    """A scrape of 100 drafts of 2, of which 80 and 40 held, with counters as given."""
    counted = server_metrics.parse(scrape(), "here")
    return replace(counted, **values)


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"accepted": 300}, "accepted_tokens_total"),
        ({"drafted": 0, "per_position": ()}, "above .*draft_tokens_total"),
        ({"drafted": 900}, "draft_tokens_total .* above 2 a draft"),
        ({"per_position": (30, 90)}, "per_pos_total 1 .* above .*per_pos_total 0"),
        ({"per_position": (110, 10)}, "per_pos_total 0 .* above .*drafts_total"),
        ({"accepted": 60}, "sum of .*per_pos_total"),
        ({"generated": 0}, "above vllm:generation_tokens_total"),
        ({"first_tokens": 10**6}, "above vllm:generation_tokens_total"),
        ({"steps": 0}, "iteration_tokens_total_count is 0"),
        ({"tpot_sum": 1e9}, "time_per_output_token_seconds_sum"),
    ],
)
def test_counters_that_contradict_each_other(values, why):
    with pytest.raises(SpecamortError, match=f"here: .*{why}"):
        server_metrics.read(changed(**values))


@pytest.mark.parametrize(
    "values",
    [
        {"per_position": (80, 42)},
        {"drafts": 97},
        {"accepted": 123},
        # each of 10 requests ended one token before the last that was accepted
        {"generated": 220},
    ],
)
def test_counters_need_not_be_of_one_moment(values):
    assert server_metrics.read(changed(**values)).gamma == 2


@pytest.mark.parametrize("position", ["first", "-1", "01", "2", "1000000", ""])
def test_positions_count_from_zero(position):
    text = scrape().replace('position="1"', f'position="{position}"')
    with pytest.raises(SpecamortError, match="per_pos_total has position 0, "):
        server_metrics.parse(text, "here")


@pytest.mark.parametrize("value", ["-5", "1e308", "9" * 400, "0.5", "+Inf"])
def test_what_no_counter_is(value):
    text = scrape().replace("} 100", f"}} {value}", 1)
    with pytest.raises(SpecamortError, match="here: vllm:spec_decode_num_drafts_total is"):
        server_metrics.parse(text, "here")


def test_a_series_is_there_once():
    with pytest.raises(SpecamortError, match="drafts_total twice"):
        server_metrics.parse(scrape() * 2, "here")


@pytest.mark.parametrize(
    "result",
    [
        {"metric": {"__name__": 5}, "value": [0, "1"]},
        {"metric": {"__name__": "vllm:x", "engine": 0}, "value": [0, "1"]},
        {"metric": {"__name__": "vllm:x"}, "value": [0, 1]},
        {"metric": {"__name__": "vllm:x"}, "value": [0, "1_0"]},
        {"metric": {"__name__": "vllm:x"}, "values": [[0, "1"]]},
        None,
    ],
)
def test_a_query_of_other_types(result):
    with pytest.raises(SpecamortError, match=r"here: data\.result\[0\] is not"):
        server_metrics.parse(json.dumps({"data": {"result": [result]}}), "here")


def test_counters_at_zero():
    idle = server_metrics.parse(scrape(drafts=0, survivals=(0, 0)), "here")
    with pytest.raises(
        SpecamortError, match="no draft was counted since it started; send it traffic"
    ):
        server_metrics.read(idle)
    with pytest.raises(SpecamortError, match="no draft was counted in 5 s"):
        server_metrics.read(server_metrics.difference(idle, idle, 5))


@pytest.fixture
def server():
    """A server whose every scrape has counted one more draft of two accepted tokens."""

    class Metrics(http.server.BaseHTTPRequestHandler):
        served = 0

        def do_GET(self):
            if self.path != "/metrics":
                self.send_error(404)
                return
            n = type(self).served = type(self).served + 1
            self.send_response(200)
            self.end_headers()
            self.wfile.write(scrape(100 + n, (80 + n, 40 + n), generated=400 + 3 * n).encode())

        def log_message(self, *args):
            pass

    running = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Metrics)
    threading.Thread(target=running.serve_forever, daemon=True).start()
    yield f"127.0.0.1:{running.server_port}"
    running.shutdown()


def test_watching_a_server(server):
    for url in (server, f"http://{server}/", f"http://{server}/v1", f"http://{server}/metrics"):
        counted = server_metrics.watch(url, 0.5, sleep=lambda s: None)
        assert counted.drafts == 1 and server_metrics.read(counted).acceptance.survival == (
            1.0,
            1.0,
        )
    with pytest.raises(SpecamortError, match="HTTP status 404: nothing is at that path"):
        server_metrics.fetch(f"http://{server}/nothing/here")
