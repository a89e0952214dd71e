"""Defines the base class of sources, which list the inputs of a dataset without reading image bytes.

An input without an image is a row of values. Its `offset` is `NO_IMAGE`, and its `path` is the file with the values.

`InputRecord.values` maps each feature's name to a value of this type:

    class_label          the class name (the feature `label` uses `InputRecord.label` instead)
    class_label, ragged  a tuple of class names
    integer              an int
    float                a float
    text                 a str
    1-D integer, float or text    a tuple of as many values as the shape has
    float with 2 or more dimensions, or in a file    a `FilePart`: a `.npy` file of that shape
    mask                 a `FilePart` (a PNG, BMP or GIF that is grey or has a palette), or `annotations.Regions`
    image                a `FilePart` with an image file, or an `ArrayPart` with pixels
    objects/…            one `annotations.Objects` under the name `objects`, for all features with this prefix
"""

import abc
from typing import TYPE_CHECKING, Callable, ClassVar, Collection, Iterator, Mapping, Sequence

from beam_pipelines.config.prepare_options import PrepareOptions
from beam_pipelines.config.source_config import SourceConfig
from beam_pipelines.config.source_kinds import SourceKind
from beam_pipelines.elements.dead_letters import DeadLetter
from beam_pipelines.elements.input_record import InputRecord
from beam_pipelines.sources.cells.box_forms import BoxForms
from beam_pipelines.sources.cells.unused_fields import UnusedFields
from beam_pipelines.sources.files.layouts import reject_options
from beam_pipelines.sources.files.other_files import UnexpectedFiles
from beam_pipelines.sources.input_names import InputNames, Recognition
from tf_input.dataset_format import LABEL, OBJECTS, Feature

if TYPE_CHECKING:
    from beam_pipelines.sources.name_labels import NameLabels


class Source(abc.ABC):
    """Lists the inputs of one source format.

    Each format is a subclass that declares `kind`, in a module or folder of `sources.formats`. The command line, the
    detection of the format, and the checks of options use this declaration.

    The constructor should be fast, and should read only the data that determines the features and the list of parts.
    Its arguments are those of `open_source`.

    Attributes:
        kind: The declaration of the format.
        root: The folder that paths are relative to, with its links resolved, or the URL, without a trailing "/".
        features: The features of an example besides `image`, `key`, `height` and `width`. Class names are not known
            yet.
        targets: The names of the features that a model predicts. `objects` stands for all features below `objects/`.
        has_images: Whether examples have an image. Only read for source kinds with `may_omit_images`.
        columns: The features of verbatim records that have a catalog column. Empty for all other sources.
        detected: A message about the settings that were detected from the data. Empty if nothing was detected.
        resolved: The options of the source, including detected settings. None if no setting was detected.
        num_ignored: The number of ignored files, counted while a part is listed.
        unused_fields: The columns and fields that are not kept, collected while parts are listed.
        point_labels: The labels of points in annotations, collected while parts are listed if `--label` selects points.
        boxes: Counts that show whether boxes fit `--box_format` and `--box_unit`. Empty if the format defines both.
        group_names: The names of categories that only group other categories.
        found_features: Further features, which are known only after a part has been listed.
        noted: Warnings that begin with a number of images, lines or files, collected while a part is listed. Maps the
            text after the number to the number.
        name_labels: The labels that `--label_pattern` adds to the listed inputs. None if the option is not given.
        unexpected_files: The files that are not inputs, collected while a part is listed. None if the format ignores
            such files.

    Raises:
        UserError: The input is not of this format, or an option does not apply to it.
    """

    kind: ClassVar[SourceKind]

    root: str
    features: tuple[Feature, ...] = ()
    targets: tuple[str, ...] = ()
    has_images: bool = True
    columns: tuple[Feature, ...] = ()
    detected: str = ""
    resolved: SourceConfig | None = None
    num_ignored: int = 0
    group_names: frozenset[str] = frozenset()
    found_features: frozenset[Feature] = frozenset()
    name_labels: "NameLabels | None" = None
    unexpected_files: UnexpectedFiles | None = None

    def __init__(self, options: PrepareOptions, spool_directory: str | None = None) -> None:
        self.noted: dict[str, int] = {}
        self.unused_fields, self.boxes = UnusedFields(), BoxForms()
        self.point_labels: set[str] = set()
        self._options, self._spool_directory = options, spool_directory
        reject_options(options.source, self.kind)

    @classmethod
    def recognise(cls, names: InputNames) -> Recognition | None:
        """Returns the reason why the input seems to have this format, or None if it does not."""
        return None

    @classmethod
    def variant(cls, source: SourceConfig) -> "type[Source]":
        """Returns the class that lists the inputs: this class, or another class that an option selects."""
        return cls

    @abc.abstractmethod
    def parts(self) -> list[str]:
        """Returns the parts that workers can list independently, such as file names. There is at least one part."""

    @abc.abstractmethod
    def list(self, part: str) -> Iterator[InputRecord | DeadLetter]:
        """Lists one part and yields its inputs in any order. Raises `UserError` if the whole part is invalid. A single
        invalid input becomes a dead letter instead."""

    def check(self, unexpected_files: UnexpectedFiles | None) -> None:
        """Raises `UserError` if the files do not have the layout of the format. Called after the unexpected files of all
        parts have been merged."""

    def check_point_labels(self, found: Collection[str]) -> None:
        """Raises `UserError` if `--label` names a label of points that is not in `found`, the merged `point_labels` of all
        parts."""

    def label_names(self) -> Mapping[str, Collection[str]]:
        """Returns the class names that the source specifies for each feature, for example in a header: a tuple if they
        are ordered, and otherwise a set. Called after the parts have been listed."""
        return {}

    def memory_bytes(self, part: str) -> int:
        """Returns the approximate memory in bytes that listing a part needs, or 0 if the memory does not depend on the
        part. Raises `UserError` if the part does not exist."""
        return 0


def other_images(source: Source) -> tuple[str, ...]:
    """Returns the names of all image features except `image`."""
    return tuple(feature.name for feature in source.features if feature.is_image)


def class_name_reader(feature: Feature) -> Callable[[InputRecord], Sequence[str]]:
    """Returns a function that maps an input to its class names, for a feature of kind `class_label`."""
    name = feature.name
    if feature.is_of_objects:
        return lambda record: record.values[OBJECTS].classes(name)
    if feature.shape:
        return lambda record: record.values[name]
    return (lambda record: (record.label,)) if name == LABEL else (lambda record: (record.values[name],))
