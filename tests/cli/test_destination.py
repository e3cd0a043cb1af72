"""Where calls go: a route of the job's own, and fallbacks that lead elsewhere, each with its window, price and key."""

from __future__ import annotations

import pytest

from actors.providers.local.model import LocalModelServer
from actors.providers.messages.client import AnthropicModel
from actors.routing.model_factory import encode, make_model, routes_of
from actors.routing.routes import ModelSpec, SetupError, destination, endpoint_of, remember, remembered
from actors.simulator.frontends.in_memory import SimulatedModel
from actors.simulator.settings import SimulatorSettings
from cortex.values.limits import Limits
from policies.failures.route_choice import pool_name, route_name
from tests.edge.support.in_process_job import FunctionModel

ENVIRON = {"ANTHROPIC_API_KEY": "sk-ant-api03-verysecretkey-0123456789"}
OTHER_SIM = ModelSpec(model="sim", simulated=SimulatorSettings(seed=2))
CAPPED = Limits(max_cost_nusd=1_000_000_000)


def test_a_fallback_is_a_route_and_an_arming_of_its_own():
    away = ModelSpec(model="claude-haiku-4-5", base_url="http://gateway:8080/x/", price="input=7,output=9")
    found = destination(ModelSpec(model="claude-sonnet-4-5", fallbacks=(away, OTHER_SIM)), Limits(), ENVIRON)
    gateway, sim = found.fallbacks
    assert (found.route.endpoint, found.route.model) == ("https://api.anthropic.com", "claude-sonnet-4-5")
    assert (gateway.endpoint, gateway.model, gateway.credential) == (
        "http://gateway:8080/x", "claude-haiku-4-5", found.route.credential,
    )  # fmt: skip
    assert gateway.price is not None
    assert gateway.price.input_usd_per_mtok == 7
    assert gateway.context_window == 200_000
    assert (sim.model, sim.price) == ("sim", None)
    for route, (name, pool, blob) in zip((found.route, gateway, sim), routes_of(encode(found.connection)), strict=True):
        assert name == route_name(route.endpoint, route.credential, route.model)
        assert pool == pool_name(route.endpoint, route.credential, route.model)
        model = make_model(blob)
        assert model.endpoint == route.endpoint
        assert isinstance(model, SimulatedModel if route is sim else AnthropicModel)
    assert "verysecret" not in repr(found.connection)


AWS = {"AWS_ACCESS_KEY_ID": "made-up", "AWS_SECRET_ACCESS_KEY": "a made up secret key of aws"}


def test_fallbacks_and_roles_are_at_the_jobs_own_provider_unless_they_say_another():
    other = ModelSpec(model="n", base_url="http://gateway", price="input=1,output=2")
    spec = ModelSpec(
        model="eu.anthropic.claude-haiku-4-5-20251001-v1:0", provider="bedrock", region="eu-west-1",
        fallbacks=(
            ModelSpec(model="m"), ModelSpec(model="m", provider="bedrock", region="us-east-1"), other,
            ModelSpec(model="claude-haiku-4-5", provider="anthropic"),
            ModelSpec(model="claude-haiku-4-5", provider="vertex", region="global", project="p"),
        ),
        roles={"judge": ModelSpec(model="j"), "plain": ModelSpec(model="claude-opus-4-5", provider="anthropic")},
    )  # fmt: skip
    found = destination(spec, Limits(), ENVIRON | AWS)
    routes = (found.route, *found.fallbacks, *found.role_routes)
    assert [route.endpoint for route in routes] == [
        "bedrock://eu-west-1", "bedrock://eu-west-1", "bedrock://us-east-1", "http://gateway",
        "https://api.anthropic.com", "vertex://p/global", "bedrock://eu-west-1", "https://api.anthropic.com",
    ]  # fmt: skip
    assert [route.price is not None for route in routes] == [True, False, False, True, True, True, False, True]
    assert len({route_name(route.endpoint, route.credential, route.model) for route in routes}) == len(routes)
    for route, (_, _, blob) in zip(routes, routes_of(encode(found.connection)), strict=True):
        assert make_model(blob).endpoint == route.endpoint
    assert "secret" not in repr(found.connection) + repr(found.connection.credential)
    assert remembered({"wish": remember(spec)}) == spec
    assert AWS["AWS_SECRET_ACCESS_KEY"] not in remember(spec)


def test_the_price_and_the_window_are_those_that_the_provider_has():
    def price(**more):
        route = destination(ModelSpec(**more), CAPPED, ENVIRON | AWS).route
        return float(route.price.input_usd_per_mtok), route.context_window

    europe = {"provider": "bedrock", "region": "eu-west-1"}
    assert price(model="claude-haiku-4-5") == (1.0, 200_000)
    assert price(model="eu.anthropic.claude-haiku-4-5-20251001-v1:0", **europe) == (1.1, 200_000)
    assert price(model="global.anthropic.claude-haiku-4-5-20251001-v1:0", **europe) == (1.0, 200_000)
    vertex = {"provider": "vertex", "project": "p"}
    assert price(model="claude-haiku-4-5@20251001", region="global", **vertex) == (1.0, 200_000)
    assert price(model="claude-haiku-4-5@20251001", region="us-east5", **vertex)[0] == pytest.approx(1.1)
    assert price(model="claude-3-haiku@20240307", region="us-east5", **vertex)[0] == 0.25
    assert price(model="our-own", base_url="http://x", price_as="claude-opus-4-5")[0] == 5.0
    assert price(model="our-own", base_url="http://x", price_as="deepseek/deepseek-chat")[1] == 64_000
    assert price(model="sim", price_as="claude-haiku-4-5")[0] == 1.0
    with pytest.raises(SetupError, match="--price-as nobody/nothing: no price is known"):
        price(model="our-own", price_as="nobody/nothing")


def test_a_wish_is_remembered_with_its_fallbacks():
    spec = ModelSpec(
        model="m", fallbacks=(ModelSpec(model="n", base_url="https://host", price="input=1,output=2"), OTHER_SIM)
    )
    assert remembered({"wish": remember(spec)}) == spec


@pytest.mark.parametrize(
    ("wish", "said"),
    [
        (ModelSpec(model="m", fallbacks=(ModelSpec(model="m"),)), "--fallback m: this route is named twice"),
        (
            ModelSpec(model="m", fallbacks=(ModelSpec(model="n"), ModelSpec(model="n"))),
            "--fallback n: this route is named twice",
        ),
        (
            ModelSpec(model="m", fallbacks=(ModelSpec(model="m", base_url="https://API.anthropic.com:443/"),)),
            "this route is named twice (m is the same)",
        ),
        (
            ModelSpec(
                model="m",
                base_url="http://localhost:80",
                fallbacks=(ModelSpec(model="m", base_url="http://127.0.0.1/"),),
            ),
            "m at http://127.0.0.1/: this route is named twice",
        ),
        (ModelSpec(model="sim", fallbacks=(ModelSpec(model="sim"),)), "--fallback sim: this route is named twice"),
        (
            ModelSpec(model="m", fallbacks=(ModelSpec(model="local"), ModelSpec(model="local"))),
            "--fallback local: this route is named twice",
        ),
        (
            ModelSpec(model="m", fallbacks=(ModelSpec(model="n", price="input=1"),)),
            "--fallback n: price: input and output",
        ),
    ],
)
def test_a_fallback_that_leads_nowhere_is_refused_before_anything_is_opened(monkeypatch, wish, said):
    monkeypatch.setattr(LocalModelServer, "start", lambda server: pytest.fail("a model was started"))
    with pytest.raises(SetupError) as refused:
        destination(wish, Limits(), ENVIRON)
    assert said in str(refused.value)


def test_the_same_model_elsewhere_and_another_model_at_the_same_place_are_fallbacks():
    spec = ModelSpec(model="m", fallbacks=(ModelSpec(model="m", base_url="https://host"), ModelSpec(model="n")))
    assert len(destination(spec, Limits(), ENVIRON).fallbacks) == 2


def test_each_route_needs_a_price_where_a_cap_is_set():
    spec = ModelSpec(model="claude-sonnet-4-5", fallbacks=(ModelSpec(model="unheard-of"),))
    with pytest.raises(SetupError, match=r"no price known for 'unheard-of'.*unheard-of,input=3,output=15"):
        destination(spec, CAPPED, ENVIRON)
    priced = ModelSpec(model="claude-sonnet-4-5", fallbacks=(ModelSpec(model="unheard-of", price="input=3,output=15"),))
    assert destination(priced, CAPPED, ENVIRON).fallbacks[0].price is not None
    assert destination(spec, Limits(), ENVIRON).fallbacks[0].price is None


def test_what_was_opened_is_closed_where_a_later_one_is_refused(monkeypatch):
    from actors.simulator.frontends import account as module

    closed = []
    real = module.account

    def opened(row, location, environ, *, start):
        import msgspec

        return msgspec.structs.replace(real(row, location, environ, start=start), close=lambda: closed.append(row.name))

    monkeypatch.setattr(module, "account", opened)
    found = destination(ModelSpec(model="sim", fallbacks=(OTHER_SIM,)), Limits(), {})
    found.close()
    assert closed == ["sim", "sim"]
    closed.clear()
    with pytest.raises(SetupError, match="no key"):
        destination(ModelSpec(model="sim", fallbacks=(ModelSpec(model="m"),)), Limits(), {})
    assert closed == ["sim"]


def test_objects_of_an_author_may_be_fallbacks():
    first, second = FunctionModel(endpoint="one"), FunctionModel(endpoint="two")
    found = destination(ModelSpec(fallbacks=(ModelSpec(),)), Limits(), {}, first, (second,))
    assert [each.endpoint for each in found.fallbacks] == ["two"]
    assert [make_model(blob) for _, _, blob in routes_of(encode(found.connection))] == [first, second]
    with pytest.raises(SetupError, match="the given model: this route is named twice"):
        destination(ModelSpec(fallbacks=(ModelSpec(),)), Limits(), {}, first, (first,))


@pytest.mark.parametrize(
    ("address", "endpoint"),
    [
        ("", "https://api.anthropic.com"),
        ("HTTPS://Api.Anthropic.com:443/", "https://api.anthropic.com"),
        ("http://host:80/v2/", "http://host/v2"),
        ("http://host:443", "http://host:443"),
        ("http://[::1]:8000", "http://[::1]:8000"),
        ("https://me:secret@host.", "https://host"),
    ],
)
def test_one_spelling_for_one_address(address, endpoint):
    assert endpoint_of(address) == endpoint


# -- the road of message batches -------------------------------------------------------------------------------------


def test_the_road_of_message_batches_is_priced_as_such():
    plain = destination(ModelSpec(model="claude-haiku-4-5"), CAPPED, ENVIRON).route
    found = destination(ModelSpec(model="claude-haiku-4-5", via="batches"), CAPPED, ENVIRON)
    assert (plain.batched, found.route.batched) == (False, True)
    assert plain.price is not None and found.route.price is not None
    assert found.route.price.output_usd_per_mtok * 2 == plain.price.output_usd_per_mtok
    assert "by message batches, which may take up to a day; price: genai-prices" in found.notice


def test_a_price_given_by_hand_is_that_of_a_plain_call_and_half_of_it_is_counted():
    found = destination(ModelSpec(model="sim", via="batches", price="input=3,output=15"), CAPPED, {})
    assert found.route.price is not None
    assert (found.route.price.input_usd_per_mtok, found.route.price.output_usd_per_mtok) == (1.5, 7.5)
    assert found.notice.endswith("price: given by hand, 50 % for message batches")


@pytest.mark.parametrize(
    ("wish", "model", "said"),
    [
        (ModelSpec(model="m", via="post"), None, "--via post: say messages or batches"),
        (ModelSpec(model="local", via="batches"), None, "--via batches: local takes no message batches; leave it out"),
        (
            ModelSpec(via="batches"),
            FunctionModel(),
            "--via batches: the given model takes no message batches; leave it out",
        ),
    ],
)
def test_a_road_that_is_not_there_is_refused(wish, model, said):
    with pytest.raises(SetupError) as error:
        destination(wish, Limits(), ENVIRON, model)
    assert str(error.value) == said
