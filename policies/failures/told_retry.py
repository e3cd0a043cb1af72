"""Word of a server whether a request may be repeated: what the header `x-should-retry` makes of a failure.

The official SDKs of OpenAI and Anthropic obey it before they look at the status (`_should_retry` in
`src/openai/_base_client.py` and `src/anthropic/_base_client.py`: "If the server explicitly says whether or not to
retry, obey"), so providers and gateways send it for them. Their retries follow each other within seconds. Here calls
are also held and paced, and rows must not be lost to an hour in which a provider is full:

| kind | `true` | `false` |
|---|---|---|
| rejected | transient: repeated after a wait | stays |
| transient | stays | rejected: not repeated |
| throttled | stays | blocked: a limit that waiting does not lift; with a Retry-After, which names an end, it stays |
| overloaded | stays | stays: the provider is full whatever is asked, and the breaker keeps further calls from it |

All others stay: they are never repeated as they are, or wait for a person or another key anyway. Clients of
message batches do not obey `false`: to ask for the state or the results again costs nothing, and the batch is paid.
"""

from __future__ import annotations

from policies.failures.failure import Failure, FailureKind


def obeyed(kind: FailureKind, told: str, wait_s: float | None) -> FailureKind:
    """Return the kind of a failure whose response says whether to retry. `told`: value of the header, of which only
    `true` and `false` count. `wait_s`: the wait that the response asks for; None: none."""
    if told == "true" and kind is FailureKind.REJECTED:
        return FailureKind.TRANSIENT
    if told == "false" and kind is FailureKind.TRANSIENT:
        return FailureKind.REJECTED
    if told == "false" and kind is FailureKind.THROTTLED and wait_s is None:
        return FailureKind.BLOCKED
    return kind


def refuses_request(failure: Failure) -> bool:
    """Return whether a response says that the request itself is wrong, also where its header has it repeated as it is.
    The same request in another spelling may then be right."""
    told = failure.kind is FailureKind.TRANSIENT and failure.status in (400, 422)
    return failure.kind is FailureKind.REJECTED or told
