"""Servers that are found under one name: `--base-url dns+http://NAME:PORT`, over a name server of the test's own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec import UNSET

from actors.jobs.option_parsing import addresses
from actors.providers.credentials.base_url import read_server_url
from actors.providers.credentials.credential import Credential, CredentialError
from actors.routing.model_spec import ModelSpec, SetupError
from actors.routing.routes import destination, remember, remembered
from actors.routing.server_discovery import NamedServers, NameWatch, looked_up, named_servers
from cortex.values.limits import JobTerms, Limits
from policies.failures.discovery import FoundServers
from tests.cli.cli_runner import each_once, requests
from tests.edge.support.cloud_server import served
from tests.edge.support.even_servers import EvenServers
from tests.edge.support.name_server import NameServer, name_server
from tests.edge.support.scripted_http_server import MESSAGE, Answer, Asked, Scripted, http
from tests.support.patience import PATIENCE_S
from tests.support.state_machine_harness import terms

JOB = ("batch", "in.jsonl", "-o", "out.jsonl", "--job", "mine", "--json")
NAME = "vllm-headless"


def _open(asked: Asked) -> Answer:
    return http(MESSAGE)


def calls(server: Scripted) -> int:
    """Calls that a server was asked, without the free ones."""
    return sum(b'"messages"' in asked.body for asked in server.asked)


@contextmanager
def pods(count: int, *scripts: Callable[[Asked], object]) -> Iterator[list[Scripted]]:
    """Servers at one port of 127.0.0.1, 127.0.0.2 and so on, with a script for each, or one for all."""
    each = scripts if len(scripts) == count else (scripts or (_open,)) * count
    with ExitStack() as stack:
        found = [stack.enter_context(served(each[0]))]
        port = int(found[0].url.rpartition(":")[2])
        for at in range(2, 1 + count):
            found.append(stack.enter_context(served(each[at - 1], host=f"127.0.0.{at}", port=port)))
        yield found


@pytest.fixture
def dns(monkeypatch: pytest.MonkeyPatch) -> Iterator[NameServer]:
    """Name server that runs ask, every tenth of a second."""
    monkeypatch.setattr("actors.routing.server_discovery.EVERY_S", 0.1)
    monkeypatch.setattr("actors.driver.driver.LOOK_S", 0.05)
    with name_server() as found:
        monkeypatch.setattr("actors.api.session.looked_up", found.lookup)
        monkeypatch.setattr("actors.doctor.provider.looked_up", found.lookup)
        yield found


def at(servers: list[Scripted]) -> str:
    return f"dns+http://{NAME}:{servers[0].url.rpartition(':')[2]}"


def test_each_address_of_a_name_is_a_server(cortex, dns: NameServer) -> None:
    requests(Path("in.jsonl"), 60)
    even = EvenServers(3, ahead=6)
    with pods(3, *map(even.script, range(3))) as servers:
        dns.records[NAME] = ["127.0.0.3", "127.0.0.1", "127.0.0.2"]
        done = cortex(*JOB, "--base-url", at(servers), "--concurrency", 6)
        assert (done.code, done.last["rows_succeeded"]) == (0, 60), done.err
        assert (sum(map(calls, servers)), min(map(calls, servers)) > 5) == (60, True)
        assert {asked.headers["host"] for server in servers for asked in server.asked[-3:]} == {at(servers)[11:]}
        assert "3 servers found under vllm-headless" in done.err
        assert cortex("status", "mine", "--json").last["route"].endswith(("and 2 more servers", "(3 servers)"))
    each_once(Path("out.jsonl"), 60)


class Changing:
    """Scripts of three servers, of which the third takes the place of the first after 40 calls; later no name is found.

    Whatever is to come is waited for, ``PATIENCE_S`` at most: a job of a busy machine may hear of it a second later.
    """

    def __init__(self, dns: NameServer) -> None:
        self.dns = dns
        self.calls = [0, 0, 0]
        self.late = 0
        """Calls to the first server after the third was asked."""
        self._lookups = self._before = 0
        self._end_s = time.monotonic() + PATIENCE_S

    def script(self, place: int) -> Callable[[Asked], Coroutine[Any, Any, Answer]]:
        async def answer(asked: Asked) -> Answer:
            if b'"messages"' in asked.body:
                self._count(place)
                await asyncio.sleep(0.5 if self._lookups and not self.calls[2] else 0.02)
                while not self._due(place) and time.monotonic() < self._end_s:  # noqa: ASYNC110 - of several threads
                    await asyncio.sleep(0.01)
            return http(MESSAGE)

        return answer

    def _count(self, place: int) -> None:
        self.calls[place] += 1
        self.late += place == 0 and self.calls[2] > 0
        if not self.calls[2]:
            self._before = self.calls[1]
        if sum(self.calls) >= 40 and not self._lookups:
            self.dns.records[NAME], self._lookups = ["127.0.0.2", "127.0.0.3"], len(self.dns.asked)

    def _due(self, place: int) -> bool:
        """The other server that is left keeps step, and the job is not over before lookups have failed."""
        heard = bool(self._lookups and self.calls[2]) and len(self.dns.asked) >= self._lookups + 4
        if heard and self.dns.records[NAME]:
            self.dns.records[NAME], self._lookups = [], len(self.dns.asked)
        if place == 1 and self.calls[2] and self.calls[1] - self._before > self.calls[2] + 4:
            return False
        return sum(self.calls) <= 300 or (heard and not self.dns.records[NAME])


def test_servers_join_and_leave_while_a_job_runs_and_a_lookup_that_fails_changes_nothing(cortex, dns: NameServer) -> None:
    """First another pod in place of the first, then no ready one."""
    requests(Path("in.jsonl"), 400)
    change = Changing(dns)
    with pods(3, *map(change.script, range(3))) as servers:
        dns.records[NAME] = ["127.0.0.1", "127.0.0.2"]
        done = cortex(*JOB, "--base-url", at(servers), "--concurrency", 4)
        assert (done.code, done.last["rows_succeeded"]) == (0, 400), done.err
        assert change.calls[0] > 0 and change.late <= 4, "it left: what came after the other had joined was on its way"
        assert change.calls[2] > 40, "it joined"
        assert sum(map(calls, servers)) == 400
        said = done.said()
        assert f"{NAME}: 127.0.0.3 joins; 3 servers found under {NAME}" in str(said)
        assert f"{NAME}: 127.0.0.1 leaves; 2 servers found under {NAME}" in str(said)
        assert str(said).count("cannot be looked up: Name or service not known: the job goes on with the servers") == 1
    each_once(Path("out.jsonl"), 400)


def test_a_job_resumes_where_its_first_address_is_gone(cortex, dns: NameServer) -> None:
    requests(Path("in.jsonl"), 60)

    def until_the_credit_ends(asked: Asked) -> Answer:
        broke = http({"error": {"type": "billing_error", "message": "no credit"}}, 402)
        return broke if b'"messages"' in asked.body and (len(servers[0].asked) > 20) else http(MESSAGE)

    with pods(3, until_the_credit_ends) as servers:
        dns.records[NAME] = ["127.0.0.1"]
        assert cortex(*JOB, "--base-url", at(servers), "--concurrency", 4).code == 3
        begun = cortex("status", "mine", "--json").last["rows_succeeded"]
        paid = calls(servers[0])
        assert begun > 5
        servers[0].asked.clear()
        dns.records[NAME] = ["127.0.0.2", "127.0.0.3"]
        done = cortex("resume", "mine", "--json")
        assert (done.code, done.last["rows_succeeded"]) == (0, 60), done.err
        assert (calls(servers[0]), calls(servers[1]) + calls(servers[2])) == (0, 60 - begun), "no row is asked anew"
        assert paid >= begun
        dns.records[NAME] = []
        assert cortex("status", "mine").code == 0
    each_once(Path("out.jsonl"), 60)


def test_a_name_without_a_server_is_refused_before_anything_is_asked(cortex, dns: NameServer) -> None:
    requests(Path("in.jsonl"), 2)
    with pods(1) as servers:
        done = cortex(*JOB, "--base-url", at(servers))
        assert "vllm-headless cannot be looked up: Name or service not known: see that the name" in done.refused()


def test_the_servers_of_a_name_are_not_set_by_hand(cortex, dns: NameServer) -> None:
    requests(Path("in.jsonl"), 2)
    broke = http({"error": {"type": "billing_error", "message": "no credit"}}, 402)
    with pods(1, lambda asked: broke) as servers:
        dns.records[NAME] = ["127.0.0.1"]
        assert cortex(*JOB, "--base-url", at(servers)).code == 3
        cortex("set", "mine", "--base-url", "http://gpu-9:8000").refused("its servers are those of vllm-headless")
        status = cortex("status", "mine", "--json").last
        assert status["routes"][1]["route"].endswith(f" at 127.0.0.1:{at(servers).rpartition(':')[2]}")


def test_a_check_asks_each_server_of_a_name(cortex, dns: NameServer) -> None:
    with pods(2) as servers:
        missing = cortex("doctor", "--base-url", at(servers)).out
        assert "vllm-headless cannot be looked up" in " ".join(missing.split())
        dns.records[NAME] = ["127.0.0.1", "127.0.0.2"]
        found = " ".join(cortex("doctor", "--base-url", at(servers)).out.split())
        assert "2 servers found under vllm-headless: 127.0.0.1, 127.0.0.2" in found
        assert f"{servers[1].url}: in order" in found
        assert all(server.asked for server in servers)


# -- how it is named ---------------------------------------------------------------------------------------------------

SPELLINGS = {
    "dns+http://vllm:8000/v1": "dns+http://vllm:8000",
    " DNS+HTTP://Vllm.ns:8000/ ": "dns+http://vllm.ns:8000",
    "dns+https://vllm": "dns+https://vllm",
}


@pytest.mark.parametrize("text", SPELLINGS)
def test_the_address_of_a_name_has_one_spelling(text: str) -> None:
    assert read_server_url("--base-url", text, ("/v1",)) == SPELLINGS[text]


@pytest.mark.parametrize("text", ["dns+vllm:8000", "dns+http://10.0.0.1:8000", "dns+http://[::1]:8000", "dns+", "dns+http://"])
def test_what_names_no_servers_is_refused(text: str) -> None:
    with pytest.raises(CredentialError, match=r"write dns\+http://NAME:PORT|must be an http"):
        read_server_url("--base-url", text)


def test_a_name_stands_alone() -> None:
    with pytest.raises(ValueError, match="names all its servers"):
        addresses(["dns+http://vllm:8000", "http://gpu-1:8000"])
    assert addresses(["dns+http://vllm:8000", "dns+http://vllm:8000"])[:1] == ["dns+http://vllm:8000"]


def test_a_job_remembers_its_name_and_not_the_addresses() -> None:
    assert "dns" not in remember(ModelSpec(model="m", base_url="http://gpu-1:8000"))
    spec = ModelSpec(model="m").at_servers(["dns+http://vllm:8000"])
    assert (spec.base_url, spec.dns, spec.servers) == ("http://vllm:8000", "vllm", ["dns+http://vllm:8000"])
    assert remembered({"wish": remember(spec)}) == spec
    assert spec.at_servers(["http://gpu-1:8000"]).dns is UNSET
    with pytest.raises(ValueError, match="asked at its own /metrics"):
        spec.with_metrics(("http://m1",))


def test_a_proxy_before_the_servers_of_a_name_is_refused_unless_no_proxy_names_them() -> None:
    of = {"base_url": "http://10.0.0.7:8000", "host": "vllm.ns.svc", "http_proxy": "http://proxy:3128"}
    with pytest.raises(CredentialError, match=r"add vllm\.ns\.svc to NO_PROXY"):
        Credential(**of).proxy_for(of["base_url"])
    for no_proxy in (".svc", "10.0.0.0/8", "*"):
        assert Credential(**of, no_proxy=no_proxy).proxy_for(of["base_url"]) == ""


# -- which servers a run begins with -----------------------------------------------------------------------------------


def found_by(spec: ModelSpec, before: JobTerms | None, *answer: str, quiet: bool = False) -> NamedServers:
    async def lookup(name: str, port: int) -> tuple[str, ...]:
        assert (name, port) == ("vllm", 8000)
        return answer

    return asyncio.run(named_servers(spec, before, lookup, quiet))


def terms_of(found: NamedServers) -> JobTerms:
    """Terms that a run with these servers has."""
    routes = destination(found.spec, Limits(), {}, start=False)
    all_of_them = (routes.route, *routes.fallbacks)
    closed = tuple(
        route.endpoint for route, url in zip(all_of_them, found.spec.servers, strict=True) if url not in found.open
    )
    return terms(route=routes.route, fallbacks=routes.fallbacks, peers=routes.peers, closed=closed)


def test_servers_that_are_gone_keep_their_places_in_the_next_run() -> None:
    """Calls of the last run that are on their way name their servers by these places."""
    spec = ModelSpec(model="m").at_servers(["dns+http://vllm:8000"])
    first = found_by(spec, None, "10.0.0.1", "10.0.0.2")
    before = terms_of(first)
    assert [route.endpoint for route in before.routes] == [
        "http://vllm:8000", "http://10.0.0.1:8000", "http://10.0.0.2:8000",
    ]  # fmt: skip
    assert before.closed == ("http://vllm:8000",)
    again = found_by(spec, before, "10.0.0.2", "10.0.0.3")
    assert again.spec.servers[1:] == ["http://10.0.0.1:8000", "http://10.0.0.2:8000", "http://10.0.0.3:8000"]
    assert terms_of(again).closed == ("http://vllm:8000", "http://10.0.0.1:8000")
    assert found_by(spec, terms_of(again), "10.0.0.1").open == ["http://10.0.0.1:8000"], "one that returns"
    failed = found_by(spec, terms_of(again))
    assert (failed.open, "vllm has no address: the job goes on" in failed.notice) == (again.open, True)
    plain = terms(route=destination(ModelSpec(model="m", base_url="http://vllm:8000"), Limits(), {}).route)
    assert found_by(spec, plain, "10.0.0.9").open == ["http://10.0.0.9:8000"], "a job of the name itself takes it up"


def test_a_run_that_begins_without_calls_on_their_way_leaves_out_servers_that_were_gone() -> None:
    """Pods come and go, and a job has at most so many servers: drained and resumed it must have room again."""
    spec, before = ModelSpec(model="m").at_servers(["dns+http://vllm:8000"]), None
    for number in range(1, 9):
        found = found_by(spec, before, f"10.0.0.{number}", quiet=True)
        assert found.open == [f"http://10.0.0.{number}:8000"]
        assert len(found.spec.servers) <= 3, "the name, the server that is gone now, and the one that came"
        before = terms_of(found)
    assert found_by(spec, before, quiet=True).open == ["http://10.0.0.8:8000"], "without an answer the last ones"


def test_message_batches_and_a_providers_service_have_no_servers_by_name() -> None:
    spec = ModelSpec(model="m").at_servers(["dns+https://api.anthropic.com"])
    with pytest.raises(SetupError, match="no server of your own"):
        found_by(spec, None, "10.0.0.1")
    with pytest.raises(SetupError, match="a message batch goes to one server"):
        found_by(ModelSpec(model="m", via="batches").at_servers(["dns+http://vllm:8000"]), None, "10.0.0.1")


def test_the_operating_system_knows_this_machine() -> None:
    found = asyncio.run(looked_up("localhost", 80))
    assert set(found) <= {"127.0.0.1", "::1"}
    assert len(found) == 1, "one family"


# -- while a job runs --------------------------------------------------------------------------------------------------


def test_a_change_that_a_job_does_not_take_is_told_once_and_tried_again() -> None:
    spec = ModelSpec(model="m").at_servers(["dns+http://vllm:8000"])
    answers = iter([["10.0.0.1"], ["10.0.0.1", "10.0.0.2"], ["10.0.0.1", "10.0.0.2"], [], []])

    async def lookup(name: str, port: int) -> list[str]:
        return next(answers)

    async def watched() -> list[tuple[str, list[str]]]:
        watch = NameWatch(NamedServers(spec=spec, found=FoundServers(("10.0.0.1",))), lookup)
        assert watch.news(0.0) == ("", [])
        lines = []
        for number in range(1, 6):
            watch.news(10.0 * number)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            lines.append(watch.news(10.0 * number))
            if number == 2:
                assert "stay as they are: why" in watch.refused("why")
        await watch.close()
        return lines

    both = ["http://10.0.0.1:8000", "http://10.0.0.2:8000"]
    joins = "vllm: 10.0.0.2 joins; 2 servers found under vllm"
    failed = "vllm has no address: the job goes on with the servers that it has"
    assert asyncio.run(watched()) == [("", []), (joins, both), (joins, both), (failed, []), ("", [])]
