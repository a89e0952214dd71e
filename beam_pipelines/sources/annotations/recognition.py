"""Recognises the files of annotation tools by their first bytes."""

import fnmatch
import itertools
from typing import Iterator

from beam_pipelines.config.source_kinds import SourceKind
from beam_pipelines.errors import UserError, printable
from beam_pipelines.sources.files.label_files import format_of_content
from beam_pipelines.sources.input_names import Certainty, InputNames, Recognition

_NUM_CHECKED = 5  # number of files to check in a folder, because the first files may be empty or from another tool


def recognise_content(names: InputNames, format_name: str, pattern: str, folders: tuple[str, ...] = ()) -> Recognition | None:
    """Returns a recognition if the input contains a file of a format.

    In a folder, only the first files that match `pattern` are checked. Split folders, and subfolders with usual names
    of annotation folders, are also searched.

    Args:
        names: The file names in the input, which may be a single file.
        format_name: The name of the format, one of the constants in `label_files`.
        pattern: The glob pattern of the file names, in lower case.
        folders: The usual names of annotation folders, in lower case.
    """
    if not names.is_folder:
        is_recognised = names.find(pattern) and format_of_content(names.name, names.head()) == format_name
        return Recognition(names.name, Certainty.CONTENT) if is_recognised else None
    for folder in _candidates(names, folders):
        matching = (name for name in folder.files if fnmatch.fnmatchcase(name.lower(), pattern))
        for name in itertools.islice(matching, _NUM_CHECKED):
            if format_of_content(name, folder.head(name)) == format_name:
                return Recognition(name, Certainty.MARKER)
    return None


def recognise_paired(kind: SourceKind, names: InputNames, format_name: str, pattern: str, folders: tuple[str, ...]) -> Recognition | None:
    """Recognises a folder in a format with an annotation file for each image. Raises `UserError` if the input is a
    single annotation file."""
    recognition = recognise_content(names, format_name, pattern, folders)
    if recognition and not names.is_folder:
        path = printable(names.path)
        raise UserError(f"--input={path}: looks like {format_name} of one image. Pass its folder, with --source={kind.name}.")
    return recognition


def _candidates(names: InputNames, folders: tuple[str, ...]) -> Iterator[InputNames]:
    for outer in (names, *names.below):
        yield outer
        if inner := outer.folder(*folders):
            yield inner
