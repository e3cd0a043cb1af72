"""Row of the made-up provider, as it would stand in ``actors/providers/registry.py``."""

from __future__ import annotations

from actors.providers.registry import Provider

TOY = Provider(
    name="toy", title="Toy AI", client="tests.support.toy_provider.client:model_of", errors="tests.support.toy_provider.errors:ERRORS",
    place=("shelf",), place_form="shelf=NUMBER", place_example="shelf=3",
    base_url="http://toy.invalid", base_url_variable="TOY_BASE_URL",
    key_variable="TOY_KEY", key_file_variable="TOY_KEY_FILE",
    context_window=4_000, limits_each_model=True, telemetry="toy.ai",
)  # fmt: skip
