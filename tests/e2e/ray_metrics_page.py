"""A page of metrics as Ray's metrics port has it, made of a real one: a stand-in, so that no cluster is needed.

Ray puts ``ray_`` before a name, writes it in small letters, adds its own labels, and calls everything a gauge.
"""

from __future__ import annotations

import re
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

OWN = (
    'Component="core_worker",NodeAddress="127.0.0.1",SessionName="session_1",Version="2.60.0",WorkerId="w1",'
    'otel_scope_name="ray",otel_scope_schema_url="",otel_scope_version=""'
)
SAMPLE = re.compile(r"^(?P<name>\w+)(?:\{(?P<labels>.*)\})? (?P<value>\S+)$")


def renamed(page: str) -> str:
    """The same samples under Ray's names."""
    lines = []
    for line in page.splitlines():
        if (found := SAMPLE.match(line)) and found["name"] != "target_info":
            labels = ",".join(part for part in (found["labels"], OWN) if part)
            lines.append(f"ray_{found['name'].lower()}{{{labels}}} {found['value']}\n")
    return "".join(lines)


@contextmanager
def port_of(source: str) -> Iterator[int]:
    """A port that serves what ``source`` serves, renamed."""

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:  # the name that http.server calls
            try:
                with urllib.request.urlopen(source, timeout=5) as answer:
                    body, code = renamed(answer.read().decode()).encode(), 200
            except OSError:
                body, code = b"", 503
            self.send_response(code)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_words: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()
