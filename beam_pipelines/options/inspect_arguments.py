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
  recordmill inspect out/flowers --sql "select label, count(*), avg(num_bytes) from catalog group by label"
"""


def add_inspect(commands: argparse._SubParsersAction) -> None:
    """Adds the command `inspect` and its options to the parser."""
    parser = add_command(
        commands,
        "inspect",
        help="Show the contents of a dataset.",
        description="Shows the splits, features, classes, image sizes and shards of a dataset, and how it was made. "
        "With --where,\n"
        "--example or --sql, the command shows examples instead. The dataset does not change.",
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
        help="Show one example with its image, by key, or by split and index from 0. In a color terminal, the image is "
        "drawn. Otherwise it is written to a file.",
    )
    wanted.add_argument(
        "--sql",
        metavar="QUERY",
        help="Show the result of an SQL query over the table catalog, which has one row per example. The option "
        "needs the package extra recordmill[sql].",
    )
    add("--split", help="Split to search. Only with --where or --sql. Default: all splits.")
    add("--json", action="store_true", help="Print the result as JSON.")


def inspect_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """Converts the arguments of `recordmill inspect` to keyword arguments of the function that runs the command.

    Raises:
        UserError: Two options exclude each other.
    """
    if arguments.split is not None and arguments.where is None and arguments.sql is None:
        raise UserError(
            f"--split={arguments.split}: this option needs --where or --sql. With --example, write SPLIT:N instead."
        )
    return {name: getattr(arguments, name) for name in ("where", "split", "example", "sql")} | {"as_json": arguments.json}
