"""Suggests an existing path if a path given by the user does not exist."""

import itertools
import os

from beam_pipelines.errors import UserError, nearest, printable
from beam_pipelines.storage.files import is_remote

_MAX_NAMES = 10_000


def did_you_mean_path(path: str) -> str:
    """Returns "; did you mean ...?" with the most similar existing path, or "" if there is none.

    Each missing name in the path is replaced by the most similar name in its folder. If a folder contains no similar
    name, the suggestion is the path of this folder. Object stores are not searched.
    """
    near = "" if is_remote(path) else _nearest_path(path)
    return f"; did you mean {printable(near)!r}?" if near else ""


def check_folder(option: str, path: str) -> None:
    """Raises `UserError` if the folder of a file to write does not exist. Object stores have no folders to check."""
    folder = os.path.dirname(path)
    if folder and not is_remote(path) and not os.path.isdir(folder):
        raise UserError(f"{option}={printable(path)}: the folder {printable(folder)} does not exist. Create it first.")


def _nearest_path(path: str) -> str:
    existing, is_changed = "/" if path.startswith("/") else "", False
    for name in filter(None, path.split("/")):
        if not os.path.exists(os.path.join(existing, name)):
            if not (name := nearest(name, _names_in(existing or "."))):
                break
            is_changed = True
        existing = os.path.join(existing, name)
    return existing if is_changed else ""


def _names_in(folder: str) -> list[str]:
    """Returns the names in a folder. The list is empty if the folder cannot be read."""
    try:
        with os.scandir(folder) as entries:
            return [entry.name for entry in itertools.islice(entries, _MAX_NAMES) if not entry.name.startswith(".")]
    except OSError:
        return []
