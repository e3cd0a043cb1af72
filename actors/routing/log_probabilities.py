"""Refusal of routes that give no log probabilities, before anything is started or paid."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from actors.ports.model import Model
from actors.providers.registry import API_TITLES, CHAT_CLIENT, RESPONSES_CLIENT, is_own_server
from actors.routing.endpoints import whereto
from actors.routing.model_spec import ModelSpec, SetupError, spread
from cortex.programs.parts.choice_columns import TOP_DEFAULT
from cortex.programs.shards import unsharded
from cortex.programs.table import Table
from cortex.state.program import Program
from cortex.values.limits import BATCHES

_LEAVE: Final = "leave --logprobs out"


def refuse_without(
    program: Program, spec: ModelSpec, environ: Mapping[str, str], models: Sequence[Model | None] = ()
) -> None:
    """Raise ``SetupError`` for a job that asks for log probabilities and has a route without them.

    ``models``: model objects of the user's for the job's own route and its fallbacks; they may have some, and where
    they have none, the cells are empty.
    """
    table, _ = unsharded(program)
    if not isinstance(table, Table) or not isinstance(table.top_logprobs, int):
        return
    spec = spread(spec)
    for at, each in enumerate((spec, *spec.fallbacks)):
        if (at >= len(models) or models[at] is None) and (why := _lacking(each, table.top_logprobs, environ)):
            raise SetupError(why)


def _lacking(spec: ModelSpec, top: int, environ: Mapping[str, str]) -> str:
    """Return why a route cannot give what is wanted, in one line; empty if it can."""
    row = spec.row
    own = not row.by_model and is_own_server(whereto(spec, environ))
    if spec.via == BATCHES:
        return f"--logprobs: message batches have no log probabilities: leave --via out, or {_LEAVE}"
    if row.logprobs:
        most = None if own or row.by_model else TOP_DEFAULT
        if most is None or top <= most:
            return ""
        return f"--top-logprobs {top}: {row.title} gives {most} at most: give that, or less"
    if row.client == CHAT_CLIENT:
        return f"--logprobs: {row.title} gives no log probabilities: {_LEAVE}"
    if own:
        api, chat, responses = (API_TITLES[each] for each in (row.client, CHAT_CLIENT, RESPONSES_CLIENT))
        ways = f"--api chat for {chat}, or --api responses for {responses}"
        return f"--logprobs: {api} has no log probabilities: give {ways}, or {_LEAVE}"
    name = f"the {row.title}" if row.by_model else row.title
    return f"--logprobs: {name} gives no log probabilities: {_LEAVE}, or give --provider openai"
