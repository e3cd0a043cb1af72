"""The fixture of this folder."""

from tests.cli.commands import cortex

__all__ = ["cortex"]
