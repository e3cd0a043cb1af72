"""Child process of `--model local`: llama.cpp behind a loopback port, alive as long as its standard input is open.

Run as a script by `actors.providers.local.model`, so it imports nothing of this project. One line of JSON comes in
(the settings), one goes out: `{"url": …}` or `{"error": …}`. The process serves until its input ends, however its
parent ended.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any

# A base model has no chat form of its own; without a template llama.cpp picks a wrong one and the model echoes it.
# This one gives it the text of all messages, one after the other, and nothing else.
CHAT_TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}"


def main() -> None:
    """Read the settings, serve, and end with the parent."""
    report = os.fdopen(os.dup(1), "w")
    _silence()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's, which may still have replies to wait for
    settings = json.loads(sys.stdin.buffer.readline() or b"{}")
    if settings:  # else the parent died or gave up before it had asked for anything
        try:
            server = serve(settings)
        except Exception as error:
            print(json.dumps({"error": f"{type(error).__name__}: {error}"}), file=report, flush=True)
            os._exit(1)
        print(json.dumps({"url": server.listening_address}), file=report, flush=True)
        report.close()
        while os.read(0, 4096):
            pass
    os._exit(0)  # at once, also in the middle of a reply: nobody is left to read it


def serve(settings: dict[str, Any]) -> Any:
    """Return a running llama.cpp server on a free loopback port that refuses requests without the key."""
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = settings["weights"]
    params.model_alias = {settings["name"]}
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.api_keys = [settings["key"]]
    params.n_parallel = settings["slots"]
    params.n_ctx = settings["slots"] * settings["context_tokens"]  # llama.cpp divides the total by the slots
    params.use_jinja = True
    params.chat_template = CHAT_TEMPLATE
    params.verbosity = 0
    params.ui = False
    params.endpoint_slots = False
    # Measured: fitting to memory and the warm-up double the start (2.0 s instead of 0.9 s).
    params.fit_params = False
    params.warmup = False
    # With the whole window kept, a prompt that begins like the last one in its slot is read from there: four times
    # the few-shot calls a second (15 instead of 4), for 150 MB.
    params.swa_full = True
    params.cache_ram_mib = 0  # else up to 8 GB of old prompts are kept in memory
    return xllamacpp.Server(params)


def _silence() -> None:
    """Discard both output streams: llama.cpp writes to them from C, and nothing of it may reach a terminal."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)


if __name__ == "__main__":
    main()
