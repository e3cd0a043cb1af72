"""Formats: texts that conform to the RFC of each, texts that do not, and the verdict of ``jsonschema``."""

from __future__ import annotations

import jsonschema
import pytest

from cortex.values.json_schema.formats import EXAMPLES, FORMATS

CASES: dict[str, tuple[list[str], list[str]]] = {
    "date": (["2024-02-29", "0001-01-01", "9999-12-31"],
             ["garbage", "2023-02-29", "2024-13-01", "2024-1-01", "20240101", "2024-W01-1", "2024-02-29T00:00:00Z", "٢٠٢٤-01-01", ""]),
    "time": (["09:30:00Z", "23:59:59.123456789z", "00:00:00+05:30", "23:59:60Z", "15:59:60-08:00"],
             ["09:30:00", "9:30:00Z", "24:00:00Z", "09:60:00Z", "09:30:61Z", "12:00:60Z", "09:30Z", "09:30:00+24:00", "09:30:00.Z"]),
    "date-time": (["2024-02-29T09:30:00Z", "2024-02-29t09:30:00.5+01:00", "1990-12-31T23:59:60Z"],
                  ["2024-02-29", "2024-02-29 09:30:00Z", "2024-02-29T09:30:00", "2023-02-29T00:00:00Z", "next Tuesday", ""]),
    "duration": (["P1D", "PT36H", "P1Y2M3D", "P1DT12H", "P2W", "PT0S", "PT1H30M5S", "P4DT12H30M5S"],
                 ["P", "PT", "1D", "P1", "P1DT", "P1D2H", "P2S", "PT1D", "P2D1Y", "P1Y2W", "P-1D", "P١D", "PT1.5H", "P1H"]),
    "email": (["ann@example.org", "a.b+c@x", '"a b"@example.org', "ann@[192.0.2.1]", "ann@[IPv6:2001:db8::1]"],
              ["ann", "@example.org", "ann@", "a..b@example.org", ".a@example.org", "a b@example.org", "ann@-x.org",
               "ann@[300.0.0.1]", "a@b@c.org", f"{'a' * 65}@example.org"]),
    "hostname": (["example.org", "localhost", "a-b.c1", f"{'a' * 63}.org"],
                 ["", "-a.org", "a-.org", "a..b", "exa mple.org", "a_b.org", f"{'a' * 64}.org", ".".join(["a" * 60] * 5), "bücher.de"]),
    "uri": (["https://example.org/a?b=c#d", "mailto:ann@example.org", "urn:isbn:0451450523", "http://[2001:db8::1]:80/",
             "ftp://example.org/a/b", "a:/b/c", "x:", "https://u:p@h:1/%20", "http://[v1.a]/"],
            ["example.org", "/a/b", "//example.org", "http://a b", "http://[::1", "http://[x]/", "1a:b", "http://a/%zz",
             "http://a/<b>", "http://ü.de", "", "http://a#b#c"]),
    "ipv4": (["192.0.2.1", "0.0.0.0", "255.255.255.255"], ["256.0.0.1", "1.2.3", "01.2.3.4", "1.2.3.4/8", "0x7f.0.0.1", "١.2.3.4", ""]),
    "ipv6": (["::", "::1", "2001:db8::1", "::ffff:192.0.2.1"], [":::", "fe80::1%eth0", "1::2::3", "12345::", "1.2.3.4", "::1/64"]),
    "uuid": (["123e4567-e89b-12d3-a456-426614174000", "00000000-0000-0000-0000-000000000000", "2EB8AA08-AA98-11EA-B4AA-73B441D16380"],
             ["123e4567e89b12d3a456426614174000", "{123e4567-e89b-12d3-a456-426614174000}", "none", "123e4567-e89b-12d3-a456-42661417400g",
              "urn:uuid:123e4567-e89b-12d3-a456-426614174000"]),
}  # fmt: skip
COMPARED = ("date", "ipv4", "ipv6", "uuid")
"""Formats that ``jsonschema`` checks by the whole rule without further libraries: for ``email`` it wants an @ only."""


def test_the_formats_are_those_of_structured_outputs() -> None:
    assert set(CASES) == set(FORMATS) == set(EXAMPLES)


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_texts_by_their_rfc(name: str) -> None:
    good, bad = CASES[name]
    check = FORMATS[name]
    assert [text for text in [*good, EXAMPLES[name]] if not check(text)] == []
    assert [text for text in [*bad, f"{good[0]}\n", f" {good[0]}"] if check(text)] == []


@pytest.mark.parametrize("name", COMPARED)
def test_the_verdict_of_jsonschema(name: str) -> None:
    theirs = jsonschema.FormatChecker()
    for text in [*CASES[name][0], *CASES[name][1]]:
        assert FORMATS[name](text) == theirs.conforms(text, name), text
