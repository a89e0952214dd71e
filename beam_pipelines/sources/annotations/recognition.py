"""Recognises the files of annotation tools by their first bytes."""

from typing import Iterator

from beam_pipelines.sources.files.label_files import format_of_content
from beam_pipelines.sources.input_names import Certainty, InputNames, Recognition


def recognise_content(names: InputNames, format_name: str, pattern: str, folders: tuple[str, ...] = ()) -> Recognition | None:
    """Returns a recognition if the first matching file of a folder is of a format.

    The input can be a file itself. Otherwise, its folders with usual names and its split folders are searched too.

    Args:
        names: The names in the input.
        format_name: The name of the format in `label_files`.
        pattern: The glob pattern of the file names.
        folders: The usual names of folders of annotation files, in lower case.
    """
    for folder in _candidates(names, folders):
        name = folder.find(pattern)
        if name and format_of_content(name, folder.head(name if folder.is_folder else "")) == format_name:
            return Recognition(name, Certainty.MARKER)
    return None


def _candidates(names: InputNames, folders: tuple[str, ...]) -> Iterator[InputNames]:
    for outer in (names, *(names.below if names.is_folder else ())):
        yield outer
        if outer.is_folder and (inner := outer.folder(*folders)):
            yield inner
