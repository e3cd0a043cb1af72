"""An error that ends a task which nobody awaits is logged, and its owner hears of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from actors.common.background import watched


class Strange(BaseException):
    """As a library in Rust raises it."""


async def _nothing() -> None: ...


async def _forever() -> None:
    await asyncio.Event().wait()


async def _group() -> None:
    async with asyncio.TaskGroup() as both:
        both.create_task(_raising(KeyError("inside"))())
        both.create_task(_forever())


async def _cancelled() -> None:
    raise asyncio.CancelledError


def _raising(error: BaseException) -> Callable[[], Awaitable[None]]:
    async def work() -> None:
        await asyncio.sleep(0)
        raise error

    return work  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("work", "kind"),
    [
        (_nothing, None), (_raising(ValueError("x")), ValueError), (_raising(Strange()), Strange), (_group, KeyError),
        (_cancelled, asyncio.CancelledError),
    ],
)  # fmt: skip
async def test_an_error_is_logged_and_told_once(
    work: Callable[[], Awaitable[None]], kind: type[BaseException] | None, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[BaseException] = []
    tasks = [watched(work(), "channel:j", told.append), watched(work(), "channel:j")]  # type: ignore[arg-type]
    await asyncio.wait(tasks)
    await asyncio.sleep(0)
    assert [type(error) for error in told] == ([] if kind is None else [kind])
    assert len(caplog.records) == (0 if kind is None else 2)
    for task in tasks:
        if not task.cancelled():
            task.exception()


async def test_a_task_that_its_owner_cancels_has_met_no_error(caplog: pytest.LogCaptureFixture) -> None:
    told: list[BaseException] = []
    task = watched(_forever(), "channel:j", told.append)
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait({task})
    await asyncio.sleep(0)
    assert (told, caplog.records) == ([], [])
