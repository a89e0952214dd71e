"""What lists the inputs, one module per source. Each yields `LabeledImage` references and reads no image bytes.

What a source gives for each kind of feature, in `LabeledImage.values`, by the feature's name:

    class_label          the class name (for the feature `label`: in `LabeledImage.label` instead)
    class_label, ragged  a tuple of class names
    integer              an int
    float                a float, or a tuple of as many as the shape has
    text                 a str
    float with 2 or more dimensions, or given as a file    a `FilePart`: a `.npy` file of that shape
    mask                 a `FilePart` (a PNG, BMP or GIF with a palette or in grey), or `annotations.Regions`
    objects/…            one `annotations.Objects`, under the name `objects`, for all features whose names begin so
"""

import dataclasses
from fractions import Fraction
from typing import Collection, Iterator, Mapping, Protocol

from beam_pipelines.dead_letters import DeadLetter, DeadLetterCount
from beam_pipelines.references import LabeledImage
from tf_input.dataset_format import LABEL, Feature


class Source(Protocol):
    """Lists the inputs of one kind of source.

    Making one is cheap: it looks at no more than it needs to know its features and parts. It raises UserError where the input
    can't be one of its kind. It lists one part after the other.

    Attributes:
        root: What paths are relative to: a folder, links resolved, or a URL without a "/" at its end.
        features: What an example has beside `image`, `key`, `height` and `width`; class names are not known yet.
        targets: See `Manifest.targets`.
        num_ignored: Files that are no inputs, counted while a part is listed.
    """

    root: str
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


@dataclasses.dataclass(frozen=True)
class Listing:
    """What is known once every input is listed.

    Attributes:
        source: Its kind: one of `config.SOURCES`.
        root: What paths are relative to.
        schema: The features of an example, by name in ascending order, with their class names.
        targets: See `Manifest.targets`.
        listed_labels: Feature -> class names that an input has: without an example, each of them is warned of.
        splits: Split names, in the order in which they are shown.
        fractions: Their shares, where an example's group decides; None where the source does.
        num_inputs: Images and dead letters.
        num_bytes: Of the images, as they lie at the source; 0 where the listing did not say of each.
        reference_bytes: Of all references, in memory.
        num_ignored: Files that are no inputs.
        dead_letters: Inputs that were refused when they were listed.
    """

    source: str
    root: str
    schema: tuple[Feature, ...]
    targets: tuple[str, ...]
    listed_labels: Mapping[str, frozenset[str]]
    splits: tuple[str, ...]
    fractions: Mapping[str, Fraction] | None
    num_inputs: int
    num_bytes: int
    reference_bytes: int
    num_ignored: int
    dead_letters: DeadLetterCount

    @property
    def label_names(self) -> tuple[str, ...]:
        """Class names of `label`; empty where an example has not one class."""
        return next((f.label_names for f in self.schema if f.name == LABEL and f.kind == "class_label" and not f.shape), ())

    @property
    def num_images(self) -> int:
        """That were listed."""
        return self.num_inputs - self.dead_letters.num

    @property
    def has_sizes(self) -> bool:
        return self.num_bytes > 0
