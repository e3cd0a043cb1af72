"""Images and documents in requests: an image is bounded by what an image costs, a document is sized by the provider."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from actors.branch.prompt_limit import over_bound
from actors.channel.backpressure import OPEN_BYTES_MAX, narrower_by
from cortex.state.commands import Call
from cortex.state.events import Row
from tests.cli.cli_runner import kinds, request

SIM = ("--model", "sim", "--sim", "error=0")


def block(kind: str, size: int) -> dict[str, Any]:
    """An image or a document of so many bytes."""
    media = "image/png" if kind == "image" else "application/pdf"
    content = base64.b64encode(bytes(size)).decode()
    return {"type": kind, "source": {"type": "base64", "media_type": media, "data": content}}


def asking(key: str, *blocks: dict[str, Any]) -> str:
    content = [*blocks, {"type": "text", "text": "Answer with one of: bug, praise. It crashes."}]
    return request(key, messages=[{"role": "user", "content": content}])


def test_a_large_image_is_sent_and_a_document_is_sized_by_the_provider(cortex: Any) -> None:
    rows = [asking("image", block("image", 4_000_000)), asking("pdf", block("document", 3_000_000))]
    Path("in.jsonl").write_text("\n".join(rows) + "\n")
    done = cortex("batch", "in.jsonl", "-o", "o.jsonl", *SIM, "--json")
    assert (done.code, kinds(Path("o.jsonl"))) == (0, {"image": "succeeded", "pdf": "succeeded"})
    assert done.last["input_tokens"] < 10_000
    small = cortex("batch", "in.jsonl", "-o", "p.jsonl", *SIM, "--prompt-tokens-max", 1_000, "--job", "small", "--fresh")
    assert small.code == 1
    assert set(kinds(Path("p.jsonl")).values()) == {"invalid_request_error"}


class _NoCounter:
    async def count_tokens(self, body: bytes) -> int | None:
        return None


@pytest.mark.parametrize(("kind", "words"), [("document", "no counter to ask (count_tokens)"), ("image", "up to 6")])
async def test_what_nobody_can_size_is_refused_in_one_line(kind: str, words: str) -> None:
    body = json.dumps(json.loads(asking("a", block(kind, 90)))["params"]).encode()
    failure = await over_bound(_NoCounter(), Call(1, "0", 1, b"", body, 8, 5_000, 1.0))  # type: ignore[arg-type]
    assert failure is not None
    assert words in failure.message
    assert "1099511627776" not in failure.message


@pytest.mark.parametrize(
    ("size", "window", "narrower"),
    [(0, 2_048, 0), (300, 2_048, 0), (1_000_000, 2_048, 1_984), (OPEN_BYTES_MAX * 2, 2_048, 2_047), (32_000_000, 100, 98)],
)  # fmt: skip
def test_rows_that_are_large_are_fewer_at_once(size: int, window: int, narrower: int) -> None:
    assert narrower_by([Row("a", bytes(10)), Row("b", bytes(size))] if size else [], window) == narrower
