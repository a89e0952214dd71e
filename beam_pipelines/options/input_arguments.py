"""Defines options that are shared by all commands that read files of other tools."""

import argparse


def add_follow_links(group: argparse._ActionsContainer, folder_text: str, otherwise: str) -> None:
    """Adds the option `--follow_links`.

    Args:
        group: The parser, or a group of its options.
        folder_text: The metavar of the input path, for the help text.
        otherwise: The end of the sentence in the help text about links that are not followed.
    """
    group.add_argument(
        "--follow_links",
        action="store_true",
        help=f"Follow symbolic links that point outside {folder_text} or to a folder. A link to a folder that contains "
        f"the link is never followed. Default: links of both kinds {otherwise}.",
    )


def add_split_folders(group: argparse._ActionsContainer, help: str) -> None:
    """Adds the option `--split_folders` with a help text that fits the command."""
    group.add_argument("--split_folders", choices=("yes", "no"), help=help)


def has_split_folders(arguments: argparse.Namespace) -> bool | None:
    """Returns the value of `--split_folders`, or None if the option was not given."""
    return None if arguments.split_folders is None else arguments.split_folders == "yes"
