"""Watch over calls, money and retries: calls of each job, their outcomes, and the provider's view of them.

Counted from committed events and commands and from the provider's own records, never from the counts of K.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Any

from cortex.state import commands, events
from cortex.state.state import flight_key
from cortex.values.limits import JobTerms
from cortex.values.reply import Usage
from policies.estimates.price import Price, cost_nusd
from policies.estimates.tokens import body_tokens_bound
from policies.failures.failure import FailureKind
from tests.simulation.invariants import JobWatch, Observer, Watch
from tests.simulation.provider import USAGE, spoken

_ACCOUNT = (b"billing_error", b"authentication_error", b"permission_error")
_UNCOUNTED = frozenset({FailureKind.CANCELLED, FailureKind.BLOCKED, FailureKind.UNAUTHORISED})
_REFUSED_HERE = (FailureKind.TOO_LARGE, FailureKind.CANCELLED, FailureKind.TIMED_OUT)
_BUDGETED = frozenset({FailureKind.OVERLOADED, FailureKind.EXPIRED, FailureKind.TRANSIENT, FailureKind.TIMED_OUT})


class _Books:
    """Records of one job."""

    def __init__(self) -> None:
        self.out: dict[tuple[int, int], commands.Call] = {}
        """Calls under way."""
        self.routes: Counter[int] = Counter()
        """Number of calls under way on each route."""
        self.hold_until_s: dict[int, float] = {}
        self.strays: dict[int, bool] = {}
        """Whether the last grant of a route says that refusals there do not follow load: one holds its own call alone."""
        self.blocked: dict[int, set[tuple[int, int]]] = {}
        """Routes with a blocked account, and the calls sent there since that are under way."""
        self.failed: dict[int, tuple[float, FailureKind, int]] = {}
        """Time, kind and route of the last failed attempt of a goal; -1: the goal was to go to another route."""
        self.grants: dict[int, tuple[int, int]] = {}
        """By route: permits and starts of its last grant."""
        self.moved = False
        """True from a grant of a fallback, with none of the own route that is without bound, to one that is."""
        self.failures: Counter[tuple[int, str]] = Counter()
        """Failed attempts of a goal's sample, without throttled ones."""
        self.next_s = 0.0
        """Time at which the next call is due by the user's rate."""
        self.answers = 0
        self.retries = 0
        self.billed_nusd = 0
        self.lost_nusd = 0
        """Highest possible cost of the calls, and of the rows in submissions, in turns that a disk has lost."""
        self.submitted: dict[int, int] = {}
        """Rows of each submission, by its number."""
        self.known_nusd = 0
        self.reserved_nusd = 0
        """Highest possible cost of the calls under way."""
        self.assumed: dict[tuple[int, int], commands.Call] = {}
        """Calls that ended with unknown cost."""
        self.assumed_nusd = 0


def moved(grants: dict[int, tuple[int, int]], terms: JobTerms, before: bool) -> bool:
    """Return whether these grants, of (permits, starts) by route, send a job's work to a fallback; ``before``: it went
    there.
    """
    own = [grants.get(route, (0, -1)) for route in range(1 + terms.peers)]
    others = [grants.get(route, (0, -1)) for route in range(1 + terms.peers, 1 + len(terms.fallbacks))]
    if any(permits and starts < 0 for permits, starts in own):
        return False
    return before or any(permits and starts for permits, starts in others)


class CallsWatch(Observer):
    """Observer of turns, requests and bills. ``asks_as``: by job, another one whose rows it asks."""

    by_turns = True

    def __init__(self, watch: Watch, price: Price, batch_price: Price, asks_as: Mapping[str, str] | None = None) -> None:
        self._watch = watch
        self._asks_as = asks_as or {}
        self._books: dict[str, _Books] = defaultdict(_Books)
        self._committed: Counter[str] = Counter()
        self._begun: Counter[str] = Counter()
        self._before = self._committed
        self._prices = {False: price, True: batch_price}

    # -- turns ---------------------------------------------------------------------------------------------------------

    def lost(self, record: JobWatch, gone: list[list[commands.Command]]) -> None:
        """Forget a job, but neither its bills nor that the lost turns asked for their calls: these are at branches, and
        their cost is what the ledger may lack.
        """
        self._before, old = self._committed.copy(), self._books.pop(record.name, _Books())
        books = self._books[record.name]
        books.billed_nusd, books.lost_nusd = old.billed_nusd, old.lost_nusd
        for one in (one for out in gone for one in out):
            if type(one) is commands.Call:
                assert record.k is not None
                books.lost_nusd += cost_nusd(self._prices[record.k.terms.routes[one.route].batched], USAGE)
            elif type(one) is commands.SubmitBatch:  # its calls may be asked by turns that are left
                books.lost_nusd += old.submitted[one.number] * cost_nusd(self._prices[True], USAGE)

    def rebuilt(self, record: JobWatch) -> None:
        """Count no call twice."""
        self._committed = self._before

    def turned(self, record: JobWatch, turn: events.Turn, out: list[commands.Command]) -> None:
        """A turn is on disk."""
        books = self._books[record.name]
        assert record.k is not None
        for batch in turn.batches:
            for event in batch:
                if type(event) is events.Answered:
                    books.answers += 1
                    call = self._back(record, books, event.goal, event.attempt)
                    if call is not None:
                        books.blocked.pop(call.route, None)
                    self._paid(record, books, call, event)
                elif type(event) is events.AttemptFailed:
                    self._broke(record, books, event, turn.at_s)
                elif type(event) is events.GivenBack:
                    call = self._back(record, books, event.goal, event.attempt)
                    if call is not None:
                        self._committed[spoken(call.body)] -= 1
                        _asked_nobody(record, books)
                elif type(event) is events.PermitsGranted:
                    books.strays[event.route] = event.strays
                    books.grants[event.route] = event.permits, event.starts
                    before, books.moved = books.moved, moved(books.grants, record.k.terms, books.moved)
                    if books.moved and not before:
                        self._hurried(books, record.k.terms.peers)
                elif type(event) is events.ReplyRecalled:
                    for key in [key for key in books.out if key[0] == event.goal]:
                        self._back(record, books, *key)
                        _asked_nobody(record, books)
                elif type(event) is events.Rejoined:
                    books.grants = {}  # the next incarnation asks for its own
                    held = set(event.held)  # held by branches; requests in message batches outlive them
                    routes = record.k.terms.routes
                    for key in [
                        key for key, call in books.out.items() if key not in held and not routes[call.route].batched
                    ]:
                        self._assume(record, books, key, self._back(record, books, *key))
        if any(route.batched for route in record.k.terms.routes):
            self._taken_back(record, books)
        routes = set()
        for command in out:
            if type(command) is commands.Call:
                routes.add(command.route)
                self._call(record, books, command, turn.at_s)
            elif type(command) is commands.SubmitBatch:
                books.submitted[command.number] = len(record.k.submissions[command.number].keys)
            elif type(command) is commands.EmitResult and isinstance(command.value, bytes):
                if b"errored" in command.value and any(word in command.value for word in _ACCOUNT):
                    self._watch.say(f"{record.name}: a row failed for the account's sake: {command.value!r}")
            elif type(command) is commands.FinishJob:
                for key in [key for key in books.out if flight_key(*key) not in record.k.flights]:
                    self._assume(record, books, key, self._back(record, books, *key))
                books.blocked = {route: set() for route in books.blocked}
        if routes:
            self._permits(record, books, routes)
            self._cap(record, books)

    def _hurried(self, books: _Books, peers: int) -> None:
        """Count no goal that waits as a retry on its own route: its job moves to a fallback, which is to take it at
        once. It comes back if the fallback's breaker opens first, and by then its own has closed.
        """
        for goal, (at_s, kind, route) in books.failed.items():
            if route <= peers:
                books.failed[goal] = (at_s, kind, -1)

    def _taken_back(self, record: JobWatch, books: _Books) -> None:
        """Remove calls for message batches that were never sent: they are asked anew, without an event for each."""
        assert record.k is not None
        for key in [key for key in books.out if flight_key(*key) not in record.k.flights]:
            self._back(record, books, *key)
            _asked_nobody(record, books)

    def _cap(self, record: JobWatch, books: _Books) -> None:
        """Check the cap on money by these records, independent of the ledger."""
        assert record.k is not None
        cap = record.k.terms.limits.max_cost_nusd
        spent = books.known_nusd + books.assumed_nusd + books.reserved_nusd
        if cap is not None and spent > cap:
            self._watch.say(
                f"{record.name}: {books.known_nusd} nUSD are known, {books.assumed_nusd} assumed, and what is out may cost"
                f" {books.reserved_nusd}; the cap is {cap}"
            )

    def _paid(self, record: JobWatch, books: _Books, call: commands.Call | None, event: events.Answered) -> None:
        """Charge the cost that a reply reports; without readable usage the highest possible cost stays assumed."""
        if event.reply.usage.unknown:
            self._assume(record, books, (event.goal, event.attempt), call)
            return
        if call is None:
            call = books.assumed.pop((event.goal, event.attempt), None)
            if call is None:
                return
            books.assumed_nusd -= worst_nusd(record, call)
        books.known_nusd += cost_nusd(priced(record, call), event.reply.usage)

    def _assume(self, record: JobWatch, books: _Books, key: tuple[int, int], call: commands.Call | None) -> None:
        if call is not None:
            books.assumed[key] = call
            books.assumed_nusd += worst_nusd(record, call)

    def _permits(self, record: JobWatch, books: _Books, routes: set[int]) -> None:
        k = record.k
        assert k is not None
        for route in routes:
            permits, out = k.shares[route].permits, books.routes[route]
            if out > permits:
                self._watch.say(f"{record.name}: {out} calls are out on route {route} under {permits} permits")
        if len(books.out) > k.terms.limits.concurrency:
            self._watch.say(
                f"{record.name}: {len(books.out)} calls are out, its user allows {k.terms.limits.concurrency}"
            )

    def _back(self, record: JobWatch, books: _Books, goal: int, attempt: int) -> commands.Call | None:
        call = books.out.pop((goal, attempt), None)
        if call is not None:
            books.reserved_nusd -= worst_nusd(record, call)
            books.routes[call.route] -= 1
            if call.route in books.blocked:
                books.blocked[call.route].discard((goal, attempt))
        return call

    def _broke(self, record: JobWatch, books: _Books, event: events.AttemptFailed, at_s: float) -> None:
        call = self._back(record, books, event.goal, event.attempt)
        failure = event.failure
        if call is None:
            return
        assert record.k is not None
        if failure.kind == FailureKind.LOST and not failure.sent and not record.k.terms.routes[call.route].batched:
            self._watch.say(
                f"{record.name}: goal {event.goal} is told as lost, which nobody had taken: {failure.message}"
            )
        if not failure.sent and failure.kind in _REFUSED_HERE:
            _asked_nobody(record, books)
        if failure.sent and (failure.status < 400 or failure.status in (504, 524)):
            self._assume(record, books, (event.goal, event.attempt), call)
        if failure.kind == FailureKind.THROTTLED:
            if failure.retry_after_s and not books.strays.get(call.route):
                until_s = at_s + failure.retry_after_s
                books.hold_until_s[call.route] = max(books.hold_until_s.get(call.route, 0.0), until_s)
        elif failure.sent and failure.kind not in _UNCOUNTED and all(key[0] != event.goal for key in books.out):
            books.failures[event.goal, event.sample] += 1
        if failure.kind in (FailureKind.BLOCKED, FailureKind.UNAUTHORISED):
            books.blocked.setdefault(call.route, set())
        # no retry, though the fallback's breaker may open too, and the goal come back: few, those that were under way
        elsewhere = books.moved and call.route <= record.k.terms.peers
        elsewhere |= bool(record.k.outcome)  # a job at rest: its user has the row asked again, no policy
        books.failed[event.goal] = (at_s, failure.kind, -1 if elsewhere else call.route)

    def _call(self, record: JobWatch, books: _Books, call: commands.Call, at_s: float) -> None:
        say, name = self._watch.say, record.name
        books.out[call.goal, call.attempt] = call
        books.reserved_nusd += worst_nusd(record, call)
        books.routes[call.route] += 1
        self._committed[spoken(call.body)] += 1
        if at_s < books.hold_until_s.get(call.route, 0.0):
            say(f"{name}: a call goes out at {at_s} though the provider said to wait")
        assert record.k is not None
        terms = record.k.terms
        if terms.roles and spoken(call.body).startswith("judge") != bool(terms.lane_at(call.route)):
            say(f"{name}: {spoken(call.body)!r} goes out on route {call.route}")
        rate = terms.limits.requests_per_min
        if rate:
            books.next_s = max(books.next_s, at_s) + 60.0 / rate
            if books.next_s > at_s + 1.0 + 120.0 / rate:
                say(f"{name}: calls go out faster than {rate} a minute")
        if call.route in books.blocked:
            if books.blocked[call.route]:
                say(f"{name}: route {call.route} is blocked and a second call goes out before the first is back")
            books.blocked[call.route].add((call.goal, call.attempt))
        assert record.k is not None
        policy = record.k.terms.limits.retry
        if books.failures[call.goal, call.sample] >= policy.attempts_max:
            say(f"{name}: goal {call.goal} is asked again after {policy.attempts_max} failed attempts")
        failed_s, kind, route = books.failed.pop(call.goal, (0.0, FailureKind.LOST, 0))
        probe = record.k.shares[call.route].starts >= 0  # the breaker bounds probes
        if kind in _BUDGETED and at_s - failed_s < policy.cap_s and call.route == route and not probe:
            books.retries += 1
            budget = policy.budget_floor + int(policy.budget_share * books.answers)
            if books.retries > budget:
                say(f"{name}: {books.retries} retries at once, the budget is {budget}")

    # -- the provider --------------------------------------------------------------------------------------------------

    def asked(self, request: Any) -> None:
        """A request reaches the provider."""
        text = request.text
        self._begun[text] += 1
        if self._begun[text] > self._committed[text]:
            self._watch.say(f"{text!r} is asked {self._begun[text]} times, a turn asked for {self._committed[text]}")

    def billed(self, request: Any) -> None:
        """Check that the ledger knows, assumes or has reserved what the provider charges."""
        name, _, rest = request.text.partition(" ")
        record = self._watch.jobs.get(name)
        if not rest.startswith("row") or record is None or record.k is None:
            return
        books = self._books[name]
        less = not request.usage.unknown and request.usage.input_tokens < USAGE.input_tokens
        usage = request.usage if less else USAGE  # more is told with the reply
        books.billed_nusd += cost_nusd(self._prices[request.batched], usage)
        committed, lost_nusd = record.k.ledger.committed_nusd, books.lost_nusd
        if record.k.shards:  # the parent learns the shards' costs a moment later
            committed = 0
        for other, each in self._watch.jobs.items():
            if other.startswith(f"{name}~") or self._asks_as.get(other) == name:
                committed += each.k.ledger.committed_nusd if each.k is not None else 0
                lost_nusd += self._books[other].lost_nusd
        if books.billed_nusd > committed + lost_nusd:
            self._watch.say(f"{name}: {books.billed_nusd} nUSD are billed, the ledger holds {committed}")


def _asked_nobody(record: JobWatch, books: _Books) -> None:
    """Take a call out of the count of the user's rate: another may go out in its place."""
    assert record.k is not None
    if rate := record.k.terms.limits.requests_per_min:
        books.next_s -= 60.0 / rate


def priced(record: JobWatch, call: commands.Call) -> Price:
    assert record.k is not None
    price = record.k.terms.routes[call.route].price
    assert price is not None
    return price


def worst_nusd(record: JobWatch, call: commands.Call) -> int:
    """Return the highest possible cost of one attempt: a prompt has no more tokens than bytes, and than its bound."""
    tokens = min(body_tokens_bound(call.body), call.prompt_tokens_max)
    return cost_nusd(priced(record, call), Usage(tokens, call.output_tokens_max))
