"""Detects the format of an input from the names and first bytes of its files."""

from typing import NamedTuple

from beam_pipelines.config.source_config import SourceConfig
from beam_pipelines.config.source_kinds import SourceKind
from beam_pipelines.errors import UserError, printable
from beam_pipelines.sources.files.label_files import reject_other_format
from beam_pipelines.sources.files.layouts import applies, given_options
from beam_pipelines.sources.files.paths import is_image_name
from beam_pipelines.sources.input_names import InputNames
from beam_pipelines.sources.registry import source_classes


class Guess(NamedTuple):
    """The detected format of an input.

    Attributes:
        kind: The declaration of the format.
        evidence: The names that show the format, and the folder that contains them, or the option that shows it.
    """

    kind: SourceKind
    evidence: str


def guess_source(path: str, source: SourceConfig = SourceConfig()) -> Guess:
    """Detects the format of an input from its names, or from an option in `source` that only one format has. Raises
    `UserError` if the format is unknown or is not supported, or several formats are equally likely."""
    names, kinds = InputNames(path), [item.kind for item in source_classes().values()]
    for declared in given_options(source):
        if len(fitting := [kind for kind in kinds if applies(declared.field, source, kind)]) == 1:
            return Guess(fitting[0], f"--{declared.name}")
    recognised = {item.kind: result for item in source_classes().values() if (result := item.recognise(names))}
    if not recognised:
        raise _unknown_format(names)
    certainty = max(result.certainty for result in recognised.values())
    likely = {kind: result for kind, result in recognised.items() if result.certainty == certainty}
    if len(likely) > 1:
        readings = [
            f"--source={kind.name}{' ' * bool(result.options)}{result.options} ({printable(result.evidence)})"
            for kind, result in likely.items()
        ]
        raise UserError(f"--input={printable(path)}: can be read in several ways. Pass {' or '.join(readings)}.")
    ((kind, result),) = likely.items()
    return Guess(kind, printable(f"{result.evidence} in {path}" if names.is_folder else result.evidence))


def _unknown_format(names: InputNames) -> UserError:
    shown = f"--input={printable(names.path)}"
    if is_image_name(names.name):
        return UserError(f"{shown}: is an image. Name the folder of its class folder, or a file that lists images.")
    reject_other_format(names.path)
    return UserError(f"{shown}: unknown format. Name it with --source: {', '.join(source_classes())}.")
