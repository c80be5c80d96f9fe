"""A scrape's text: from a server, bounded in time and size and without its secrets, or a file."""

import http.client
import io
import os
import re
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from ..errors import SpecamortError

LIMIT, HEAD_LIMIT = 2**23, 2**20  # bytes; a server's /metrics has some 10**5
SILENT_S, WHOLE_S = 6.0, 15.0  # how long a server may send nothing, and take in all

_STATUS = {
    401: "it asks who you are; put a token into an environment variable and name it (--token-env)",
    403: "it does not let you in; name the variable of a token that it takes (--token-env)",
    404: "nothing is at that path; is it vLLM's /metrics?",
    407: "the proxy asks who you are; see http_proxy and no_proxy",
    429: "it is asked too often; wait and ask again",
    502: "what stands before the server does not reach it; is it up?",
    503: "it is not ready; wait and ask again",
    504: "what stands before the server does not reach it; is it up?",
}
_STATUSES = {
    3: "it redirects in a circle, or to what is no web address; name the address where it ends",
    4: "it refuses to answer; is it vLLM's /metrics?",
    5: "the server's own error; see its log",
}


def shown(text: object) -> str:
    """Foreign text as part of a sentence: on one line, not long."""
    line = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in str(text))
    return line if len(line) <= 300 else f"{line[:300]}..."


def address(url: str) -> tuple[str, str]:
    """Where to ask for a server's metrics, and the same as it may be shown: without its query.

    Raises:
        SpecamortError: no address of a web server, or one with a user or password.
    """
    if "@" in url:
        raise SpecamortError(
            "--url holds a user or password, which shells and process lists keep; put a token into "
            "an environment variable and name it with --token-env"
        )
    host = r"(\[[\da-fA-F:.]+(%\w+)?\]|[\w.-]+)(:\d{1,5})?"
    whole = url if "://" in url else f"http://{url}"
    parts = re.fullmatch(rf"(?i:(https?))://({host})(/[!-~]*|[?#][!-~]*|)", whole, re.ASCII)
    port = parts[5] if parts else None
    if not parts or (port and not 0 < int(port[1:]) < 2**16):
        raise SpecamortError(
            "--url is no address of a web server; write it as http://HOST:PORT or https://HOST:PORT"
        )
    path, _, query = parts[6].partition("#")[0].partition("?")
    path = path.rstrip("/")
    if not path.endswith("/metrics"):
        path = path.removesuffix("/v1") + "/metrics"
    plain = f"{parts[1].lower()}://{parts[2]}{path}"
    return plain + f"?{query}" * bool(query), shown(plain)


def token(variable: str) -> str:
    """A bearer token from the environment.

    Raises:
        SpecamortError: not set, or no token; neither its name nor its value is shown, since people
            give the one for the other.
    """
    value = os.environ.get(variable, "")
    if not re.fullmatch(r"[!-~]+", value):
        wrong = "holds white space or what is not ASCII" if value else "is not set, or empty"
        raise SpecamortError(
            f"--token-env: the environment variable of that name {wrong}; put the token into one, "
            "and give the variable's name"
        )
    return value


def fetch(url: str, bearer: str | None = None) -> str:
    """The text of a server's /metrics.

    Args:
        bearer: a token; only sent to the server of that address, wherever it redirects.

    Raises:
        SpecamortError: no such address, no answer, or none in text of a sensible size and time.
    """
    asked, name = address(url)
    bounds = _Bounded()
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler(),
        urllib.request.UnknownHandler(),
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.HTTPErrorProcessor(),
        _Redirects(),
        bounds,
    ):
        opener.add_handler(handler)
    try:
        request = urllib.request.Request(asked)
        if bearer:
            request.add_unredirected_header("Authorization", f"Bearer {bearer}")
        with opener.open(request, timeout=SILENT_S) as answer:
            bounds.bytes_left = LIMIT
            data: bytes = answer.read(LIMIT + 1)
            if len(data) > LIMIT:
                raise _TooMuch
            if answer.length:
                raise http.client.IncompleteRead(b"")
            packed = answer.headers.get("Content-Encoding", "identity")
    except urllib.error.HTTPError as e:
        means = _STATUS.get(e.code) or _STATUSES.get(e.code // 100, "is it vLLM's /metrics?")
        raise SpecamortError(f"{name}: answers with HTTP status {e.code}: {means}") from e
    except (_TooMuch, MemoryError, OverflowError) as e:  # the latter of a length that it claims
        raise SpecamortError(
            f"{name}: sends more than any server's metrics take; is it vLLM's /metrics?"
        ) from e
    except http.client.IncompleteRead as e:
        raise SpecamortError(f"{name}: breaks off within its answer; ask again") from e
    except http.client.HTTPException as e:
        raise SpecamortError(
            f"{name}: does not answer as a web server does ({type(e).__name__}); is the port right?"
        ) from e
    except (OSError, ValueError) as e:
        why = e.reason if isinstance(e, urllib.error.URLError) else e
        if isinstance(why, TimeoutError):
            raise SpecamortError(
                f"{name}: nothing for {SILENT_S:g} s, or no whole answer in {WHOLE_S:g} s; is it "
                "overloaded, or the port another program's?"
            ) from e
        why = getattr(why, "strerror", None) or type(why).__name__
        raise SpecamortError(
            f"{name}: no answer ({shown(why)}); is the server up, and the address right?"
        ) from e
    if packed.strip().lower() not in ("", "identity"):
        raise SpecamortError(
            f"{name}: answers in the encoding {shown(packed)}, though asked for none; ask the "
            "server itself, past what packs its answers"
        )
    return _text(data, name)


def read(path: Path) -> str:
    """The text of a saved scrape.

    Raises:
        SpecamortError: not there, not UTF-8, or too large.
    """
    try:
        with path.open("rb") as f:
            data = f.read(LIMIT + 1)
    except (OSError, ValueError) as e:
        why = getattr(e, "strerror", None) or "no file can have that name"
        raise SpecamortError(f"{shown(path)}: cannot be read ({why}); name a saved scrape") from e
    if len(data) > LIMIT:
        raise SpecamortError(f"{shown(path)}: has more than {LIMIT >> 20} MiB; is it a scrape?")
    return _text(data, shown(path))


def _text(data: bytes, name: str) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as e:
        raise SpecamortError(f"{name}: is not text in UTF-8 (byte {e.start}); scrape again") from e


class _TooMuch(Exception):
    """A server sent more bytes than its limit."""


class _Redirects(urllib.request.HTTPRedirectHandler):
    max_redirections = 5

    def redirect_request(self, req, *args):  # type: ignore[no-untyped-def]
        new = super().redirect_request(req, *args)
        if new is not None and (new.type, new.host) == (req.type, req.host):
            new.unredirected_hdrs |= req.unredirected_hdrs
        return new


class _Bounded(urllib.request.AbstractHTTPHandler):
    """Web connections that share one limit of time and of bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.until = time.monotonic() + WHOLE_S
        self.bytes_left = HEAD_LIMIT  # status lines, headers and redirects

    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(partial(self._connection, http.client.HTTPConnection), req)

    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(partial(self._connection, http.client.HTTPSConnection), req)

    http_request = https_request = urllib.request.AbstractHTTPHandler.do_request_

    def patience_s(self) -> float:
        left = self.until - time.monotonic()
        if left <= 0:
            raise TimeoutError
        return min(left, SILENT_S)

    def _connection(
        self, kind: Callable[..., http.client.HTTPConnection], host: str, **more: Any
    ) -> http.client.HTTPConnection:
        made = kind(host, **more | {"timeout": self.patience_s()})
        made.response_class = partial(_Response, self)  # type: ignore[assignment]
        return made


class _Response(http.client.HTTPResponse):
    def __init__(self, bounds: _Bounded, sock: Any, *args: Any, **more: Any) -> None:
        super().__init__(sock, *args, **more)
        self.fp = io.BufferedReader(_Received(bounds, sock, self.fp.detach()))


class _Received(io.RawIOBase):
    """What a socket receives, while time and size last."""

    def __init__(self, bounds: _Bounded, sock: Any, raw: io.RawIOBase) -> None:
        self._bounds, self._sock, self._raw = bounds, sock, raw

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        self._sock.settimeout(self._bounds.patience_s())
        n = self._raw.readinto(buffer)
        self._bounds.bytes_left -= n or 0
        if self._bounds.bytes_left < 0:
            raise _TooMuch
        return n

    def close(self) -> None:
        self._raw.close()
        super().close()
