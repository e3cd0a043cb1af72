"""Differences between the providers that serve chat completions."""

from __future__ import annotations

from typing import Final

from actors.providers.chat_completions.request import COMPLETION_BOUND, TOKENS_BOUND, Efforts
from actors.providers.client.key_dialect import (
    AZURE_KEY_HEADER,
    ENTRA_TOKENS,
    GOOGLE_TOKENS,
    KeyDialect,
    azure_address,
    vertex_address,
)
from actors.providers.registry import Reference


class ChatDialect(KeyDialect, frozen=True, kw_only=True):
    """Way in which one provider serves chat completions: the type of ``Provider.dialect`` for this client."""

    bound: str = TOKENS_BOUND
    """Field of the bound of a reply at the provider's own hosts. The other one is used once a server refuses this."""
    batch_endpoint: str = "/v1/chat/completions"
    """Path of chat completions in a batch and in its lines."""
    batches: Reference = "actors.providers.chat_completions.batches:OpenAIBatches"
    """Client of the provider's batches, ``actors.providers.batches.file_batches.FileBatches`` or derived from it."""
    counter: str = ""
    """Path of a counter of tokens that takes the canonical form; empty: there is none."""
    efforts: Efforts = None
    """Efforts of reasoning that its models take, and what each is sent as; None: any, as it is."""
    switched: bool = False
    """True: thinking is switched by a field of its own, and is off beside a forced tool (``thinking_mode``)."""
    thoughts: bool = False
    """True: the provider's own hosts want the thoughts of earlier turns back."""


GEMINI_EFFORTS: Final = {"none": "none", "minimal": "low", "low": "low", "medium": "medium", "high": "high"}
"""Efforts at Gemini's chat completions, as its refusal names them: "Invalid reasoning_effort: minimal. Valid values
are: high, low, medium, none" (https://discuss.ai.google.dev/t/118724). `minimal`, which its page lists, has there the
budget of `low` in generation 2 and the level of `low` at Pro of generation 3
(https://ai.google.dev/gemini-api/docs/openai). A model refuses by itself what it cannot do."""

DEFAULT: Final = ChatDialect()
OPENAI: Final = ChatDialect(bound=COMPLETION_BOUND)
AZURE: Final = ChatDialect(
    bound=COMPLETION_BOUND, key_header=AZURE_KEY_HEADER, address=azure_address, tokens=ENTRA_TOKENS,
    batch_endpoint="/chat/completions",
)  # fmt: skip
GEMINI: Final = ChatDialect(efforts=GEMINI_EFFORTS, batches="actors.providers.gemini.batches:GeminiBatches")
DEEPSEEK: Final = ChatDialect(switched=True, thoughts=True)
MISTRAL: Final = ChatDialect(batches="actors.providers.mistral.batches:MistralBatches")
VERTEX: Final = ChatDialect(efforts=GEMINI_EFFORTS, address=vertex_address, tokens=GOOGLE_TOKENS)
MESSAGES_COUNTER: Final = "/messages/count_tokens"
"""Counter of the Messages API, which a server of the user's own may have beside chat completions: SGLang
(`entrypoints/http_server.py`), vLLM (`entrypoints/anthropic/api_router.py`) and llama.cpp
(`tools/server/server.cpp`)."""
LLAMA_CPP: Final = ChatDialect(counter=MESSAGES_COUNTER)
