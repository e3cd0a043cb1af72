"""Server of the Messages API whose replies are dictated by the prompts: the prompt says how its reply differs."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class DictatedProvider:
    """Running server.

    A prompt may hold a JSON object. Its keys replace those of a plain good reply; null leaves a key out; ``text`` is
    short for one block of text, ``raw`` is the whole body, ``status`` the HTTP status, ``type`` of the header the
    content type. A path other than ``/v1/messages`` gets a proxy's page with status 404.
    """

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.asked: list[str] = []
        """Prompts, in order."""
        self.paths: list[str] = []
        """Paths of the requests, in order."""


def _reply(prompt: str) -> tuple[int, bytes, str]:
    try:
        dictated = json.JSONDecoder().raw_decode(prompt[prompt.index("{") :])[0]
    except ValueError:
        dictated = {}
    answer = {
        "id": "msg_1", "type": "message", "role": "assistant", "model": "m", "stop_reason": "end_turn",
        "stop_sequence": None, "content": [{"type": "text", "text": dictated.pop("text", "fine")}],
        "usage": {"input_tokens": 10, "output_tokens": 3},
    }  # fmt: skip
    status, raw = dictated.pop("status", 200), dictated.pop("raw", None)
    kind = dictated.pop("content-type", "application/json")
    answer.update(dictated)
    answer = {name: value for name, value in answer.items() if value is not None or name == "stop_sequence"}
    return status, json.dumps(answer).encode() if raw is None else raw.encode(), kind


def _text(request: dict[str, Any]) -> str:
    content = request["messages"][0]["content"]
    return content if isinstance(content, str) else " ".join(each.get("text", "") for each in content)


@contextmanager
def dictated_provider() -> Iterator[DictatedProvider]:
    """Run the server within the context."""
    provider: DictatedProvider

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None:
            pass

        def do_GET(self) -> None:
            self._send(404, b"<!DOCTYPE html><title>404 Not Found</title>", "text/html")

        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if not request:  # it tells which API is here, and is no call
                self._send(400, b'{"type":"error","error":{"type":"invalid_request_error","message":"empty"}}', "text/json")
                return
            prompt = _text(request)
            provider.paths.append(self.path)
            provider.asked.append(prompt)
            if self.path != "/v1/messages":
                self.do_GET()
                return
            self._send(*_reply(prompt))

        def _send(self, status: int, body: bytes, kind: str) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 256

    with Server(("127.0.0.1", 0), Handler) as server:
        provider = DictatedProvider(server.server_address[1])
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield provider
        finally:
            server.shutdown()
            thread.join()
