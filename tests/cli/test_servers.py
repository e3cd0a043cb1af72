"""Several servers of one model: how they are named, and a job over servers of which some die, throttle or slow down."""

from __future__ import annotations

import asyncio
import json
import re
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from subprocess import Popen
from typing import Any

import msgspec
import pytest

from actors.cli.jobs.settings import changed_model_spec, model_spec_of
from actors.cli.options.options import Options
from actors.jobs.option_parsing import addresses
from actors.routing.model_spec import ModelSpec, SetupError
from actors.routing.own_server import at_server
from actors.routing.routes import destination, remember, remembered
from actors.routing.server_change import refuse_servers
from cortex.values.limits import Limits, Route
from tests.cli.cli_runner import each_once, environment, requests, started, until
from tests.edge.support.cloud_server import served
from tests.edge.support.even_servers import EvenServers
from tests.edge.support.scripted_http_server import MESSAGE, Answer, Asked, Scripted, http
from tests.support.state_machine_harness import terms

JOB = ("batch", "in.jsonl", "-o", "out.jsonl", "--job", "mine", "--json")
ONE, TWO, THREE = "http://gpu-1:8000", "http://gpu-2:8000", "http://gpu-3:8000"


def _open(asked: Asked) -> Answer:
    return http(MESSAGE)


def calls(server: Scripted) -> int:
    """Calls that a server was asked, without the free ones."""
    return sum(b'"messages"' in asked.body for asked in server.asked)


# -- how they are named ------------------------------------------------------------------------------------------------


def servers_of(spec: ModelSpec) -> list[str]:
    return [spec.base_url, *(each.base_url for each in spec.peers or ())]


def test_addresses_are_given_one_by_one_and_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "fleet").write_text(f"# the fleet\n{ONE}\n\n  {TWO}/v1/ \n")
    assert addresses(["", f"@{tmp_path}/fleet", THREE]) == [ONE, f"{TWO}/v1/", THREE]
    found = model_spec_of(Options(model="m", base_url=[f"@{tmp_path}/fleet", "gpu-3:8000", ONE]), "m")
    assert servers_of(found) == [ONE, TWO, THREE], "each once, in one spelling"
    assert {each.model for each in found.peers or ()} == {"m"}


@pytest.mark.parametrize(("text", "why"), [(None, "No such file"), ("# none\n", "names no address")])
def test_a_file_without_addresses_is_refused(tmp_path: Path, text: str | None, why: str) -> None:
    if text is not None:
        (tmp_path / "fleet").write_text(text)
    with pytest.raises(ValueError, match=why):
        addresses([f"@{tmp_path}/fleet"])


def test_a_resumed_job_keeps_its_servers_or_takes_others() -> None:
    before = model_spec_of(Options(model="m", base_url=[ONE, TWO]), "m")
    assert changed_model_spec(Options(), before) == before
    assert servers_of(changed_model_spec(Options(base_url=[ONE, THREE]), before)) == [ONE, THREE]
    assert changed_model_spec(Options(base_url=[ONE]), before).peers is msgspec.UNSET, "left out where there are none"


def test_a_job_remembers_its_servers_and_one_of_a_single_server_says_nothing_of_them() -> None:
    assert "peers" not in remember(ModelSpec(model="m", base_url=ONE))
    spec = ModelSpec(model="m", base_url=ONE).at_servers([ONE, TWO])
    assert remembered({"wish": remember(spec)}) == spec


def test_metrics_are_those_of_each_server() -> None:
    spec = ModelSpec(model="m").at_servers([ONE, TWO]).with_metrics(("http://m1", "http://m2"))
    assert [each.metrics_from for each in (spec, *(spec.peers or ()))] == [("http://m1",), ("http://m2",)]
    assert spec.at_servers([TWO, THREE]).metrics_from == ("http://m2",), "they go with their server"
    assert spec.at_servers([THREE]).metrics_from is msgspec.UNSET
    assert ModelSpec(model="m", base_url=ONE).with_metrics(("a", "b")).metrics_from == ("a", "b"), "of replicas"
    with pytest.raises(ValueError, match="1 for 2 servers: name one for each"):
        spec.with_metrics(("http://m1",))


def test_servers_are_routes_before_the_fallbacks() -> None:
    spec = ModelSpec(model="m", fallbacks=(ModelSpec(model="n", base_url=THREE),)).at_servers([ONE, TWO])
    found = destination(spec, Limits(), {}, start=False)
    assert [route.endpoint for route in (found.route, *found.fallbacks)] == [ONE, TWO, THREE]
    assert (found.peers, [each.endpoint for each in found.connection.fallbacks]) == (1, [TWO, THREE])


REFUSED = {
    "message batches": ({"via": "batches"}, [ONE, TWO], "a message batch goes to one server"),
    "another spelling of the same": ({}, ["http://localhost:80", "http://127.0.0.1"], "this server is named twice"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_several_servers_cannot_do(name: str) -> None:
    more, servers, why = REFUSED[name]
    spec = ModelSpec(model="m", **more).at_servers(servers)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=why):
        destination(spec, Limits(), {"ANTHROPIC_API_KEY": "k" * 20}, start=False)


def test_more_servers_may_have_more_calls_in_flight() -> None:
    one, ten = (at_server(Limits(), ONE, given=False, servers=servers) for servers in (1, 10))
    assert ten.concurrency >= one.concurrency
    assert ten.window_rows >= ten.concurrency
    assert at_server(Limits(concurrency=7), ONE, given=True, servers=10).concurrency == 7


# -- a job -------------------------------------------------------------------------------------------------------------


def test_a_job_shares_its_rows_among_its_servers(cortex) -> None:
    requests(Path("in.jsonl"), 60)
    even = EvenServers(2, ahead=4)
    with served(even.script(0)) as one, served(even.script(1)) as two:
        done = cortex(*JOB, "--base-url", one.url, "--base-url", two.url, "--concurrency", 4)
        assert (done.code, done.last["rows_succeeded"]) == (0, 60), done.err
        assert (calls(one) + calls(two), min(calls(one), calls(two)) > 10) == (60, True)
        status = cortex("status", "mine", "--json").last
        address = one.url.removeprefix("http://")
        assert status["route"] == f"claude-test at {address} and 1 more server"
        assert cortex("doctor", "--base-url", one.url, "--base-url", two.url).out.count("connected in") == 1
    each_once(Path("out.jsonl"), 60)


def test_a_plan_adds_the_limits_of_its_servers(cortex) -> None:
    requests(Path("in.jsonl"), 40)
    with served(_open) as one, served(_open) as two:
        servers = ("--base-url", one.url, "--base-url", two.url)
        assert cortex(*JOB, *servers).code == 0
        ask = ("plan", "in.jsonl", *servers, "--fresh", "--price", "input=0,output=0")
        for server, calls_max in ((one, 8), (two, 24)):
            assert f"concurrency: {24 + 8}" not in cortex(*ask).out
            done = cortex("limit", server.url.removeprefix("http://"), "--concurrency", calls_max)
            assert done.code == 0, done.err
        plan = cortex(*ask)
        assert "those of 2 servers are added" in plan.out
        assert "concurrency: 32 at most" in plan.out


def test_a_job_file_names_servers_and_a_resumed_job_may_have_others(cortex) -> None:
    requests(Path("in.jsonl"), 20)
    broke = http({"error": {"type": "billing_error", "message": "no credit"}}, 402)
    with served(lambda asked: broke) as one, served(lambda asked: broke) as two, served(_open) as three:
        Path("fleet").write_text(f"{one.url}\n{two.url}\n")
        Path("job.toml").write_text('base_url = "@fleet"\n')
        done = cortex(*JOB, "-f", "job.toml")
        assert (done.code, done.last["rows_failed"]) == (3, 0), done.err
        assert calls(one) and calls(two), "a blocked server holds up no other"
        done = cortex("resume", "mine", "--base-url", one.url, "--base-url", three.url, "--json")
        assert (done.code, done.last["rows_succeeded"]) == (0, 20), done.err
        assert calls(three) == 20
    each_once(Path("out.jsonl"), 20)


def test_what_one_server_refuses_another_does(cortex) -> None:
    requests(Path("in.jsonl"), 40)
    busy = http({"error": {"type": "rate_limit_error", "message": "slow down"}}, 429)
    with served(lambda asked: busy) as one, served(_open) as two:
        done = cortex(*JOB, "--base-url", one.url, "--base-url", two.url)
    assert (done.code, done.last["rows_succeeded"], done.last["rows_failed"]) == (0, 40, 0), done.err
    assert (calls(two), done.last["failures"].keys()) == (40, {"throttled"})
    assert done.last["elapsed_s"] < 30.0, "no row waited for the one that throttles"
    each_once(Path("out.jsonl"), 40)


def test_a_server_that_is_away_costs_its_rows_nothing(cortex) -> None:
    requests(Path("in.jsonl"), 40)
    with served(_open) as gone:
        away = gone.url
    with served(_open) as one:
        done = cortex(*JOB, "--base-url", away, "--base-url", one.url)
    assert (done.code, done.last["rows_succeeded"], done.last["rows_failed"]) == (0, 40, 0), done.err
    assert (calls(one), done.last["failures"].keys()) == (40, {"transient"})
    assert done.last["elapsed_s"] < 30.0, "no row waited for it"
    each_once(Path("out.jsonl"), 40)


async def _later(asked: Asked) -> Answer:
    """Answer so slowly that the job hears meanwhile why another server gets no work."""
    await asyncio.sleep(0.5)
    return http(MESSAGE)


def test_a_server_with_a_wrong_address_is_named_at_the_end(cortex) -> None:
    requests(Path("in.jsonl"), 40)
    with served(lambda asked: http({"error": {"message": "Not Found"}}, 404)) as wrong, served(_later) as one:
        done = cortex(*JOB, "--base-url", one.url, "--base-url", wrong.url, "--concurrency", 4)
    assert (done.code, done.last["rows_succeeded"]) == (0, 40), done.err
    (line,) = [line for line in done.err.splitlines() if "got no work" in line]
    host = wrong.url.removeprefix("http://")
    assert "1 of 2 servers got no work at the end: " in line and host in line and "404" in line and "--base-url" in line
    shown = cortex("status", "mine").out
    assert re.search(rf"^servers .*1 of 2 servers got no work .*{host}", shown, re.M), shown
    assert "; else " not in shown, "a server that shares the work is no fallback"


def test_rows_about_one_document_go_to_one_server(cortex) -> None:
    names = "abcdefghijklmnopqrstuvwx"
    rows = [(f"{name}{at}", f"document {name} {'word ' * 600}{at}") for name in names for at in range(3)]
    body = {"model": "claude-test", "max_tokens": 5}
    lines = [
        {"custom_id": key, "params": body | {"messages": [{"role": "user", "content": text}]}} for key, text in rows
    ]
    Path("in.jsonl").write_text("".join(json.dumps(each) + "\n" for each in lines))
    with served(_slow) as one, served(_slow) as two:
        done = cortex(*JOB, "--base-url", one.url, "--base-url", two.url, "--concurrency", 4)
        assert (done.code, done.last["rows_succeeded"]) == (0, 72), done.err
        at_one, at_two = (
            [sum(f"document {name} ".encode() in asked.body for asked in server.asked) for name in names]
            for server in (one, two)
        )
    assert [sum(pair) for pair in zip(at_one, at_two, strict=True)] == [3] * 24
    together = sum(3 in pair for pair in zip(at_one, at_two, strict=True))
    assert together >= 11, "by chance it would be 6"
    assert min(sum(at_one), sum(at_two)) > 20, "both work"


# -- while it runs -----------------------------------------------------------------------------------------------------


async def _slow(asked: Asked) -> Answer:
    await asyncio.sleep(0.05)
    return http(MESSAGE)


def test_servers_are_added_and_taken_out_while_a_job_runs(cortex) -> None:
    requests(Path("in.jsonl"), 500)
    pause_s = 0.2

    async def slow_at_first(asked: Asked) -> Answer:
        """Answer so slowly that the job, of half a minute, is there for each command."""
        await asyncio.sleep(pause_s)
        return http(MESSAGE)

    with served(slow_at_first) as one, served(slow_at_first) as two, served(slow_at_first) as three:
        job = (*JOB, "--base-url", one.url, "--base-url", two.url, "--concurrency", 4)
        with started(*job, env=environment(CORTEX_SERVER_KEY="any")) as child:
            until(lambda: calls(one) + calls(two) >= 20)
            done = cortex("set", "mine", "--base-url", two.url, "--base-url", three.url)
            assert done.code == 0, done.err
            assert "mine: its work is shared by 2 servers from now on" in done.err
            before = calls(one)
            until(lambda: calls(three) >= 20)
            assert calls(one) <= before + 4, "only what was on its way"
            assert cortex("set", "mine", "--base-url", one.url).code == 0
            until(lambda: calls(one) >= before + 20)
            pause_s = 0.0
            out, said = child.communicate(timeout=120)
            assert child.returncode == 0, said
    assert json.loads(out.splitlines()[-1])["rows_succeeded"] == 500
    each_once(Path("out.jsonl"), 500)


def test_a_job_at_rest_takes_servers_when_it_is_resumed(cortex) -> None:
    requests(Path("in.jsonl"), 4)
    broke = http({"error": {"type": "billing_error", "message": "no credit"}}, 402)
    with served(lambda asked: broke) as one, served(_open) as two:
        assert cortex(*JOB, "--base-url", one.url).code == 3
        said = cortex("set", "mine", "--base-url", one.url, "--base-url", two.url)
        said.refused(f"cortex resume mine --base-url {one.url} --base-url {two.url}")
        assert cortex("resume", "mine", "--base-url", one.url, "--base-url", two.url).code == 0
    each_once(Path("out.jsonl"), 4)


REFUSED_RUNNING = {
    "fallbacks": ({"fallbacks": ("f",)}, "a job with fallbacks takes other servers between two runs"),
    "roles": ({"role_routes": ("r",), "roles": {"judge": 1}}, "roles of other models"),
}


@pytest.mark.parametrize("name", REFUSED_RUNNING)
def test_which_jobs_take_other_servers_between_two_runs_only(name: str) -> None:
    more, why = REFUSED_RUNNING[name]
    routes = {key: tuple(Route(endpoint=each, model="n") for each in value) if isinstance(value, tuple) else value
              for key, value in more.items()}  # fmt: skip
    with pytest.raises(SetupError, match=why):
        refuse_servers(terms(**routes))  # type: ignore[arg-type]


# -- real servers, in real time ----------------------------------------------------------------------------------------


@contextmanager
def simulated(slots: int, latency_ms: int) -> Iterator[tuple[str, Popen[str]]]:
    """A simulated server in its own process: its address, and the process."""
    pairs = (f"slots={slots}", f"latency_ms={latency_ms}", "latency_spread=0.3", "error=0")
    with started("simulate", "--port", 0, *(each for pair in pairs for each in ("-s", pair))) as child:
        assert child.stdout is not None
        yield re.findall(r"http://\S+", child.stdout.readline())[0].rstrip("/"), child


def stats(url: str) -> dict[str, Any]:
    with urllib.request.urlopen(f"{url}/_sim/stats") as answer:
        found: dict[str, Any] = json.load(answer)
        return found


@pytest.mark.long
def test_four_servers_of_which_one_is_killed_and_one_slowed_tenfold(cortex) -> None:
    rows = 400
    requests(Path("in.jsonl"), rows)
    with ExitStack() as stack:
        # So slow that it is their speed which counts, and not the processor's: at most 40 answers a second.
        servers = [stack.enter_context(simulated(*each)) for each in ((4, 300), (8, 600), (4, 600), (8, 1_200))]
        urls = [url for url, _ in servers]
        named = [each for url in urls for each in ("--base-url", url)]
        child = stack.enter_context(started(*JOB, *named, env=environment(CORTEX_SERVER_KEY="any")))
        until(lambda: Path("out.jsonl").exists() and Path("out.jsonl").read_text().count("\n") >= 100)
        servers[1][1].kill()
        slower = json.dumps({"latency_ms": 6_000}).encode()
        urllib.request.urlopen(f"{urls[2]}/_sim/settings", data=slower).close()
        out, said = child.communicate(timeout=180)
        assert child.returncode == 0, said
        summary = json.loads(out.splitlines()[-1])
        answered = [stats(url)["complete_answers"] for url in (urls[0], urls[2], urls[3])]
    each_once(Path("out.jsonl"), rows)
    assert (summary["rows_succeeded"], summary["rows_failed"]) == (rows, 0)
    assert sum(answered) < rows, "the killed one had its part"
    assert answered[0] == max(answered), "the fastest did most"
