"""Colours of the page, light and dark. Each difference of colour is also shown by a pattern, a shape or a word.

Based on the palette of Okabe and Ito, which people with any of the common colour deficiencies can tell apart
(https://jfly.uni-koeln.de/color/), darker or lighter where WCAG 2.2 demands more contrast: 4.5 for text (1.4.3), 3 for
parts of a chart (1.4.11).
"""

from __future__ import annotations

LIGHT = {
    "ground": "#ffffff", "panel": "#f4f6f8", "line": "#c9d1d9", "text": "#1b1f24", "quiet": "#4d5663",
    "link": "#005a8f", "good": "#006a4e", "bad": "#a83f00", "warn": "#7a5200", "focus": "#0072b2",
}  # fmt: skip
DARK = {
    "ground": "#12161b", "panel": "#1b2129", "line": "#3a4450", "text": "#e8ebee", "quiet": "#a9b4c0",
    "link": "#7cc7f2", "good": "#4fd1a5", "bad": "#ff9d5c", "warn": "#f2c14e", "focus": "#7cc7f2",
}  # fmt: skip
TEXTS = ("text", "quiet", "link", "good", "bad", "warn")
GROUNDS = ("ground", "panel")

MARKS_LIGHT = {
    "answered": "#0072b2", "reused": "#008662", "throttled": "#a86f00", "overloaded": "#d55e00",
    "transient": "#a8558a", "timed_out": "#6f6400", "lost": "#5b6572", "malformed": "#7048a8", "refused": "#00707f",
    "rejected": "#b3261e", "other": "#5b6572", "permits": "#5b6572", "limit": "#1b1f24", "p50": "#0072b2",
    "p95": "#d55e00", "cost": "#008662", "open": "#d55e00", "half": "#a86f00", "held": "#a8558a",
}  # fmt: skip
MARKS_DARK = {
    "answered": "#56b4e9", "reused": "#2fbf97", "throttled": "#e69f00", "overloaded": "#ff8a3d",
    "transient": "#dd93ba", "timed_out": "#f0e442", "lost": "#a9b4c0", "malformed": "#b79af0", "refused": "#4fc3cf",
    "rejected": "#ff7b72", "other": "#a9b4c0", "permits": "#a9b4c0", "limit": "#e8ebee", "p50": "#56b4e9",
    "p95": "#ff8a3d", "cost": "#2fbf97", "open": "#ff8a3d", "half": "#e69f00", "held": "#dd93ba",
}  # fmt: skip
PATTERNS = {
    "answered": "", "reused": ".", "throttled": "/", "overloaded": "x", "transient": "\\", "timed_out": "|",
    "lost": "-", "malformed": "+", "refused": ".", "rejected": "x", "other": "/",
}  # fmt: skip
"""Fill patterns of bars, besides their colour."""


def mark_of(outcome: str) -> str:
    """Return the name of an outcome's colour."""
    return outcome if outcome in PATTERNS else "other"


def contrast(one: str, other: str) -> float:
    """Return the contrast ratio of two colours, 1 to 21 (WCAG 2.2, "contrast ratio" and "relative luminance")."""
    low, high = sorted((_luminance(one), _luminance(other)))
    return (high + 0.05) / (low + 0.05)


def _luminance(colour: str) -> float:
    parts = (int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5))
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def style() -> str:
    """Return the colours as CSS variables: those of the system's theme, unless the reader has chosen a theme."""
    light, dark = _variables(LIGHT), _variables(DARK)
    return (
        f":root{{color-scheme:light;{light}}}"
        f"@media(prefers-color-scheme:dark){{:root:not([data-theme=light]){{color-scheme:dark;{dark}}}}}"
        f":root[data-theme=dark]{{color-scheme:dark;{dark}}}"
        f"@media print{{:root:root:root{{color-scheme:light;{light}}}}}"
    )


def _variables(colours: dict[str, str]) -> str:
    return "".join(f"--{name}:{value};" for name, value in colours.items())
