"""The options of `recordmill status`."""

import argparse

from beam_pipelines.options.command_parser import add_command

_EXAMPLE = """\
example:
  recordmill status out/flowers
  recordmill status gs://data/flowers --json
"""


def add_status(commands: argparse._SubParsersAction) -> None:
    """Adds the command `status` and its options to the parser."""
    parser = add_command(
        commands,
        "status",
        help="what a run to OUT is doing, or has left",
        description="Says whether a data set is at OUT, whether a run is at work there, "
        "on which machine and by which job, how far it is, and\n"
        "what to do about one that has ended; and the same of an analysis (`recordmill analyze`). It changes nothing.\n"
        "Every other option goes to Apache Beam (of an object store, such as --s3_endpoint_url).",
        example=_EXAMPLE,
    )
    parser.add_argument("directory", metavar="OUT", help="what a run was to make: a path or URL")
    parser.add_argument("--json", action="store_true", help="the same for programs")
