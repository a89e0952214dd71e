"""Defines an argument parser that reports errors in a single line and rejects options that are given twice."""

import argparse
import contextlib
from typing import Any, Iterator, NoReturn, Sequence

from beam_pipelines.errors import UserError, did_you_mean, did_you_mean_option

_ONE_INPUT = "Give one folder that contains both, or a table that lists all images (--source=table)."


class _Once(argparse.Action):
    """Stores the value of an option and raises an error if the option is given twice."""

    def __call__(self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: str | None = None) -> None:
        given = vars(namespace).setdefault("given_once", {})
        if option and self.dest in given:
            advice = _ONE_INPUT if self.dest == "input" else "Give it only once."
            parser.error(f"{option}: given twice ({given[self.dest]} and {values}). {advice}")
        given[self.dest] = values
        setattr(namespace, self.dest, values)


class CommandParser(argparse.ArgumentParser):
    """An argument parser that raises a one-line `UserError` instead of printing the usage and exiting."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._given: list[str] = []
        for name in (None, "store"):
            self.register("action", name, _Once)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[argparse.Namespace, list[str]]:
        """Parses arguments and keeps a copy so that error messages can mention misspelled options."""
        self._given = [str(argument) for argument in args or ()]
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        """Raises a `UserError`. If a required option is missing, the message names options that may be misspelled."""
        if "arguments are required" in message:
            message = "".join(f"unknown option {option}{near}; " for option, near in self._misspelt()) + message
        raise UserError(f"{message} (see `{self.prog} --help`)")

    def reject_unknown(self, others: Sequence[str]) -> NoReturn:
        """Raises a `UserError` about arguments that the command does not accept."""
        near = did_you_mean_option(others[0], self._option_string_actions)
        self.error(f"unrecognized arguments: {' '.join(others)}{near}")

    def _misspelt(self) -> Iterator[tuple[str, str]]:
        """Yields each unknown option that is similar to an option of the command, and a hint."""
        for argument in self._given:
            option = argument.partition("=")[0]
            if option.startswith("-") and option not in self._option_string_actions:
                if near := did_you_mean_option(option, self._option_string_actions):
                    yield option, near

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Adds the most similar choice to the error message about an invalid choice."""
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as error:
            near = did_you_mean(str(value), map(str, action.choices or ()), _synonyms() if action.dest == "source" else {})
            raise argparse.ArgumentError(action, f"{error.message}{near}") from None

    def print_help(self, file: Any = None) -> None:
        """Prints the help."""
        with contextlib.suppress(BrokenPipeError):
            super().print_help(file)


def _synonyms() -> dict[str, str]:
    from beam_pipelines.sources.registry import synonyms  # A slow import, which only an invalid --source needs.

    return synonyms()
