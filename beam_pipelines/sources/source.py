"""Defines the `Source` protocol, which lists the inputs of a dataset without reading image bytes.

An input can also be a row of values without an image. For an input without an image, `offset` is `NO_IMAGE`, and the
path refers to the file that contains the values.

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

from typing import Collection, Iterator, Mapping, Protocol

from beam_pipelines.elements.dead_letters import DeadLetter
from beam_pipelines.elements.input_record import InputRecord
from tf_input.dataset_format import Feature


class Source(Protocol):
    """Lists the inputs of one kind of source.

    The constructor should be fast, and read only the data that determines the features and the list of parts. The
    constructor must raise `UserError` if the input is not of this kind.

    Attributes:
        root: The folder that paths are relative to, with its links resolved, or the URL, without a trailing "/".
        features: The features of an example besides `image`, `key`, `height` and `width`. Class names are not known
            yet.
        has_images: Whether examples have an image. Only read for source kinds with `may_omit_images`.
        targets: The names of the features that a model predicts. `objects` stands for all features below `objects/`.
        num_ignored: The number of ignored files, counted while a part is listed.
    """

    root: str
    has_images: bool
    features: tuple[Feature, ...]
    targets: tuple[str, ...]
    num_ignored: int

    def parts(self) -> list[str]:
        """Returns the parts that workers can list independently, such as file names. There is at least one part."""

    def list(self, part: str) -> Iterator[InputRecord | DeadLetter]:
        """Lists one part and yields its inputs in any order.

        Raises:
            UserError: The whole part is invalid. A single invalid input becomes a dead letter instead.
        """

    def label_names(self) -> Mapping[str, Collection[str]]:
        """Returns the class names that are known before the listing for each feature, as an ordered tuple or an
        unordered set.

        Called after the parts have been listed.
        """


def memory_bytes(source: Source, part: str) -> int:
    """Returns the approximate memory in bytes for listing a part, or 0 if the memory is constant.

    For annotation files, the memory is proportional to the file size, because whole files are kept in memory.

    Raises:
        UserError: The part does not exist.
    """
    estimate = getattr(source, "memory_bytes", None)  # only sources whose memory grows define it
    return estimate(part) if estimate else 0


def other_images(source: Source) -> tuple[str, ...]:
    """Returns the names of all image features except `image`."""
    return tuple(feature.name for feature in source.features if feature.kind == "image")
