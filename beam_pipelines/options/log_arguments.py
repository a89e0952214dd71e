"""Defines the options of all commands for the log, the progress display and the error file."""

import argparse
from typing import Sequence

from beam_pipelines.log import DISPLAYS, FORMATS


def add_log_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options for the log and the error file to a command's parser."""
    add = parser.add_argument_group("logs and errors").add_argument
    add(
        "--log_format",
        choices=FORMATS,
        help="Format of the log on standard error, for log collectors. Each line contains the time, the run and the "
        "stage. Lines are written at the start, every 30 s and at the end. Default: short lines without these fields.",
    )
    add(
        "--error_json",
        default="",
        metavar="FILE",
        help="Write the error to FILE as JSON if the command fails. Delete FILE if the command succeeds.",
    )


def add_progress_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options for the progress display to the parser of a long-running command."""
    add = parser.add_argument_group("progress").add_argument
    add(
        "--progress",
        choices=DISPLAYS,
        default="auto",
        help="How progress is shown. auto: progress bars in a terminal, otherwise a line every 30 s. json: a line of "
        "JSON every second. none: not at all. Default: auto.",
    )
    add(
        "--quiet",
        action="store_true",
        help="Print only warnings, errors and requested reports. Do not print progress, messages and the summary.",
    )


def error_file(argv: Sequence[str]) -> str:
    """Returns the value of `--error_json` even if other options are invalid. Returns "" without this option."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--error_json", default="")
    try:
        return parser.parse_known_args(argv)[0].error_json
    except argparse.ArgumentError:
        return ""
