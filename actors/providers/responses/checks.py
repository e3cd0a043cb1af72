"""Checks of OpenAI's Responses API for ``cortex doctor``."""

from __future__ import annotations

from actors.providers.chat_completions.checks import ChatChecks
from actors.providers.registry import API_TITLES, RESPONSES_CLIENT
from actors.providers.remedies import RESPONSES_ADDRESS
from actors.providers.responses.client import RESPONSES


class ResponsesChecks(ChatChecks):
    """Checks that use the list of models, which stands beside the API. OpenAI takes no bound of a reply below 16 tokens
    here ("Expected a value >= 16")."""

    api = API_TITLES[RESPONSES_CLIENT]
    call_path = RESPONSES
    wrong_address = RESPONSES_ADDRESS
    paid_tokens = 16
