"""Defines the options of `recordmill inspect`."""

import argparse
from typing import Any

from beam_pipelines.errors import UserError
from beam_pipelines.options.command_parser import add_command

_EXAMPLE = """\
examples:
  recordmill inspect out/flowers
  recordmill inspect out/flowers --where "label == 'rose' and width < 224" --split train
  recordmill inspect out/flowers --example train:17
"""


def add_inspect(commands: argparse._SubParsersAction) -> None:
    """Adds the command `inspect` and its options to the parser."""
    parser = add_command(
        commands,
        "inspect",
        help="Show the contents of a dataset.",
        description="Shows the splits, features, classes, image sizes and shards of a dataset, and how it was made. "
        "With --where\n"
        "or --example, the command shows examples instead. The dataset does not change.",
        example=_EXAMPLE,
    )
    add = parser.add_argument
    add("directory", metavar="OUT", help="Path or URL of the dataset.")
    wanted = parser.add_mutually_exclusive_group()
    wanted.add_argument(
        "--where",
        metavar="CONDITION",
        help="Show the examples that meet a condition, such as \"label == 'rose' and width < 224\". The syntax is "
        "that of batches(where=...) in tf_input.",
    )
    wanted.add_argument(
        "--example",
        metavar="KEY|SPLIT:N",
        help="Show one example, by key, or by split and index from 0. The image is written to a temporary file.",
    )
    add("--split", help="Split to search. Only with --where. Default: all splits.")
    add("--json", action="store_true", help="Print the result as JSON.")


def inspect_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """Converts the arguments of `recordmill inspect` to keyword arguments of the function that runs the command.

    Raises:
        UserError: Two options exclude each other.
    """
    if arguments.split is not None and arguments.where is None:
        raise UserError(f"--split={arguments.split}: this option needs --where. With --example, write SPLIT:N instead.")
    return {name: getattr(arguments, name) for name in ("where", "split", "example")} | {"as_json": arguments.json}
