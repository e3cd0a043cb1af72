"""The name of an attempt on its way to the provider, on both roads: sent where there is one, else nothing is."""

from __future__ import annotations

import pytest

from actors.ports.model import TRACEPARENT
from cortex.values.reply import Reply
from tests.edge.support.scripted_http_server import MESSAGE, http
from tests.edge.support.wired_model import BODY, ROADS, always, connected
from tests.support.patience import PATIENCE_S

HEADER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
connect = pytest.fixture(params=ROADS, name="connect")(connected)


async def test_it_is_sent_with_the_attempt_that_it_names_and_no_other(connect):
    async with connect(always(http(MESSAGE))) as (server, model):
        for trace in (HEADER, "", HEADER[:-1] + "0"):
            TRACEPARENT.set(trace)
            assert isinstance(await model.call(BODY, output_tokens_max=16, timeout_s=PATIENCE_S), Reply)
        parts = [request.headers.get("traceparent", "") for request in server.asked]
        assert parts == [HEADER, "", HEADER[:-1] + "0"]
        with_it, without, _ = (set(request.headers) for request in server.asked)
        assert with_it - without == {"traceparent"} and without <= with_it
        assert not any("baggage" in request.headers or "tracestate" in request.headers for request in server.asked)
