"""Defines the options of `recordmill verify` and converts them to a configuration."""

import argparse

from beam_pipelines.config.verify_config import VerifyConfig
from beam_pipelines.errors import UserError
from beam_pipelines.options.command_parser import add_command
from beam_pipelines.options.option_values import parse_directory

_EXAMPLE = """\
examples:
  recordmill verify out/flowers
  recordmill verify gs://data/flowers --quick --json

The exit code is 0 if the dataset is intact, and 1 if it is corrupt. For each problem, the output names the file, the
record, the byte and the reason.
"""


def add_verify(commands: argparse._SubParsersAction) -> None:
    """Adds the command `verify` and its options to the parser."""
    parser = add_command(
        commands,
        "verify",
        help="Check that a dataset is complete and intact.",
        description="Checks the manifest, the size and checksum of each shard, and the framing of each record. "
        "Compares the index and the\n"
        "catalog with the records, and the examples with the schema. Checks that no key occurs twice, and that no "
        "group is in two\n"
        "splits. Recomputes the statistics from the records. The dataset does not change.\n"
        "Options that are not listed here are passed to Apache Beam. --job_timeout SECONDS stops a Beam job that takes "
        "longer.",
        example=_EXAMPLE,
    )
    add = parser.add_argument
    add("directory", metavar="OUT", help="Path or URL of the dataset.")
    add("--quick", action="store_true", help="Check only the manifest and the sizes of the files, which takes seconds.")
    add("--decode", action="store_true", help="Also decode each image and mask, and recompute the pixel statistics.")
    add("--json", action="store_true", help="Print the result as JSON.")
    add(
        "--report",
        metavar="FILE",
        help="Also write the result to FILE as JSON. On a cluster, the workers must be able to write FILE.",
    )
    add(
        "--shared_filesystem",
        action="store_true",
        help="Declare that all workers of a cluster can access the local paths, such as paths on NFS, Lustre or "
        "Filestore.",
    )


def make_verify_config(arguments: argparse.Namespace) -> VerifyConfig:
    """Converts the arguments of `recordmill verify` to its configuration.

    Raises:
        UserError: A path is empty, or two options exclude each other.
    """
    if arguments.quick and arguments.decode:
        raise UserError(
            "--quick and --decode cannot be used together: --quick reads no records, so it cannot decode images. "
            "Give only one of them."
        )
    return VerifyConfig(
        directory=parse_directory("OUT", arguments.directory),
        is_quick=arguments.quick,
        decodes=arguments.decode,
        report="" if arguments.report is None else parse_directory("--report", arguments.report),
        shared_filesystem=arguments.shared_filesystem,
    )
