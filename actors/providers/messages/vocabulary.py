"""Names and words of errors over the Messages API, of all providers that serve it."""

from __future__ import annotations

from functools import lru_cache

from actors.providers.registry import MESSAGES_CLIENT, PROVIDERS, Reference, load
from policies.failures import error_vocabulary
from policies.failures.error_vocabulary import ErrorVocabulary, joined
from policies.failures.failure import FailureKind


def vocabulary() -> ErrorVocabulary:
    """Return the names and words of errors of all providers that serve the Messages API: a gateway at a provider's
    address passes on the errors of the others."""
    rows = PROVIDERS.values()
    return _joined(tuple(row.errors for row in rows if row.client == MESSAGES_CLIENT and row.errors))


@lru_cache(maxsize=8)
def _joined(references: tuple[Reference, ...]) -> ErrorVocabulary:
    return joined(*map(load, references))


def classify(status: int, error_type: str, message: str, details: str = "") -> FailureKind:
    """Return the kind of an error response of the Messages API (``policies.failures.error_vocabulary.classify``)."""
    return classified(status, error_type, message, details)[0]


def classified(status: int, error_type: str, message: str, details: str = "") -> tuple[FailureKind, str]:
    """Return the kind of an error response of the Messages API, and the remedy that its words call for
    (``policies.failures.error_vocabulary.classified``)."""
    return error_vocabulary.classified(vocabulary(), status, error_type, message, details)
