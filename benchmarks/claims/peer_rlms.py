"""Package ``rlms`` on the benchmark's task, run by a Python that has it installed. Arguments: CONTEXT_FILE QUESTION.

Default settings, except the reply length, which must not exceed what the SDK accepts without streaming.
"""

from __future__ import annotations

import json
import os
import sys
import time
from importlib.metadata import version
from pathlib import Path


def main() -> None:
    """Answer the question; print calls, tokens and time as one JSON object."""
    import rlm.clients.anthropic  # import time is not part of the run
    from rlm import RLM

    rlm.clients.anthropic.AnthropicClient(api_key="unused", model_name="unused")
    context, question = Path(sys.argv[1]).read_text(), sys.argv[2]
    given = {"model_name": "simulated", "api_key": os.environ["ANTHROPIC_API_KEY"], "max_tokens": 4_096}
    began_s = time.perf_counter()
    answer = RLM(backend="anthropic", backend_kwargs=given).completion(context, root_prompt=question)
    took_s = time.perf_counter() - began_s
    print(json.dumps({"answer": answer.response, "wall_s": took_s, "version": version("rlms")}))


if __name__ == "__main__":
    main()
