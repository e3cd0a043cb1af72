"""Checks of Anthropic, and of any server that speaks the Messages API, for ``cortex doctor``."""

from __future__ import annotations

from typing import Any

from actors.common.findings import Finding, warning
from actors.providers.anthropic.account import TOKEN
from actors.providers.health.api_checks import ApiChecks, LookAnswer, unanswered
from actors.providers.health.checks import hello
from actors.providers.messages.client import COUNT_TOKENS, MESSAGES
from actors.providers.registry import API_TITLES, MESSAGES_CLIENT
from actors.providers.remedies import ADDRESS
from policies.failures.error_vocabulary import NO_SUCH_PATH
from policies.failures.failure import FailureKind


class AnthropicChecks(ApiChecks):
    """Checks that use the free calls of the Messages API: the list of models, and the count of tokens."""

    api = API_TITLES[MESSAGES_CLIENT]
    models_path = "/v1/models"
    call_path = MESSAGES
    wrong_address = ADDRESS
    token_variable = TOKEN

    async def model_finding(self, client: Any, address: str, models: LookAnswer) -> Finding:
        """Find whether the model is there, by the count of a prompt's tokens."""
        name = self.model
        try:
            answer = await client.look(COUNT_TOKENS, hello(name), self.timeout_s)
        except Exception as error:
            return unanswered(client, f"--model {name}", error)
        if answer[0] in NO_SUCH_PATH and client.refusal_of(*answer).kind is not FailureKind.BLOCKED:
            text = f"only a paid call can show whether {name} exists: the endpoint does not count tokens"
            return warning("model", text, "give --paid to make one call of one token")
        if not 200 <= answer[0] < 300:
            return self.refused(client, answer, "model", name)
        return self.priced(address)
