"""Simulated provider: one shared state behind the models of all branches. It bills, throttles, fails, hangs and blocks.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from hashlib import blake2b
from typing import Any

import msgspec

from actors.routing.model_factory import ConnectionSpec
from cortex.values.reply import Reply, Usage
from policies.failures.failure import Failure, FailureKind
from policies.limits.limit import RateLimits, ReportedBucket
from tests.simulation.loop import NOBODY, Life
from tests.simulation.odd_usage import USAGE, odd_reply, read_as

DEPTH_MAX = 100
"""Levels of JSON in an answer that K can hold."""
REFUSED = " refused"
"""Suffix of rows that the provider rejects."""
ELECT = "elect "
"""Prefix of questions that are voted on."""
SOON_S = 0.02
"""Seconds that a refusal takes."""


class Request:
    """Request as the provider sees it."""

    __slots__ = ("batched", "began_s", "endpoint", "life", "model", "text", "timeout_s", "usage")

    def __init__(
        self, endpoint: str, text: str, life: Life, began_s: float, timeout_s: float, batched: bool = False,
        model: str = "m",
    ) -> None:  # fmt: skip
        self.endpoint, self.text, self.life, self.began_s, self.timeout_s = endpoint, text, life, began_s, timeout_s
        self.batched, self.model = batched, model
        self.usage = USAGE
        """Tokens that are billed for it."""


class Pool:
    """Unit of rate limiting: a token bucket, and a bound of concurrent requests."""

    def __init__(self, requests_per_s: float, burst_s: float, concurrency: int) -> None:
        self.requests_per_s = requests_per_s
        self.size = max(1.0, requests_per_s * burst_s)
        self.tokens = self.size
        self.concurrency = concurrency
        self.at_s = 0.0
        self.answering = 0
        self.begun = self.throttled = self.answered = self.failed = self.refused = 0

    def admits(self, now_s: float) -> float:
        """Return 0 if a request is admitted, otherwise the seconds until one would be."""
        if self.concurrency and self.answering >= self.concurrency:
            return 1.0
        if not self.requests_per_s:
            return 0.0
        self.tokens = min(self.size, self.tokens + (now_s - self.at_s) * self.requests_per_s)
        self.at_s = now_s
        if self.tokens >= 1.0:
            self.tokens -= 1.0
            return 0.0
        return (1.0 - self.tokens) / self.requests_per_s


class Provider:
    """Endpoints by name; each has its own pool."""

    def __init__(self, world: Any) -> None:
        self._world = world
        self._loop = world.loop
        self._plan = world.plan.provider
        self.random = world.plan.chance("provider").random
        self._bills = world.plan.chance("bills").random
        self.pools: dict[str, Pool] = {}
        self.under_way: dict[Request, None] = {}
        """Requests being answered, oldest first."""
        self.trouble: dict[str, tuple[float, str]] = {}
        """By endpoint: share of its requests that fail, and the kind of failure; empty: any kind."""
        self.seconds: Counter[tuple[str, int]] = Counter()
        """(event, second) -> requests begun, throttled, answered, failed or refused in that second."""
        self._votes: Counter[str] = Counter()
        """Number of replies to each question that is voted on."""
        self.blocked = False
        self.credit = math.inf
        """Answers until the account is blocked."""
        self.in_flight_when_dry = 0
        self.overbilled = False
        """True once odd usage reported more than an answer has."""

    def pool(self, endpoint: str) -> Pool:
        """Return the pool of an endpoint."""
        found = self.pools.get(endpoint)
        if found is None:
            plan = self._plan
            found = self.pools[endpoint] = Pool(plan.requests_per_s, plan.burst_s, plan.concurrency)
        return found

    def model(self, blob: bytes, life: Life) -> SimModel:
        """Return the model that an encoded connection describes."""
        endpoint = msgspec.msgpack.decode(blob, type=ConnectionSpec).endpoint
        return SimModel(self, endpoint, life, self._world.account.desk(endpoint, life))

    def latency_s(self) -> float:
        """Draw the seconds that the next answer takes."""
        plan = self._plan
        return float(plan.latency_s * (1.0 + plan.jitter * (2.0 * self.random() - 1.0)))

    async def answer(self, request: Request) -> Reply | Failure:
        """Return the outcome of a request."""
        loop, pool = self._loop, self.pool(request.endpoint)
        pool.begun += 1
        self._note("begun")
        self._world.watch.asked(request)
        if self.blocked or self.credit <= 0:
            pool.refused += 1
            self._note("refused")
            await asyncio.sleep(SOON_S)
            return Failure(FailureKind.BLOCKED, "Your credit balance is too low", 400, "invalid_request_error")
        wait_s = pool.admits(loop.time())
        if wait_s > 0:
            pool.throttled += 1
            self._note("throttled")
            await asyncio.sleep(SOON_S)
            after_s = float(math.ceil(wait_s)) if self._plan.retry_after else None
            return Failure(FailureKind.THROTTLED, "rate limited", 429, "rate_limit_error", after_s)
        trouble = self._trouble(request.endpoint)
        if trouble == "hangs":
            await asyncio.Event().wait()
        if trouble == "given up":  # a gateway gives up; the provider goes on, and bills the answer
            await self._complete(request, pool)
            return _FAILURES[trouble]
        if trouble:
            await asyncio.sleep(SOON_S + 0.2 * self.random())
            pool.failed += 1
            self._note("failed")
            return _FAILURES[trouble]
        if request.text.endswith(REFUSED):
            await asyncio.sleep(SOON_S)
            return Failure(FailureKind.REJECTED, f"{request.text} makes no sense", 400, "invalid_request_error")
        return await self._complete(request, pool)

    async def _complete(self, request: Request, pool: Pool) -> Reply:
        """Answer and bill a request, whether or not the caller still waits."""
        self.bill(request)
        self.credit -= 1
        if self.credit == 0:
            self.in_flight_when_dry = len(self.under_way) + 1
        pool.answering += 1
        self.under_way[request] = None
        took_s = self.latency_s()
        self._loop.call_later(took_s, self._over, request, pool, context=NOBODY)
        await asyncio.sleep(took_s)
        return self.reply(request)

    def bill(self, request: Request) -> None:
        """Decide what is billed for the answer to a request."""
        plan = self._plan
        if plan.billing and self._bills() < plan.billing:
            request.usage = _usage(plan.bills)
        elif self.odd(request.text):
            request.usage = read_as(request.text)
            self.overbilled |= request.usage.input_tokens > USAGE.input_tokens

    def reply(self, request: Request) -> Reply:
        """Return the answer to a request."""
        text = request.text
        if self.shaped(text):
            return Reply(self.body(text), "end_turn", "m", request.usage)
        answer = self._voted(text) if text.startswith(ELECT) else said(text)
        if self.odd(text):
            return odd_reply(text, answer, request.batched)
        return reply(answer, request.usage)

    def odd(self, text: str) -> bool:
        """Return whether the usage of an answer to this text is sent in a form that no API describes."""
        odd = self._plan.odd_usage
        return bool(odd) and blake2b(text.encode(), digest_size=1, person=b"odd").digest()[0] < 256 * odd

    def shaped(self, text: str) -> bool:
        """Return whether the answer to a row is large or deep."""
        shapes = self._plan.shapes
        return bool(shapes) and " row " in text and blake2b(text.encode(), digest_size=1).digest()[0] < 256 * shapes

    def too_deep(self, text: str) -> bool:
        """Return whether the answer to a row is one that K cannot hold."""
        return self.shaped(text) and _shape(text) % 3 == 2

    def body(self, text: str) -> bytes:
        """Return such an answer, always the same: of the greatest depth that K can hold, of one more, or large."""
        draw = _shape(text)
        block = msgspec.json.encode({"type": "text", "text": said(text) + " " * (draw * 200 if draw % 3 == 0 else 0)})
        levels = 0 if draw % 3 == 0 else DEPTH_MAX - 3 + draw % 3 - 1
        more = b',"x":' + b"[" * levels + b"]" * levels if levels else b""
        return b'{"content":[' + block[:-1] + more + b"}]}"

    def _voted(self, text: str) -> str:
        """Return a vote. One reply to each question is wrong and another a red flag; neither can win."""
        time, self._votes[text] = self._votes[text], self._votes[text] + 1
        draw = blake2b(text.encode(), digest_size=3).digest()
        if time == draw[1] % 4:
            return "c"
        return "?" if time == draw[2] % 4 else elected(text)

    def _over(self, request: Request, pool: Pool) -> None:
        pool.answering -= 1
        pool.answered += 1
        self._note("answered")
        self.under_way.pop(request, None)
        self._world.watch.billed(request)

    def _note(self, what: str) -> None:
        self.seconds[what, int(self._loop.time())] += 1

    def count(self, what: str, from_s: int, to_s: int) -> int:
        """Return the number of requests with this event between two moments."""
        return sum(self.seconds[what, second] for second in range(from_s, to_s))

    def _trouble(self, endpoint: str) -> str:
        if self._world.calm:
            return ""
        draw = self.random()
        found = self.trouble.get(endpoint) or self.trouble.get("")
        if found is not None:
            return found[1] if draw < found[0] else ""
        plan = self._plan
        if draw < plan.failing:
            part = draw / plan.failing
            return "overloaded" if part < 0.5 else "broken" if part < 0.8 else "given up"
        return "hangs" if draw < plan.failing + plan.hanging else ""

    def rate(self, endpoint: str) -> RateLimits | None:
        """Return the rate limits in an answer's headers."""
        pool = self.pool(endpoint)
        if not self._plan.headers or not pool.requests_per_s:
            return None
        a_minute = round(pool.requests_per_s * 60)
        left = max(0, int(pool.tokens / pool.size * a_minute))
        reset_s = (a_minute - left) / pool.requests_per_s
        return RateLimits(requests=ReportedBucket(a_minute, left, reset_s))


class SimModel:
    """Model of one branch."""

    def __init__(self, provider: Provider, endpoint: str, life: Life, batches: Any) -> None:
        self.endpoint, self.batches = endpoint, batches
        self._provider, self._life = provider, life
        self._loop = asyncio.get_running_loop()

    @property
    def rate(self) -> RateLimits | None:
        return self._provider.rate(self.endpoint)

    async def call(self, body: bytes, *, output_tokens_max: int, timeout_s: float, progress: Any = None) -> Any:
        model = _decoder.decode(body).model
        request = Request(self.endpoint, spoken(body), self._life, self._loop.time(), timeout_s, model=model)
        return await self._provider.answer(request)

    async def count_tokens(self, body: bytes) -> int | None:
        return None

    async def close(self) -> None:
        pass


_FAILURES = {
    "overloaded": Failure(FailureKind.OVERLOADED, "overloaded", 529, "overloaded_error"),
    "broken": Failure(FailureKind.TRANSIENT, "connection lost"),
    "given up": Failure(FailureKind.TRANSIENT, "gateway timeout", 504),
}


class _Content(msgspec.Struct):
    content: str


class _Body(msgspec.Struct):
    messages: list[_Content]
    model: str = "m"


_decoder = msgspec.json.Decoder(_Body)


def spoken(body: bytes) -> str:
    """Return the text of the question."""
    return _decoder.decode(body).messages[0].content


def said(text: str) -> str:
    """Return the answer to a text, always the same."""
    draw = blake2b(text.encode(), digest_size=2).digest()[0]
    if text.startswith("plan") and draw % 3 == 0:
        return f"split:{1 + draw % 4}"
    if draw == 7:
        return "?"
    return "ab"[draw % 2]


def elected(text: str) -> str:
    """Return the vote of all replies to a question but one."""
    return "ab"[blake2b(text.encode(), digest_size=1).digest()[0] % 2]


def _shape(text: str) -> int:
    return blake2b(text.encode(), digest_size=2).digest()[1]


def _usage(times: float) -> Usage:
    """Return the usage of an answer that is billed so many times."""
    if not times:
        return Usage(unknown=True)
    return Usage(round(times * USAGE.input_tokens), round(times * USAGE.output_tokens))


_replies: dict[tuple[str, Usage], Reply] = {}


def reply(text: str, usage: Usage = USAGE) -> Reply:
    """Return a message of one text block."""
    found = _replies.get((text, usage))
    if found is None:
        body = msgspec.json.encode({"content": [{"type": "text", "text": text}]})
        found = _replies[text, usage] = Reply(body, "end_turn", "m", usage)
    return found
