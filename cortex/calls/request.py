"""Requests: a call is rendered within M, reserved in the ledger, and sent on the first route with a free permit."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from hashlib import blake2b
from typing import Any

from cortex.admission import budget_slices
from cortex.admission.permits import begin, way, way_to
from cortex.calls import cache_warming
from cortex.goals.lifecycle import ASKED, OPEN, begin_timeout, set_asked, set_status
from cortex.state import commands
from cortex.state.changes import Ask, Vote
from cortex.state.route_share import RouteShare
from cortex.state.state import TRIES_MAX, Goal, InFlightAttempt, State, flight_key
from cortex.values.ledger import Charge, worst_charge
from cortex.values.limits import Route
from cortex.values.prompt import (
    ESCAPED,
    DoesNotFit,
    Prompt,
    Role,
    TextFrame,
    encode_json,
    fast_text_body,
    request_body,
    text_frame,
    with_model,
)
from policies.estimates.price import Price
from policies.estimates.tokens import FRAMING_TOKENS, body_tokens_bound, text_body_tokens_bound, tokens_bound
from policies.failures.timeout import attempt_timeout_s

AS_GIVEN = "as given"
"""Constructor's name of a request that the input gave whole: there is nothing to render, shorten or split."""


_new_hash = blake2b(digest_size=16).copy  # copying takes half as long as creating


def question_hash(endpoint: str, body: bytes, sample: str) -> bytes:
    """Return the identity of a question: endpoint, model, prompt and parameters (all in the body), and sample. 16
    bytes.
    """
    return _hashed(_head(endpoint, len(sample)), sample, body)


def _head(endpoint: str, sample_length: int) -> str:
    """Prefix of the hashed bytes: its lengths keep different questions from hashing the same bytes."""
    return f"{len(endpoint)} {sample_length} {endpoint}"


def _hashed(head: str, sample: str, body: bytes) -> bytes:
    made = _new_hash()
    made.update((head + sample).encode())
    made.update(body)
    return made.digest()


def ask(k: State, goal: Goal, change: Ask, once: bool, out: list[commands.Command], meant: int = -1) -> bool:
    """Send this goal's call, share an attempt that asks the same question now, or note that the ledger refuses.

    Returns True if the goal needs no permit now: it shares an attempt, or waits for its prefix. The call goes to the
    route ``meant`` if it may be used, else to the first of its lane that may. ``once``: no two questions of the run are
    equal. Raises ``DoesNotFit`` if no prompt fits M, with nothing changed.
    """
    terms, limits = k.terms, k.terms.limits
    lane = terms.roles.get(change.role, 0) if change.role else 0
    place = way(k, lane, goal.tried) if meant < 0 else way_to(k, meant, goal.tried)
    if place < 0:
        return _waits_for_a_route(k, goal)
    output_tokens_max = change.output_tokens_max or limits.output_tokens_max
    tokens_max = terms.prompt_tokens_max(output_tokens_max, place)
    body, constructor, text_bytes, bound = change.made or rendered(k, change, output_tokens_max, tokens_max, lane)
    sample = goal.sample if change.sample is None else change.sample
    route = terms.role_routes[lane - 1] if lane else terms.route
    question = sent = question_hash(route.endpoint, body, sample)
    if (not once or k.asking) and (shared := _same_question(k, question)) is not None:
        _asks_now(k, goal, sample, constructor, question, lane)
        _follows(k, goal, shared)
        return True
    if place and not lane:
        if change.prompt is None and not _fits_there(k, bound, tokens_max, output_tokens_max):
            return False
        route = terms.fallbacks[place - 1]
        if place > terms.peers:  # another server of the job's own model answers the same question
            body, sent = _of_fallback(route, body, sample)
    caching = (route.price is not None or limits.warm_prefix) and b'"cache_control"' in body
    prefix = cache_warming.prefix_of(place, body) if caching and limits.warm_prefix and not route.batched else b""
    if prefix and not cache_warming.goes(k, goal, prefix):
        return True
    waits = waits_of(goal, question) if goal.assumed and k.shares[place].starts < 0 else 0  # a probe has no more time
    charge, timeout_s = _charge_and_timeout(k, place, route.price, bound, tokens_max, output_tokens_max, caching, waits)
    if not budget_slices.affords(k, charge, wanted=True):
        k.short = True
        if k.on_decision is not None:
            k.on_decision(goal.id, "over_budget", {"charge": charge, "ledger": k.ledger, "limits": limits})
        return False
    if goal.next_attempt > TRIES_MAX:
        raise ValueError(f"more than {TRIES_MAX} attempts at one goal: {goal.story()}")
    if goal.question == question and goal.tries > goal.unsent:
        k.tally.retries += 1
    _asks_now(k, goal, sample, constructor, question, lane)
    attempt = goal.count_attempt()
    k.ledger.reserve(charge)
    share = k.shares[place]
    bounded = share.bounded if share.starts > 0 else 0
    paced = begin(k, place, charge.bounds[1] - output_tokens_max, output_tokens_max)
    key = flight_key(goal.id, attempt)
    flight = k.flights[key] = InFlightAttempt(
        goal.id, attempt, sample, question, k.at_s, charge, text_bytes, place, b"" if sent is question else sent,
        output_tokens_max, paced, share.blocked is not None, bounded=bounded,
    )  # fmt: skip
    if not once:
        k.asking[question] = key
    if prefix:
        flight.prefix = cache_warming.ahead(k, prefix, key)
    if limits.hedge_after_s is not None and not route.batched and not flight.probe:
        flight.body = body
        k.unhedged[key] = k.at_s + limits.hedge_after_s
    if timeout_s > k.call_timeout_max_s:
        k.call_timeout_max_s = timeout_s
    if k.on_decision is not None:
        k.on_decision(goal.id, "asked", {"flight": flight, "place": place, "lane": lane, "tokens_bound": bound})
    out.append(commands.Call(
        goal.id, sample, attempt, sent, body, output_tokens_max, tokens_max, timeout_s, place, share.generation
    ))  # fmt: skip
    return False


def _charge_and_timeout(
    k: State, place: int, price: Price | None, bound: int, input_max: int, output_max: int, caching: bool,
    waits: int = 0,
) -> tuple[Charge, float]:  # fmt: skip
    """The most that an attempt can cost, and its timeout in seconds; ``bound``: the most input tokens it can have."""
    charge = worst_charge(price, min(bound, input_max), output_max, caching, k.ledger.day)
    if (excess := k.shares[place].excess) is not None:
        charge = charge.raised_by(excess, k.ledger.day, price, output_max)
    return charge, attempt_timeout_s(k.terms.limits.timeout, output_max, bound, k.shares[place].patience, waits)


def _waits_for_a_route(k: State, goal: Goal) -> bool:
    """False; note where a goal waits for a server of equal rank that did not fail it."""
    k.elsewhere |= goal.tried > 0
    return False


def _of_fallback(route: Route, body: bytes, sample: str) -> tuple[bytes, bytes]:
    """The request as a fallback is asked, and the hash of its reply."""
    body = with_model(body, route.model)
    return body, question_hash(route.endpoint, body, sample)


def waits_of(goal: Goal, question: bytes) -> int:
    """Return the number of attempts at this question that were given up and may still be answered."""
    return sum(missing.question == question for missing in (goal.assumed or {}).values())


def _fits_there(k: State, bound: int, tokens_max: int, output_tokens_max: int) -> bool:
    """True if a whole request may go to a fallback: a fallback with a smaller window may not take it."""
    if bound <= tokens_max or tokens_max >= k.terms.prompt_tokens_max(output_tokens_max):
        return True
    k.elsewhere = True
    return False


def _asks_now(k: State, goal: Goal, sample: str, constructor: str, question: bytes, lane: int) -> None:
    set_status(k, goal, ASKED)
    if goal.lane != lane:
        goal.lane = lane
    if k.reading:
        k.reading.pop(goal.id, None)
    if goal.question != question:
        k.tally.calls += 1
        goal.question = question
    goal.sample, goal.constructor = sample, constructor
    if goal.hedge:
        goal.hedge = 0
    if k.terms.limits.goal_timeout_s is not None:
        begin_timeout(k, goal)


def _follows(k: State, goal: Goal, shared: InFlightAttempt) -> None:
    """Let the goal take the answer of another goal's attempt."""
    shared.followers.append(goal.id)
    shared.abandoned = False
    if k.on_decision is not None:
        k.on_decision(goal.id, "shares", {"goal": shared.goal, "attempt": shared.attempt, "sample": shared.sample})


def _same_question(k: State, question: bytes) -> InFlightAttempt | None:
    """The attempt that is asking this question now and was not abandoned, or is in a batch that the provider has: its
    result comes either way, and may be billed."""
    flight = k.flights.get(k.asking.get(question, -1))
    if flight is None or not flight.abandoned:
        return flight
    made = k.submissions.get(flight.submission)
    return flight if made is not None and made.name else None


# -- the fast path ---------------------------------------------------------------------------------------------------


# Prices and timeouts have one function for both paths. Sending has not: the flight and the command in a function of
# their own cost the step 1.5 to 2 % for a call of a batch.
def fast_ask(k: State, changes: Iterator[Ask | Vote], once: bool, out: list[commands.Command]) -> Ask | Vote | None:
    """Send eligible calls as ``ask`` does (fast path), and return the first call that is not sent; None if all are.

    Eligible is the first attempt at an open goal on the job's own route, while ``may_ask_fast`` holds and permits and
    money last. What these calls have in common is looked up once, and totals are added once. Equal to ``ask`` by
    ``tests/properties/test_fast_paths.py``: the same K and the same commands, byte for byte.
    """
    terms, limits, model, share = k.terms, k.terms.limits, k.terms.route.model, k.shares[0]
    if not may_ask_fast(k, share):
        return next(changes, None)
    price, endpoint, at_s, generation = terms.route.price, terms.route.endpoint, k.at_s, share.generation
    goals, flights, asking, longest_s = k.goals, k.flights, k.asking, k.call_timeout_max_s
    capped, room = not budget_slices.unbounded(k), share.permits - share.in_flight
    by_output: dict[int, tuple[int, TextFrame, dict[int, tuple[Charge, float]]]] = {}  # by ``max_tokens``
    hashes: dict[str, Any] = {}  # hash state common to questions of one sample
    sent, nusd, tokens, caching, looked_at = 0, 0, 0, False, b""
    other = None
    for change in changes:
        other, goal = change, change.goal  # returned unless it is sent
        try:
            if (
                type(change) is not Ask or sent >= room or goal.status is not OPEN or goal.tries or goal.question
                or goal.hedge or goals.get(goal.id) is not goal or change.uses or change.role
            ):  # fmt: skip
                break
            output_max = change.output_tokens_max or limits.output_tokens_max
            known = by_output.get(output_max)
            if known is None:
                known = by_output[output_max] = terms.prompt_tokens_max(output_max), text_frame(model, output_max), {}
            input_max, frame, weights = known
            made = change.made or fast_request(k, change, output_max, input_max, frame)
            if made is None:
                break
            body, constructor, text_bytes, bound = made
            sample = goal.sample if change.sample is None else change.sample
            hashed = (hashes.get(sample) or hashes.setdefault(sample, _begun(endpoint, sample))).copy()
            hashed.update(body)
            question = hashed.digest()
            if price is not None and looked_at is not body:  # samples of one question follow each other
                caching, looked_at = b'"cache_control"' in body, body
            weight = weights.get(~bound if caching else bound)
            if weight is None:
                weight = _charge_and_timeout(k, 0, price, bound, input_max, output_max, caching)
                weights[~bound if caching else bound] = weight
            charge, timeout_s = weight
            if (asking and question in asking) or (capped and not _committed(k, charge)):
                break
            set_asked(k, goal)
        except Exception:  # code or values of a program: ``ask`` raises the error again where it is handled
            break
        goal.tries, goal.question, goal.constructor = 1, question, constructor
        if goal.sample is not sample:  # reading a field is faster than setting it
            goal.sample = sample
        goal_id = goal.id
        key = goal_id << 20 | 1
        flights[key] = InFlightAttempt(goal_id, 1, sample, question, at_s, charge, text_bytes, 0, b"", output_max)
        if not once:
            asking[question] = key
        sent += 1
        tokens += charge.tokens
        nusd += charge.nusd
        if timeout_s > longest_s:
            longest_s = timeout_s
        out.append(commands.Call(goal_id, sample, 1, question, body, output_max, input_max, timeout_s, 0, generation))
        other = None
    if sent:
        k.tally.calls, k.call_timeout_max_s = k.tally.calls + sent, longest_s
        share.in_flight += sent
        k.ledger.reserve(Charge(nusd, tokens, k.ledger.day) if not capped else _NO_CHARGE, sent)
    return other


_NO_CHARGE = Charge(0, 0)
_SYSTEM = Role.SYSTEM  # looked up once: access to enum members is slow


@lru_cache(maxsize=256)
def _begun(endpoint: str, sample: str) -> Any:
    """Hash state up to the body, common to questions of one endpoint and sample. Copy before use."""
    begun = _new_hash()
    begun.update((_head(endpoint, len(sample)) + sample).encode())
    return begun


def _committed(k: State, charge: Charge) -> bool:
    """Reserve this charge if caps and slices allow it: each charge is checked before the next."""
    if not budget_slices.affords(k, charge, wanted=True):
        return False
    k.ledger.reserve(charge, 0)
    return True


def may_ask_fast(k: State, share: RouteShare) -> bool:
    """Return True if the fast path may be used on the job's own route.

    The route must be no probe and have no pace, and no feature of the job may need to see each call.
    """
    terms, limits = k.terms, k.terms.limits
    return not (
        terms.peers or share.pace is not None or share.blocked is not None or share.starts >= 0
        or share.hold_until_s > k.at_s or share.excess is not None or k.pace is not None or k.reading
        or k.on_decision is not None
        or terms.role_routes or limits.warm_prefix or limits.hedge_after_s is not None
        or limits.goal_timeout_s is not None
    )  # fmt: skip


def asked_as_given(k: State, goal: Goal, sample: str, body: bytes, output_max: int, at_s: float) -> InFlightAttempt:
    """Set the goal as ``fast_ask`` would have set it for its first attempt with this request; return the flight.

    The flight is not entered into K yet.
    """
    terms = k.terms
    output_max = output_max or terms.limits.output_tokens_max
    price, question = terms.route.price, question_hash(terms.route.endpoint, body, sample)
    bound, input_max = body_tokens_bound(body), terms.prompt_tokens_max(output_max)
    caching = price is not None and b'"cache_control"' in body
    charge, _ = _charge_and_timeout(k, 0, price, bound, input_max, output_max, caching)
    goal.status, goal.tries, goal.question, goal.constructor, goal.sample = ASKED, 1, question, AS_GIVEN, sample
    return InFlightAttempt(goal.id, 1, sample, question, at_s, charge, 0, 0, b"", output_max)


def fast_request(
    k: State, change: Ask, output_tokens_max: int, tokens_max: int, frame: TextFrame
) -> tuple[bytes, str, int, int] | None:  # fmt: skip
    """Return what ``rendered`` returns, for a whole request or a text-only prompt that provably fits (fast path).

    None for all other requests. ``frame``: result of ``text_frame`` for the job's own model. Equal to ``rendered`` by
    ``tests/properties/test_fast_paths.py``.
    """
    prompt = change.prompt
    if output_tokens_max <= 0 or tokens_max <= 0:
        return None
    if prompt is None:
        body = change.body
        return None if body is None else (body, AS_GIVEN, 0, body_tokens_bound(body))
    if type(prompt) is not Prompt or change.params is not None:
        return None
    parts, separator = prompt.parts, prompt.separator
    if len(parts) == 1 and frame.ascii_only and not prompt.lead:
        part = parts[0]
        text = part.text
        if type(text) is str and not part.title and part.role != _SYSTEM and text.isascii() and separator.isascii():
            data, size = encode_json(text), len(text)
            # longer than the text and its quotes: something is escaped, in one letter or by its number
            if len(data) == size + 2 or ESCAPED not in data:
                body, size = frame.before + data + frame.after, len(separator) + size
                fits = size + FRAMING_TOKENS <= tokens_max
                return (body, prompt.constructor, size, len(body) + FRAMING_TOKENS) if fits else None
    system, user = prompt.both()
    if user.isascii() and system.isascii() and separator.isascii():  # joined as in ``text``
        size = len(system) + len(separator) + len(user)
        bound = size + FRAMING_TOKENS
    else:
        text = system + separator + user
        size, bound = len(text.encode()), tokens_bound(text)
    if bound > tokens_max or len(parts) > k.terms.limits.parts_max:
        return None
    body = fast_text_body(system, user, k.terms.route.model, output_tokens_max)
    return body, prompt.constructor, size, text_body_tokens_bound(body)


# -- the request -----------------------------------------------------------------------------------------------------


def rendered(
    k: State, change: Ask, output_tokens_max: int, tokens_max: int, lane: int
) -> tuple[bytes, str, int, int]:  # fmt: skip
    """Return the request, its constructor's name, the UTF-8 bytes of its text, and the most tokens that it can be.

    The estimate learns from the bytes of the text. They are 0 for a request that the input gave whole: it is not
    packed, and its bytes are JSON as much as text.
    """
    if output_tokens_max < 0:
        raise ValueError(f"output_tokens_max must be above zero, not {output_tokens_max}")
    if tokens_max <= 0:
        raise DoesNotFit(f"a reply of {output_tokens_max} tokens leaves no room for a prompt")
    if change.prompt is None:
        if change.body is None:
            raise ValueError("an Ask needs a prompt or a body")
        body = with_model(change.body, k.terms.role_routes[lane - 1].model) if lane else change.body
        return body, AS_GIVEN, 0, body_tokens_bound(body)
    prompt, text = change.prompt, change.prompt.text()
    parts_max = k.terms.limits.parts_max
    if k.on_decision is not None:
        k.on_decision(change.goal.id, "rendering", {"prompt": prompt, "tokens_max": tokens_max, "parts_max": parts_max})
    # its size in bytes does not prove that it fits
    if len(prompt.parts) > parts_max or tokens_bound(text) > tokens_max:
        prompt = prompt.fit(tokens_max, k.tokens, parts_max)
        text = prompt.text()
    model = k.terms.role_routes[lane - 1].model if lane else k.terms.route.model
    body = request_body(prompt, model, output_tokens_max, change.params)
    if k.on_decision is not None:
        k.on_decision(change.goal.id, "rendered", {"prompt": prompt, "text": text, "tokens_max": tokens_max})
    return body, prompt.constructor, len(text.encode()), body_tokens_bound(body)
