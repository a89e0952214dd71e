"""How a command line is parsed: wrong usage is one clear line, and nothing that is given is passed over in silence."""

import argparse
import contextlib
from typing import Any, NoReturn

from beam_pipelines.errors import UserError

_ONE_INPUT = "expected one input: a folder that holds both, or a table of all their images (--source=table)"


class _Once(argparse.Action):
    """Stores a value. Where it is given again, argparse would drop the first one without a word."""

    def __call__(self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: str | None = None) -> None:
        given = vars(namespace).setdefault("given_once", {})
        if option and self.dest in given:
            advice = _ONE_INPUT if self.dest == "input" else "expected once"
            parser.error(f"{option}: given twice, as {given[self.dest]} and as {values}; {advice}")
        given[self.dest] = values
        setattr(namespace, self.dest, values)


class CommandParser(argparse.ArgumentParser):
    """A parser that raises UserError, in one line, where argparse would print its usage and exit; an option given twice is an error too."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        for name in (None, "store"):
            self.register("action", name, _Once)

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message} (see `{self.prog} --help`)")

    def print_help(self, file: Any = None) -> None:
        """As argparse does, which in early releases of Python 3.11 raises where nobody reads it any more."""
        with contextlib.suppress(BrokenPipeError):
            super().print_help(file)


def add_command(commands: argparse._SubParsersAction, name: str, *, help: str, description: str, example: str) -> argparse.ArgumentParser:
    """Adds a command, without any options yet.

    Args:
        commands: Those of the parser.
        name: As it is typed.
        help: What it answers or makes, in a line.
        description: What it does, shown with its lines as they are.
        example: What stands below the options, as it is.

    Returns:
        Its parser, which takes options by their whole names alone.
    """
    raw = argparse.RawDescriptionHelpFormatter
    return commands.add_parser(name, help=help, description=description, epilog=example, formatter_class=raw, allow_abbrev=False)
