"""Defines the options of `recordmill report`."""

import argparse

from beam_pipelines.options.command_parser import add_command

_EXAMPLE = """\
examples:
  recordmill report out/flowers
  recordmill report gs://data/flowers --page flowers.html

The exit code is 0 if the page is written. The exit code is 2 if there is no dataset, if the dataset is corrupt, or if
FILE exists and is not an earlier page.
"""


def add_report(commands: argparse._SubParsersAction) -> None:
    """Adds the command `report` and its options to the parser."""
    parser = add_command(
        commands,
        "report",
        help="Write an HTML page that shows the contents of a dataset and possible problems.",
        description="Writes report.html into a dataset, as `recordmill prepare` does. The page works offline. It "
        "shows samples of each class,\n"
        "image sizes, the order before and after the shuffle, dead letters, unusual images, near-duplicates, and code "
        "that reads\n"
        "the dataset. The command reads only the dataset, and not the source.\n"
        "Options that are not listed here are passed to Apache Beam, such as --s3_endpoint_url for an object store.",
        example=_EXAMPLE,
    )
    parser.add_argument("directory", metavar="OUT", help="Path or URL of the dataset.")
    parser.add_argument(
        "--page",
        metavar="FILE",
        help="Path or URL of the page. The command replaces only earlier pages, and no other files. Default: "
        "OUT/report.html.",
    )
