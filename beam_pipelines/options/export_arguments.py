"""The options of `recordmill export` and their conversion to a configuration."""

import argparse

from beam_pipelines.config.export_config import FORMATS, ExportConfig
from beam_pipelines.options.command_parser import add_command
from beam_pipelines.options.option_values import parse_directory

_EXAMPLE = """\
example:
  recordmill export out/flowers flowers_hf --to parquet
  recordmill export out/flowers gs://data/flowers_wds --to webdataset --split train

It ends with 0 where DIR is whole; else there is no DIR, or the one that was there before.
"""


def add_export(commands: argparse._SubParsersAction) -> None:
    """Adds the command `export` and its options to the parser."""
    parser = add_command(
        commands,
        "export",
        help="a data set in the formats of others",
        description="Reads a data set's shards in order and writes what is in them in another format. "
        "Images stay the bytes that they are.\n"
        "webdataset: tar files; parquet: as Hugging Face's datasets has it; array_record: as TensorFlow Datasets and Grain have it;\n"
        "image_folder: SPLIT/CLASS/NAME.jpg; tfrecord: the same records, GZIP; dali_index: what DALI reads beside the shards.\n"
        "Every other option goes to Apache Beam. --job_timeout SECONDS stops a job that takes longer.",
        example=_EXAMPLE,
    )
    add = parser.add_argument
    add("directory", metavar="OUT", help="the data set: a path or URL")
    add("output", metavar="DIR", help="the directory that the export becomes: a path or URL too")
    add("--to", choices=FORMATS, required=True, help="the format")
    add("--split", action="append", default=[], metavar="NAME", help="export this split, once for each (default: all)")
    add("--overwrite", action="store_true", help="replace an export at DIR, once the new one is whole")
    add("--shared_filesystem", action="store_true", help="a cluster's workers see the local paths that are given")


def make_export_config(arguments: argparse.Namespace) -> ExportConfig:
    """Converts the arguments of `recordmill export` to its configuration. Raises `UserError` if a path is empty."""
    return ExportConfig(
        directory=parse_directory("OUT", arguments.directory),
        output=parse_directory("DIR", arguments.output),
        to=arguments.to,
        splits=tuple(dict.fromkeys(arguments.split)),
        overwrite=arguments.overwrite,
        shared_filesystem=arguments.shared_filesystem,
    )
