"""An argument parser that reports invalid usage in a single line and rejects options that are given twice."""

import argparse
import contextlib
from typing import Any, NoReturn

from beam_pipelines.errors import UserError

_ONE_INPUT = "Give one folder that contains both, or a table that lists all images (--source=table)."


class _Once(argparse.Action):
    """Stores the value of an option, and rejects an option that is given twice.

    argparse would silently drop the first value.
    """

    def __call__(self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: str | None = None) -> None:
        given = vars(namespace).setdefault("given_once", {})
        if option and self.dest in given:
            advice = _ONE_INPUT if self.dest == "input" else "Give it only once."
            parser.error(f"{option}: given twice ({given[self.dest]} and {values}). {advice}")
        given[self.dest] = values
        setattr(namespace, self.dest, values)


class CommandParser(argparse.ArgumentParser):
    """An argument parser that raises a `UserError` with a single line instead of printing the usage and exiting."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        for name in (None, "store"):
            self.register("action", name, _Once)

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message} (see `{self.prog} --help`)")

    def print_help(self, file: Any = None) -> None:
        """Prints the help.

        Ignores a closed output pipe, because early releases of Python 3.11 raise an error in this case.
        """
        with contextlib.suppress(BrokenPipeError):
            super().print_help(file)


def add_command(commands: argparse._SubParsersAction, name: str, *, help: str, description: str, example: str) -> argparse.ArgumentParser:
    """Adds a command that has no options yet to the parser.

    Args:
        commands: The parser's group of commands.
        name: The name of the command.
        help: A one-line summary of the command.
        description: The description of the command, with line breaks.
        example: The text below the options in the help, with line breaks.

    Returns:
        The parser of the command. It does not accept abbreviated option names.
    """
    raw = argparse.RawDescriptionHelpFormatter
    return commands.add_parser(name, help=help, description=description, epilog=example, formatter_class=raw, allow_abbrev=False)
