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

CPU_QUOTA = "/sys/fs/cgroup/cpu.max"
"""Time of the cores that a container may use: microseconds in each period
(https://docs.kernel.org/admin-guide/cgroup-v2.html)."""


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
    params.use_jinja = True  # the chat template of the weights' file
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads()
    # Of requests that name no temperature: as its authors use the model (its card,
    # https://huggingface.co/HuggingFaceTB/SmolLM2-135M-Instruct).
    params.sampling.temp, params.sampling.top_p = 0.2, 0.9
    params.endpoint_metrics = True
    params.verbosity = 0
    params.ui = False
    params.endpoint_slots = False
    # Measured: fitting to memory and the warm-up double the start (2.0 s instead of 0.9 s).
    params.fit_params = False
    params.warmup = False
    params.cache_ram_mib = 0  # else up to 8 GB of old prompts are kept in memory
    return xllamacpp.Server(params)


def cores() -> int:
    """Return the number of cores that this process may use: those it is bound to, within its container's quota of
    time."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        with open(CPU_QUOTA) as limit:
            quota, period = limit.read().split()
        return max(1, min(count, int(quota) // int(period)))
    except (OSError, ValueError):  # no such file, or the quota is "max"
        return count


def threads() -> int:
    """Return the number of threads for the model: the cores that others leave, at least one.

    llama.cpp's threads wait for each other after each step without giving up their cores. Where others use these, most
    of the time is lost: at a load of 8 to 12 on two cores, 25 tokens took 33 s with two threads, and 2 s with one.
    """
    return max(1, cores() - round(os.getloadavg()[0]))


def _silence() -> None:
    """Discard both output streams: llama.cpp writes to them from C, and nothing of it may reach a terminal."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)


if __name__ == "__main__":
    main()
