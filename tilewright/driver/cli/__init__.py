"""The command line: `tilewright run | compile | explain | …`, each a file of `commands/`."""

from __future__ import annotations

from tilewright.driver.cli.main import argument_parser, command_parsers, main

__all__ = ["argument_parser", "command_parsers", "main"]
