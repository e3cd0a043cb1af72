"""A run that attaches to a job gives each connection the place that its route has in the job."""

from __future__ import annotations

import msgspec
import pytest

from actors.routing.model_factory import ConnectionSpec
from actors.routing.model_spec import ModelSpec, SetupError
from actors.routing.server_change import at_their_places, spec_at_their_places
from cortex.values.limits import JobTerms, Limits, Route


def terms(servers: str, closed: str = "", fallbacks: str = "") -> JobTerms:
    own, *others = (Route(endpoint=each, model="m") for each in servers)
    behind = tuple(Route(endpoint=each, model="other") for each in fallbacks)
    return JobTerms(
        job="j", program="batch", params_json=b"{}", fingerprint="f", route=own, limits=Limits(), fallbacks=(*others, *behind), peers=len(others),
        closed=tuple(closed),
    )  # fmt: skip


def connection(servers: str) -> ConnectionSpec:
    own, *others = (ConnectionSpec(endpoint=each) for each in servers)
    return msgspec.structs.replace(own, fallbacks=tuple(others))


def places(found: ConnectionSpec) -> str:
    return "".join(each.endpoint for each in (found, *found.fallbacks))


@pytest.mark.parametrize(
    ("named", "now", "closed", "expected"),
    [
        ("ABC", "ABC", "", "ABC"),
        ("AC", "ABC", "B", "AAC"),
        ("ACD", "ABCD", "B", "AACD"),
        ("AB", "ABC", "C", "ABA"),
        ("ABC", "ABC", "A", "ABC"),
        ("ACB", "ABC", "", "ABC"),
    ],
)
def test_each_connection_has_the_place_of_its_route(named: str, now: str, closed: str, expected: str) -> None:
    job = terms(now, closed)
    found, connections = at_their_places("j", terms(named), connection(named), job)
    assert places(connections) == expected
    assert [route.endpoint for route in found.routes] == list(now)
    assert (found.peers, found.closed) == (job.peers, job.closed)


@pytest.mark.parametrize(("named", "now", "closed"), [("AB", "ABC", ""), ("ABD", "ABC", ""), ("D", "A", "")])
def test_other_servers_than_the_job_has_are_refused(named: str, now: str, closed: str) -> None:
    with pytest.raises(SetupError, match="cortex set j --base-url"):
        at_their_places("j", terms(named), connection(named), terms(now, closed))


def test_addresses_that_a_name_has_besides_stand_behind_those_of_the_job() -> None:
    found, connections = at_their_places("j", terms("ABC"), connection("ABC"), terms("AB"), further=True)
    assert (places(connections), len(found.routes)) == ("ABC", 3)


def test_a_fallback_that_the_job_has_not_is_refused() -> None:
    with pytest.raises(SetupError, match="not with X"):
        at_their_places("j", terms("A", fallbacks="X"), connection("AX"), terms("A"))


@pytest.mark.parametrize("address", ["http://{}:8000", "openai://+http://{}:8000"])
def test_the_specification_has_the_servers_of_the_job_in_their_places(address: str) -> None:
    """Those of the run in their user's spelling, and those that were taken out by their address."""

    def at(servers: str) -> JobTerms:
        routes = [Route(endpoint=address.format(each), model="m") for each in servers]
        return msgspec.structs.replace(terms("A"), route=routes[0], fallbacks=tuple(routes[1:]), peers=len(routes) - 1)

    spec = ModelSpec(model="m").at_servers(["http://a:8000/v1", "http://c:8000/v1"])
    assert spec_at_their_places(spec, at("ac"), at("ac")) == spec
    found = spec_at_their_places(spec, at("ac"), at("abc"))
    assert found.servers == ["http://a:8000/v1", "http://b:8000", "http://c:8000/v1"]
    behind = msgspec.structs.replace(at("abc"), peers=1)
    assert spec_at_their_places(spec, at("ac"), behind) == spec, "a job with fallbacks takes no other servers"
