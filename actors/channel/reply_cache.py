"""Calls that are answered from the index of replies, because a job has paid for them before."""

from __future__ import annotations

from actors.journal.journal import Journal
from actors.journal.reply_index import ReplyCache
from actors.messaging.inbox import InboxEntry
from cortex.journal import codec
from cortex.state import commands, events


def without_recalled(
    job: str, calls: list[commands.Call], memory: ReplyCache, own: Journal
) -> tuple[list[commands.Call], InboxEntry | None]:
    """Return the calls to send, and the entry of the next turn that answers the others; None if there are no others."""
    found = memory.find([call.hash for call in calls], own)
    recalled: list[events.Event] = []
    whole: list[events.Event] = []
    for call in calls:
        hit = found.get(call.hash)
        if hit is not None:
            reply = None if hit.job == job else hit.reply
            recalled.append(events.ReplyRecalled(call.goal, call.sample, call.hash, reply, hit.seq, hit.position))
            whole.append(events.ReplyRecalled(call.goal, call.sample, call.hash, hit.reply, hit.seq, hit.position))
    if not recalled:
        return calls, None
    # the step sees each reply whole; the journal keeps it once
    entry = InboxEntry(codec.encode_batch(recalled), len(recalled), None, tuple(whole))
    return [call for call in calls if call.hash not in found], entry
