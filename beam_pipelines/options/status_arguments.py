"""Defines the options of `recordmill status`."""

import argparse

from beam_pipelines.options.command_parser import add_command

_EXAMPLE = """\
examples:
  recordmill status out/flowers
  recordmill status gs://data/flowers --json
"""


def add_status(commands: argparse._SubParsersAction) -> None:
    """Adds the command `status` and its options to the parser."""
    parser = add_command(
        commands,
        "status",
        help="Show the state of a dataset and of the runs that write to it.",
        description="Shows whether OUT contains a complete dataset, and whether a run is writing to it. For an active "
        "run, the command shows\n"
        "the machine, the job and the progress. For an interrupted run, it shows how to continue. It shows the same "
        "for analyses\n"
        "(`recordmill analyze`). The directory does not change.\n"
        "Options that are not listed here are passed to Apache Beam, such as --s3_endpoint_url for an object store.",
        example=_EXAMPLE,
    )
    parser.add_argument(
        "directory",
        metavar="OUT",
        help="Path or URL of the dataset, which is the --output of `recordmill prepare`.",
    )
    parser.add_argument("--json", action="store_true", help="Print the result as JSON.")
