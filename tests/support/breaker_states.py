"""Breakers in the initial states of tests, under the default policy."""

from policies.failures import breaker as b
from policies.failures.breaker import Breaker, BreakerMove, BreakerPolicy, BreakerState

CLOSED, OPEN, HALF_OPEN = BreakerState.CLOSED, BreakerState.OPEN, BreakerState.HALF_OPEN
P = BreakerPolicy()


def told(
    breaker: Breaker, at_s: float, good: int = 0, bad: int = 0, slow: int = 0, *, retry_after_s: float = 0.0,
    draw: float = 0.0, void: int = 0, generation: int | None = None, policy: BreakerPolicy = P,
) -> BreakerMove | None:  # fmt: skip
    """Observe results, of the breaker's current generation unless another is given."""
    own = breaker.generation if generation is None else generation
    return b.observe(policy, breaker, at_s, own, good, bad, slow, retry_after_s, draw, void)


def opened(at_s: float = 0.0, draw: float = 0.0, retry_after_s: float = 0.0) -> Breaker:
    breaker = Breaker()
    told(breaker, at_s, bad=P.volume_min, draw=draw, retry_after_s=retry_after_s)
    assert breaker.state is OPEN
    return breaker


def half_open(at_s: float = 10.0) -> Breaker:
    breaker = opened()
    moved = b.passed(P, breaker, at_s)
    assert moved is not None and (moved.old, moved.new) == (OPEN, HALF_OPEN)
    return breaker


def blocked(at_s: float = 0.0, retry_after_s: float = 0.0, draw: float = 0.0) -> Breaker:
    breaker = Breaker()
    moved = b.block(P, breaker, at_s, 0, "credit balance is too low", draw, retry_after_s)
    assert moved == BreakerMove(CLOSED, OPEN, "credit balance is too low")
    return breaker
