"""The options of `recordmill inspect`."""

import argparse
from typing import Any

from beam_pipelines.errors import UserError
from beam_pipelines.options.command_parser import add_command

_EXAMPLE = """\
example:
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
        help="what is in a data set?",
        description="Shows what a data set has: splits, features, classes, sizes of images, shards, and how it was made; or, with one of\n"
        "--where, --example and --sql, some of its examples. It changes nothing.",
        example=_EXAMPLE,
    )
    add = parser.add_argument
    add("directory", metavar="OUT", help="the data set: a path or URL")
    wanted = parser.add_mutually_exclusive_group()
    wanted.add_argument("--where", metavar="CONDITION", help="the examples that meet it, in the words of batches(where=...)")
    wanted.add_argument(
        "--example",
        metavar="KEY|SPLIT:N",
        help="one example, by its key or its number from 0, with its image: in a terminal with colours, or else in a file",
    )
    wanted.add_argument(
        "--sql", metavar="QUERY", help="what a query gives over the table catalog of all examples (pip install 'recordmill[sql]')"
    )
    add("--split", help="with --where or --sql: one split alone")
    add("--json", action="store_true", help="the same for programs")


def inspect_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """Converts the arguments of `recordmill inspect` to keyword arguments of `tf_input.inspection.inspection.run`.

    Raises:
        UserError: Two options exclude each other.
    """
    if arguments.split is not None and arguments.where is None and arguments.sql is None:
        raise UserError(f"--split={arguments.split}: expected it with --where or --sql; --example says its split itself")
    return {name: getattr(arguments, name) for name in ("where", "split", "example", "sql")} | {"as_json": arguments.json}
