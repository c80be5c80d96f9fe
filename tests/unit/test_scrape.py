"""A scrape from a server that means well, or does not, and from a file."""

import http.server
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from specamort.errors import SpecamortError
from specamort.planner import scrape


@contextmanager
def serving(answer):
    """A server on which `answer(handler)` answers every request; yields its address."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            answer(self)

        def log_message(self, *args):
            pass

    running = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=running.serve_forever, daemon=True).start()
    try:
        yield f"127.0.0.1:{running.server_port}"
    finally:
        running.shutdown()


def respond(handler, status=200, body=b"", **headers):
    handler.send_response(status)
    for name, value in headers.items():
        handler.send_header(name.replace("_", "-"), value)
    handler.end_headers()
    handler.wfile.write(body)


def refusal(answer, why):
    """`fetch` refuses what such a server answers, by a sentence that names it."""
    with serving(answer) as url, pytest.raises(SpecamortError, match=rf"^http://{url}.*{why}"):
        scrape.fetch(url)


@pytest.mark.parametrize(
    ("url", "asked", "name"),
    [
        ("h:8000", "http://h:8000/metrics", "http://h:8000/metrics"),
        ("HTTPS://h/v1/", "https://h/metrics", "https://h/metrics"),
        ("http://[::1]:80/a/metrics", *["http://[::1]:80/a/metrics"] * 2),
        ("h?token=secret#x", "http://h/metrics?token=secret", "http://h/metrics"),
    ],
)
def test_an_address_is_shown_without_its_query(url, asked, name):
    assert scrape.address(url) == (asked, name)


@pytest.mark.parametrize(
    "url",
    [
        *("", "http://", "http://h:x", "h:0", "h:65536", "http://[::1", "http://h\r\nX: y"),
        *("http://a b", "ftp://h", "data:text/plain,x", "http://é", "http://u%3Asecret%40h"),
    ],
)
def test_what_is_no_address_is_not_shown(url):
    with pytest.raises(SpecamortError, match="--url is no address of a web server") as refused:
        scrape.address(url)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("url", ["http://u:secret@h", "secret@h:x", "http://u:1/secret@h"])
def test_a_password_is_refused_and_not_shown(url):
    with pytest.raises(SpecamortError, match="--token-env") as refused:
        scrape.address(url)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("status", "why"),
    [
        (401, "--token-env"),
        (404, "is it vLLM's"),
        (500, "the server's own error"),
        (418, "refuses"),
    ],
)
def test_a_status_is_named_with_what_it_means(status, why):
    refusal(lambda h: respond(h, status), f"HTTP status {status}: .*{why}")


def test_size_is_bounded(monkeypatch):
    monkeypatch.setattr(scrape, "LIMIT", 1000)
    with serving(lambda h: respond(h, body=b"#" * 900)) as url:
        assert len(scrape.fetch(url)) == 900
    for more in (1001, 20_000):
        refusal(lambda h, n=more: respond(h, body=b"#" * n), "sends more than")


def dripping(handler):
    respond(handler)
    for _ in range(100):
        handler.wfile.write(b"#\n")
        time.sleep(0.1)


def test_time_is_bounded_though_something_always_comes(monkeypatch):
    monkeypatch.setattr(scrape, "WHOLE_S", 0.5)
    began = time.monotonic()
    refusal(dripping, r"no whole answer in 0\.5 s")
    assert time.monotonic() - began < 5


@pytest.mark.parametrize(
    ("headers", "body", "why"),
    [
        ({"Content_Encoding": "gzip"}, b"", "in the encoding gzip"),
        ({"Content_Length": "10"}, b"abc", "breaks off"),
        ({"Content_Length": "9" * 15}, b"abc", "breaks off"),
        ({}, b"\xff", "is not text in UTF-8"),
    ],
)
def test_what_is_no_whole_text_is_refused(headers, body, why):
    refusal(lambda h: respond(h, body=body, **headers), why)


def test_a_circle_of_redirects_ends():
    refusal(lambda h: respond(h, 302, Location="/metrics"), "HTTP status 302: it redirects")


def test_a_token_stays_with_its_server():
    """Sent along a redirect on that server, and to no other."""
    seen = []

    def keep(handler):
        seen.append((handler.path, handler.headers.get("Authorization")))
        respond(handler, body=b"# fine\n")

    with serving(keep) as other:

        def answer(handler):
            if handler.path == "/metrics":
                respond(handler, 302, Location="/inside")
            elif handler.path == "/inside":
                seen.append((handler.path, handler.headers.get("Authorization")))
                respond(handler, 302, Location=f"http://{other}/outside")

        with serving(answer) as url:
            assert scrape.fetch(url, "secret") == "# fine\n"
    assert seen == [("/inside", "Bearer secret"), ("/outside", None)]


@pytest.mark.parametrize("value", ["", "secret\r\nX: y", "secret x", "secreté"])
def test_what_is_no_token_is_refused_and_not_shown(monkeypatch, value):
    monkeypatch.setenv("TOKEN", value)
    with pytest.raises(SpecamortError, match="--token-env") as refused:
        scrape.token("TOKEN")
    assert "secret" not in str(refused.value)


def test_a_token_given_for_its_variables_name_is_not_shown(monkeypatch):
    monkeypatch.setenv("TOKEN", "s-3.cret")
    assert scrape.token("TOKEN") == "s-3.cret"
    with pytest.raises(SpecamortError, match="is not set") as refused:
        scrape.token("s-3.cret")
    assert "cret" not in str(refused.value)


def test_a_file_without_end_is_refused():
    with pytest.raises(SpecamortError, match="/dev/zero: has more than 8 MiB"):
        scrape.read(Path("/dev/zero"))
