"""Huey: a task a call in a queue on SQLite, with threads that take them.

https://huey.readthedocs.io/en/latest/guide.html, .../consumer.html (threads for work that waits) and
.../api.html#SqliteHuey. A task taken from the queue is not put back if its consumer is killed; waiting tasks are kept.
"""

import common
from huey import SqliteHuey

GIVEN = common.given()
THREADS = 16
"""Threads, of which each makes 50 calls a second at 20 ms; more would wait for each other."""
QUEUE = SqliteHuey("bench", filename=str(GIVEN.state / "huey.sqlite"), fsync=True)


@QUEUE.task()
def one(number: int) -> str:
    """Make one call."""
    return common.ask_plainly(GIVEN.url, number) if GIVEN.work == "http" else common.instant(number)


def main() -> None:
    """Put all calls into the queue, then take all results."""
    common.sdk_plain(GIVEN.url)
    consumer = QUEUE.create_consumer(
        workers=THREADS, worker_type="thread", periodic=False, initial_delay=0.001, backoff=1.0
    )
    consumer.start()
    began = common.Began()
    results = [one(number) for number in range(GIVEN.calls)]
    answers = [(number, str(result.get(blocking=True, timeout=120))) for number, result in enumerate(results)]
    common.told(answers, GIVEN.calls, began)
    consumer.stop(graceful=True)


main()
