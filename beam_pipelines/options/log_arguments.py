"""The options of all commands for the log, the progress display and the error file."""

import argparse
from typing import Sequence

from beam_pipelines.log import DISPLAYS, FORMATS


def add_log_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options for the log and the error file to a command's parser."""
    add = parser.add_argument_group("for those who operate it").add_argument
    add(
        "--log_format",
        choices=FORMATS,
        help="each line on the standard error output with its time, run and stage, and one for the start, the end and each 30 s (default: "
        "plain lines, for people)",
    )
    add(
        "--error_json",
        default="",
        metavar="FILE",
        help="where to write what a failure was, for programs; the file is not there after success",
    )


def add_progress_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options for the progress display to the parser of a long-running command."""
    add = parser.add_argument_group("what it shows").add_argument
    add(
        "--progress",
        choices=DISPLAYS,
        default="auto",
        help="auto: bars on a terminal, elsewhere a line each 30 s; json: a line of JSON each second, for programs; none (default: auto)",
    )
    add(
        "--quiet",
        action="store_true",
        help="no progress, no remarks and no summary: only warnings and errors, and a report that was asked for",
    )


def error_file(argv: Sequence[str]) -> str:
    """Returns the path in `--error_json`, even if other options are invalid, or an empty text without the option."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--error_json", default="")
    try:
        return parser.parse_known_args(argv)[0].error_json
    except argparse.ArgumentError:
        return ""
