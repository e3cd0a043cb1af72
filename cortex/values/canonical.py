"""Canonical form of requests and replies: that of the Messages API (https://docs.claude.com/en/api/messages).

Cortex has one form for the request that a call sends and one for the reply that it gets, whatever provider answers.
Prompts become canonical requests (``cortex.values.prompt.request_body``), rows of a batch hold them
(``actors.files.batch_request``), the index of remembered replies is keyed by them, and journals keep canonical replies
(``cortex.values.reply.Reply``). A provider's client is the only place that knows another form: ``Model.call``
(``actors.ports.model``) takes a canonical request and returns a canonical reply, and the client translates between
them and its own wire form where that differs.

A canonical request is one JSON object:

- ``model``, ``max_tokens``, ``messages``: needed. Each message has a ``role`` (``user``, ``assistant``) and
  ``content``, a text or a list of blocks (``text``, ``image``, ``document``, ``tool_use``, ``tool_result``, …);
- ``system``: a text or a list of text blocks;
- ``tools``, ``tool_choice``, ``output_config`` (``format``: a JSON schema for the answer), ``thinking``,
  ``stop_sequences``, ``metadata`` and the other fields of ``actors.files.batch_request.PARAMS``;
- never ``stream``: whether a reply is streamed is the client's affair.

A request that its user wrote in the form of chat completions keeps that form, behind a mark
(``cortex.values.chat_form.request``); its reply may hold the completion that came
(``cortex.values.chat_form.completion``).

A canonical reply is one JSON object: ``type`` (``message``), ``role`` (``assistant``), ``model``, ``content`` (a list
of blocks), ``stop_reason`` (one of those below, or another one of ``cortex.values.endings``), ``usage``. In ``usage``,
``input_tokens`` leaves out the tokens that were read from or written to a cache: they are counted in
``cache_read_input_tokens`` and ``cache_creation_input_tokens``; tokens of reasoning are part of ``output_tokens``. A
reply to a request with ``logprobs`` has a field of that name, where the provider gives log probabilities
(``cortex.calls.reply_tokens``).
"""

from __future__ import annotations

from typing import Final

END_TURN: Final = "end_turn"
"""The model ended its turn."""
STOP_SEQUENCE: Final = "stop_sequence"
"""The model wrote one of ``stop_sequences``."""
MAX_TOKENS: Final = "max_tokens"
"""The reply was cut at ``max_tokens``."""
TOOL_USE: Final = "tool_use"
"""The model asks for the use of a tool."""
REFUSAL: Final = "refusal"
"""The model, or a filter of the provider's, declined to answer."""
