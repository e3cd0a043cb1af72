"""`cortex simulate` as a process of its own: one line with its address, and a clean end when it is told to stop."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import urllib.request

import pytest

from actors.simulator.frontends.command import ListenFailed, simulate
from tests.support.patience import PATIENCE_S
from tests.support.repository_rules import ROOT

SOURCE = """
import sys
from actors.simulator.frontends.command import simulate
from actors.simulator.settings import settings_from
sys.exit(simulate(settings_from(["seed=3", "latency_ms=600000"]), port=0))
"""


@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGINT])
def test_prints_its_address_and_ends_cleanly(sign: signal.Signals) -> None:
    command = [sys.executable, "-c", SOURCE]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None and server.stderr is not None
        line = server.stdout.readline()
        assert line.startswith("simulated provider at http://127.0.0.1:")
        url = line.split()[-1]
        with urllib.request.urlopen(f"{url}/_sim/settings", timeout=PATIENCE_S) as got:
            assert json.load(got)["seed"] == 3
        waiting = socket.create_connection(("127.0.0.1", int(url.rsplit(":", 1)[1])))  # a call of ten minutes
        call = b'{"model":"sim","max_tokens":9,"messages":[{"role":"user","content":"Say a"}]}'
        head = f"host: x\r\nx-api-key: k\r\nanthropic-version: 1\r\ncontent-length: {len(call)}\r\n\r\n"
        waiting.sendall(b"POST /v1/messages HTTP/1.1\r\n" + head.encode() + call)
        server.send_signal(sign)
        assert server.wait(PATIENCE_S) == 0
        assert server.stderr.read() == ""
        assert server.stdout.read() == ""
        waiting.close()


def test_an_address_that_is_taken_is_told_in_one_line() -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        with pytest.raises(ListenFailed, match=rf"^cannot listen on 127\.0\.0\.1 port {port}: [^\n]+$"):
            simulate(port=port)
    with pytest.raises(ListenFailed, match="a port is a number from 0 to 65535"):
        simulate(port=99_999)
    with pytest.raises(ListenFailed, match=r"^cannot listen on no\.such\.host\.localhost port 0"):
        simulate(host="no.such.host.localhost")
