"""The options of `recordmill report`."""

import argparse

from beam_pipelines.options.command_parser import add_command

_EXAMPLE = """\
example:
  recordmill report out/flowers
  recordmill report gs://data/flowers --page flowers.html

It ends with 0 once the page is written; with 2 where there is no data set, or a damaged one, or where FILE is something else than a page.
"""


def add_report(commands: argparse._SubParsersAction) -> None:
    """Adds the command `report` and its options to the parser."""
    parser = add_command(
        commands,
        "report",
        help="a page that shows what is in a data set, and whether it is healthy",
        description="Writes report.html into a data set, as `recordmill prepare` does: "
        "one file that needs no network, with samples of each class,\n"
        "sizes, the order before and after the shuffle, dead letters, the oddest images, those that are alike, and how to read it.\n"
        "Nothing but the data set is read.\n"
        "Every other option goes to Apache Beam (of an object store, such as --s3_endpoint_url).",
        example=_EXAMPLE,
    )
    parser.add_argument("directory", metavar="OUT", help="the data set: a path or URL")
    parser.add_argument(
        "--page",
        metavar="FILE",
        help="where the page goes (default: OUT/report.html); an earlier page there is replaced, any other file is refused",
    )
