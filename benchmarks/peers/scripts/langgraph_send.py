"""LangGraph: a `Send` a call, with a semaphore for the calls at once.

https://docs.langchain.com/oss/python/langgraph/graph-api#send. With the variant `sqlite` an answer becomes a pending
write of the checkpoint before the superstep is over, and a run with the same thread continues
(https://docs.langchain.com/oss/python/langgraph/durable-execution). Its own `max_concurrency` in place of the
semaphore would count those writes among the calls.
"""

import asyncio
import operator
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any, TypedDict

import common
from langgraph.graph import END, START, StateGraph
from langgraph.types import Send

THREAD = "bench"


class All(TypedDict):
    """State of the graph."""

    calls: int
    answers: Annotated[list[tuple[int, str]], operator.add]


@asynccontextmanager
async def kept(given: Any) -> AsyncIterator[Any]:
    """Open a checkpointer, if wanted."""
    if given.variant != "sqlite":
        yield None
        return
    from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

    async with AsyncSqliteSaver.from_conn_string(str(given.state / "checkpoints.sqlite")) as saver:
        yield saver


async def main() -> None:
    """Fan out all calls once."""
    given = common.given()
    client = common.sdk_client(given.url)
    ask = common.sdk(client) if given.work == "http" else common.at_once

    places = asyncio.Semaphore(given.at_once)

    async def one(call: dict[str, int]) -> dict[str, Any]:
        async with places:
            return {"answers": [(call["number"], await ask(call["number"]))]}

    graph = StateGraph(All)
    graph.add_node("ask", one)
    graph.add_conditional_edges(START, lambda k: [Send("ask", {"number": n}) for n in range(k["calls"])], ["ask"])
    graph.add_edge("ask", END)
    async with kept(given) as saver:
        app = graph.compile(checkpointer=saver)
        config = {"configurable": {"thread_id": THREAD}}
        began = common.Began()
        again = saver is not None and bool((await app.aget_state(config)).values)
        options = {"durability": "sync"} if saver else {}
        ended = await app.ainvoke(None if again else {"calls": given.calls, "answers": []}, config, **options)
        common.told(ended["answers"], given.calls, began)
    await client.close()


common.on_uvloop(main())
