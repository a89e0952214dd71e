"""The options of `recordmill verify` and their conversion to a configuration."""

import argparse

from beam_pipelines.config.verify_config import VerifyConfig
from beam_pipelines.errors import UserError
from beam_pipelines.options.command_parser import add_command
from beam_pipelines.options.option_values import parse_directory

_EXAMPLE = """\
example:
  recordmill verify out/flowers
  recordmill verify gs://data/flowers --quick --json

It ends with 0 where everything is as it was written; with 1 where something is not: file, record, byte and reason are told.
"""


def add_verify(commands: argparse._SubParsersAction) -> None:
    """Adds the command `verify` and its options to the parser."""
    parser = add_command(
        commands,
        "verify",
        help="is everything in a data set as it was written?",
        description="Reads a data set and compares all that is in it: the manifest, each shard's size and checksum, each record's frame,\n"
        "the index and the catalog against the records, the examples against the schema; no key twice, no group in two splits. "
        "It changes nothing.\n"
        "Every other option goes to Apache Beam. --job_timeout SECONDS stops a job that takes longer.",
        example=_EXAMPLE,
    )
    add = parser.add_argument
    add("directory", metavar="OUT", help="the data set: a path or URL")
    add("--quick", action="store_true", help="look at the manifest and at the sizes of files alone: seconds")
    add("--decode", action="store_true", help="decode each image and mask too")
    add("--json", action="store_true", help="the report as JSON")
    add("--report", metavar="FILE", help="write the report there too, as JSON; on a cluster where its workers can write")
    add("--shared_filesystem", action="store_true", help="a cluster's workers see the local paths that are given")


def make_verify_config(arguments: argparse.Namespace) -> VerifyConfig:
    """Converts the arguments of `recordmill verify` to its configuration.

    Raises:
        UserError: A path is empty, or two options exclude each other.
    """
    if arguments.quick and arguments.decode:
        raise UserError("--quick and --decode exclude each other: images lie in records, which --quick does not read; expected one of them")
    return VerifyConfig(
        directory=parse_directory("OUT", arguments.directory),
        is_quick=arguments.quick,
        decodes=arguments.decode,
        report="" if arguments.report is None else parse_directory("--report", arguments.report),
        shared_filesystem=arguments.shared_filesystem,
    )
