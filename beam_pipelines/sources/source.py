"""What lists the inputs: a `Source` yields `LabeledImage` references and reads no image bytes.

An input may be a row of values without an image: its `offset` is `NO_IMAGE`, and its path the file in which its values lie.

What a source gives for each kind of feature, in `LabeledImage.values`, by the feature's name:

    class_label          the class name (for the feature `label`: in `LabeledImage.label` instead)
    class_label, ragged  a tuple of class names
    integer              an int
    float                a float
    text                 a str
    of one dimension     a tuple of them, as many as the shape has
    float with 2 or more dimensions, or given as a file    a `FilePart`: a `.npy` file of that shape
    mask                 a `FilePart` (a PNG, BMP or GIF with a palette or in grey), or `annotations.Regions`
    image                a `FilePart`: another image file; or an `ArrayPart`: its pixels
    objects/…            one `annotations.Objects`, under the name `objects`, for all features whose names begin so
"""

from typing import Collection, Iterator, Mapping, Protocol

from beam_pipelines.elements.dead_letters import DeadLetter
from beam_pipelines.elements.labeled_image import LabeledImage
from tf_input.dataset_format import Feature


class Source(Protocol):
    """Lists the inputs of one kind of source.

    Making one is cheap: it looks at no more than it needs to know its features and parts. It raises UserError where the input
    can't be one of its kind. It lists one part after the other.

    Attributes:
        root: The folder, with its links resolved, or the URL without a "/" at its end, that paths are relative to.
        features: The features that an example has beside `image`, `key`, `height` and `width`; class names are not known yet.
        has_images: Whether an example has an image. Asked of kinds that `may_lack_images` alone.
        targets: The names of the features that a model is to predict, and `objects` for all that begin with `objects/`.
        num_ignored: The number of files that are no inputs, counted while a part is listed.
    """

    root: str
    has_images: bool
    features: tuple[Feature, ...]
    targets: tuple[str, ...]
    num_ignored: int

    def parts(self) -> list[str]:
        """What can be listed independently, by different workers: names of files, say. At least one."""

    def list(self, part: str) -> Iterator[LabeledImage | DeadLetter]:
        """The inputs of one part, in any order.

        Raises:
            UserError: The part is not what the source expects, as a whole; a single bad input is a dead letter.
        """

    def label_names(self) -> Mapping[str, Collection[str]]:
        """Class names that are known without an example, by feature: in their order if they are a tuple, else a set.

        Asked after the parts have been listed.
        """


def held_bytes(source: Source, part: str) -> int:
    """About how much memory listing a part takes, where that grows with it: a file of annotations is read as a whole.

    Raises:
        UserError: It is not there.
    """
    held = getattr(source, "held_bytes", None)  # which those sources have
    return held(part) if held else 0


def other_images(source: Source) -> tuple[str, ...]:
    """The names of the features that are images beside `image`."""
    return tuple(feature.name for feature in source.features if feature.kind == "image")
