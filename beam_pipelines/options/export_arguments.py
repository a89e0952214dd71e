"""Defines the options of `recordmill export` and converts them to a configuration."""

import argparse

from beam_pipelines.config.export_config import FORMATS, ExportConfig
from beam_pipelines.options.command_parser import add_command
from beam_pipelines.options.option_values import parse_directory

_EXAMPLE = """\
examples:
  recordmill export out/flowers flowers_hf --to parquet
  recordmill export out/flowers gs://data/flowers_wds --to webdataset --split train

The exit code is 0 if the export is complete. Otherwise DIR does not exist, or is the unchanged earlier export.
"""


def add_export(commands: argparse._SubParsersAction) -> None:
    """Adds the command `export` and its options to the parser."""
    parser = add_command(
        commands,
        "export",
        help="Convert a dataset to another format.",
        description="Reads the shards of a dataset in order, and writes the examples in another format. The bytes of "
        "the images do not\n"
        "change.\n"
        "Options that are not listed here are passed to Apache Beam. --job_timeout SECONDS stops a Beam job that takes "
        "longer.",
        example=_EXAMPLE,
    )
    add = parser.add_argument
    add("directory", metavar="OUT", help="Path or URL of the dataset.")
    add("output", metavar="DIR", help="Path or URL of the directory for the export.")
    add(
        "--to",
        choices=FORMATS,
        required=True,
        help="Format of the export. webdataset: tar files. parquet: Parquet files for Hugging Face Datasets. "
        "array_record: ArrayRecord files for TensorFlow Datasets and Grain. image_folder: image files named "
        "SPLIT/CLASS/NAME.jpg. tfrecord: the same records, compressed with GZIP. dali_index: index files with which "
        "NVIDIA DALI reads the shards.",
    )
    add(
        "--split",
        action="append",
        default=[],
        metavar="NAME",
        help="Split to export. Repeat the option for several splits. Default: all splits.",
    )
    add("--overwrite", action="store_true", help="Replace an existing export at DIR when the new export is complete.")
    add(
        "--shared_filesystem",
        action="store_true",
        help="Declare that all workers of a cluster can access the local paths, such as paths on NFS, Lustre or "
        "Filestore.",
    )


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
