"""The package ``rlms`` on the benchmark's task; run by a Python that has it: CONTEXT_FILE QUESTION.

Its own settings, but for the length of a reply, which its client must not ask for beyond what the SDK takes unstreamed.
"""

from __future__ import annotations

import json
import os
import sys
import time
from importlib.metadata import version
from pathlib import Path


def main() -> None:
    """Answer the question; what it took as one JSON object."""
    import rlm.clients.anthropic  # its time is not that of the run
    from rlm import RLM

    rlm.clients.anthropic.AnthropicClient(api_key="unused", model_name="unused")
    context, question = Path(sys.argv[1]).read_text(), sys.argv[2]
    given = {"model_name": "simulated", "api_key": os.environ["ANTHROPIC_API_KEY"], "max_tokens": 4_096}
    began_s = time.perf_counter()
    said = RLM(backend="anthropic", backend_kwargs=given).completion(context, root_prompt=question)
    took_s = time.perf_counter() - began_s
    print(json.dumps({"answer": said.response, "wall_s": took_s, "version": version("rlms")}))


if __name__ == "__main__":
    main()
