"""Detects the format of an input from the names and first bytes of its files."""

from typing import NamedTuple

from beam_pipelines.config.source_kinds import SourceKind
from beam_pipelines.errors import UserError, printable
from beam_pipelines.images.images import IMAGE_EXTENSIONS
from beam_pipelines.sources.files.label_files import reject_other_format
from beam_pipelines.sources.input_names import InputNames
from beam_pipelines.sources.registry import find_kind, source_classes

_DEFAULT = "image_folder"


class Guess(NamedTuple):
    """The detected format of an input.

    Attributes:
        kind: The declaration of the format.
        evidence: The names that show the format, and the folder that contains them.
    """

    kind: SourceKind
    evidence: str


def guess_source(path: str) -> Guess:
    """Detects the format of an input. Raises `UserError` if the format is unknown or is not supported, or several
    formats are equally likely."""
    names = InputNames(path)
    recognised = {source.kind: result for source in source_classes().values() if (result := source.recognise(names))}
    if not recognised:
        return _guess_folder(names) if names.is_folder else _reject_file(names)
    certainty = max(result.certainty for result in recognised.values())
    kinds = {kind: result for kind, result in recognised.items() if result.certainty == certainty}
    if len(kinds) > 1:
        readings = " or ".join(f"--source={kind.name}{' ' * bool(result.options)}{result.options} ({printable(result.evidence)})" for kind, result in kinds.items())
        raise UserError(f"--input={printable(path)}: can be read in several ways. Pass {readings}.")
    ((kind, result),) = kinds.items()
    return Guess(kind, printable(f"{result.evidence} in {path}" if names.is_folder else result.evidence))


def _guess_folder(names: InputNames) -> Guess:
    evidence = f"the folder {printable(names.folders[0])}/" if names.folders else "the images" if names.has_images else "the folder"
    return Guess(find_kind(_DEFAULT), f"{evidence} in {printable(names.path)}")


def _reject_file(names: InputNames) -> Guess:
    shown = f"--input={printable(names.path)}"
    if names.name.lower().endswith(tuple(IMAGE_EXTENSIONS)):
        raise UserError(f"{shown}: is an image. Name the folder of its class folder, or a file that lists images.")
    reject_other_format(names.path)
    raise UserError(f"{shown}: unknown format. Name it with --source: {', '.join(source_classes())}.")
