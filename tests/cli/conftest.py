"""The fixture of this folder."""

from tests.cli.cli_runner import cortex

__all__ = ["cortex"]
