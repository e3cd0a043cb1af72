"""Routes of jobs that ask for vectors."""

from __future__ import annotations

import msgspec

from actors.providers.registry import PROVIDERS, row_of
from actors.routing.model_factory import ConnectionSpec
from actors.routing.model_spec import SetupError
from actors.routing.routes import ResolvedRoute
from cortex.programs.batch import Batch
from cortex.programs.embed import REQUEST_TOKENS, Embed
from cortex.programs.shards import unsharded
from cortex.state.program import Program
from cortex.values.chat_form.request import EMBEDDINGS
from cortex.values.limits import Route


def wants_vectors(program: Program) -> bool:
    """Return whether a job asks for vectors: by its program, or by the lines of its file."""
    asked = unsharded(program)[0]
    return isinstance(asked, Embed) or (isinstance(asked, Batch) and asked.api == EMBEDDINGS)


def for_vectors(program: Program, found: ResolvedRoute) -> ResolvedRoute:
    """Return the routes of a job, asked for vectors if its program or its lines want them; else as they are.

    Raises ``SetupError`` for a provider without embeddings, for message batches, and for fallbacks to another model,
    whose vectors could not be compared with the others.
    """
    if not wants_vectors(program):
        return found
    if other := next((each.model for each in found.fallbacks if each.model != found.route.model), ""):
        text = f"its vectors could not be compared with those of {found.route.model}"
        raise SetupError(f"--fallback {other}: {text}: name the same model at another address, or leave it out")
    own, *others = (_asked_for_vectors(each) for each in (found.connection, *found.connection.fallbacks))
    return msgspec.structs.replace(
        found, route=_wide(found.route), fallbacks=tuple(map(_wide, found.fallbacks)),
        connection=msgspec.structs.replace(own, fallbacks=tuple(others)),
    )  # fmt: skip


def _asked_for_vectors(connection: ConnectionSpec) -> ConnectionSpec:
    row = row_of(connection.provider)
    if not connection.given and not row.embeddings:
        able = ", ".join(each.name for each in PROVIDERS.values() if each.embeddings and not each.by_model)
        raise SetupError(f"{row.title} has no embeddings: give --provider ({able}), or --base-url of a server that has")
    return msgspec.structs.replace(connection, vectors=True, fallbacks=())


def _wide(route: Route) -> Route:
    """Return a route whose requests may have as many tokens as those of embeddings: the window of the model is that of
    one text, and a request has several."""
    if route.batched:
        raise SetupError("--via batches: embeddings are asked for in single requests: leave it out")
    return msgspec.structs.replace(route, context_window=REQUEST_TOKENS + 2)
