"""Curator: `curator.LLM` over a data set, its own client of the provider's endpoint.

https://docs.bespokelabs.ai/bespoke-curator/how-to-guides/rate-limits (requests and tokens a minute so high that they
never wait, `max_concurrent_requests`, `max_retries`). Requests and answers are kept in files of the working folder,
from which a killed run continues. Curator asks one question of its own first, to read the provider's limits.
"""

import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

import common

GIVEN = common.given()
os.environ |= {
    "CURATOR_VIEWER": "0", "TELEMETRY_ENABLED": "0", "CURATOR_DISABLE_RICH_DISPLAY": "1",
    "ANTHROPIC_API_KEY": common.KEY,
    "CURATOR_CACHE_DIR": str(GIVEN.state / "curator"), "HF_HOME": str(GIVEN.state / "hf"),
    "HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1",
}  # fmt: skip
LITELLM = importlib.util.find_spec("litellm")
assert LITELLM is not None and LITELLM.origin is not None
# Curator would fetch a table for counting tokens; litellm, which it needs, contains the same one.
os.environ["TIKTOKEN_CACHE_DIR"] = str(Path(LITELLM.origin).parent / "litellm_core_utils" / "tokenizers")

from bespokelabs import curator  # noqa: E402 the settings above are read on import


class Asker(curator.LLM):
    """Prompt for each row."""

    def prompt(self, row: dict[str, Any]) -> str:
        """Return the prompt."""
        return common.prompt(row["number"])

    def parse(self, row: dict[str, Any], answer: str) -> dict[str, Any]:
        """Return the row to keep."""
        return {"number": row["number"], "answer": answer}


def main() -> None:
    """Run all rows."""
    params: dict[str, Any] = {
        "base_url": f"{GIVEN.url}/v1", "max_requests_per_minute": 10**7, "max_input_tokens_per_minute": 10**10,
        "max_output_tokens_per_minute": 10**10, "max_concurrent_requests": GIVEN.at_once, "max_retries": 0,
    }  # fmt: skip
    asker = Asker(
        model_name=common.MODEL, backend="anthropic", backend_params=params,
        generation_params={"max_tokens": common.OUTPUT_TOKENS_MAX},
    )  # fmt: skip
    began = common.Began()
    rows = asker([{"number": number} for number in range(GIVEN.calls)])
    found = rows.dataset if hasattr(rows, "dataset") else rows
    common.told([(int(row["number"]), str(row["answer"])) for row in found], GIVEN.calls, began)


if GIVEN.work == "null":
    sys.exit("no model of its own that answers at once")
(GIVEN.state / "curator").mkdir(parents=True, exist_ok=True)
os.chdir(Path(GIVEN.state))
main()
