"""Defines the base class of feature kinds.

The methods of `FeatureKind` are defined in the order in which the writer calls them. They encode the values that a
source lists, check the stored values, compute statistics and describe the feature. The defaults suit numbers and
strings.
"""

import dataclasses
from typing import Any, Callable, Iterable, Mapping, NamedTuple, Sequence

import numpy as np

from beam_pipelines.config.image_config import ImageConfig
from beam_pipelines.config.source_config import SourceConfig
from beam_pipelines.elements.input_record import ENTIRE_FILE, ArrayPart, FilePart
from beam_pipelines.elements.merging import Mergeable
from beam_pipelines.elements.statistics import ImageStatistics, SplitStatistics
from beam_pipelines.errors import InvalidInput
from beam_pipelines.images.annotations import Objects, is_turn_guessed
from beam_pipelines.images.images import CheckedImage, StoredImage
from beam_pipelines.images.resize import Geometry
from beam_pipelines.storage.files import Files, read_in_any_form
from beam_pipelines.storage.spool import SpoolReader, read_exactly
from tf_input.dataset_format import Feature
from tf_input.serialized_example import SerializedExample

# Converts fractions of an image's height or width (float32) to pixels. The integer is the height or width in pixels.
ToPixels = Callable[[np.ndarray, int], np.ndarray]

TFDS = "tensorflow_datasets.core.features"


class PositionFacts(Mergeable):
    """Facts about the listed values of one feature, for checking whether the options fit the values."""

    def check(self, name: str, source: SourceConfig) -> None:
        """Raises `UserError` if the options do not fit the values."""

    def warnings(self, name: str, source: SourceConfig) -> Sequence[str]:
        """Returns warnings about unlikely values."""
        return ()


class Mark(NamedTuple):
    """A point or a line to draw on an image, in fractions of the width and height. For a point, both ends are the
    same."""

    x: float
    y: float
    end_x: float
    end_y: float
    name: str
    color_index: int


class StoredImages(NamedTuple):
    """Properties of the stored images of a dataset: the number of channels of image files, and the bits of masks."""

    channels: int = 3
    mask_bits: int = 8


@dataclasses.dataclass(frozen=True)
class EncoderOptions:
    """The options of encoders.

    Attributes:
        features: The features of the dataset, by name.
        root: The base folder of relative paths.
        source: The options of the source, which determine how bad boxes and rotated images are handled.
        check: The level of checks for additional images, one of `config.CHECKS`.
        images: The options of stored images.
    """

    features: Mapping[str, Feature]
    root: str
    source: SourceConfig
    check: str = "strict"
    images: ImageConfig = ImageConfig()


@dataclasses.dataclass
class EncodedExample:
    """An example while its values are encoded.

    Attributes:
        options: The options of the encoders.
        geometry: The rotation and resizing of the image. None if the image was not checked, or does not exist.
        files: The file system or object store of additional images, masks and arrays.
        spool: The reader of temporary files, for data that cannot be read twice from the source.
        is_sampled: Whether tensors are part of the statistics.
        stored: The values to store, by the name of the stored feature.
        images, paths, facts, nums: The fields of `elements.extras.Extras`.
    """

    options: EncoderOptions
    geometry: Geometry | None
    files: Files
    spool: SpoolReader
    is_sampled: bool = False
    stored: dict[str, Any] = dataclasses.field(default_factory=dict)
    images: dict[str, StoredImage] = dataclasses.field(default_factory=dict)
    paths: dict[str, str] = dataclasses.field(default_factory=dict)
    facts: list[tuple["FeatureKind", Feature, Any]] = dataclasses.field(default_factory=list)
    nums: dict[str, int] = dataclasses.field(default_factory=dict)

    @property
    def array_geometry(self) -> Geometry:
        """The rotation and resizing of the image, which also apply to its arrays. If the image is not checked, no
        rotation is assumed."""
        return self.geometry or Geometry((0, 0), 1, (0, 0))

    def read(self, part: FilePart | ArrayPart) -> bytes:
        """Reads the bytes of a file or of a part of a file."""
        if part.spool:
            return read_exactly(self.spool, part.spool, part.offset, part.num_bytes)
        if part.offset == ENTIRE_FILE:
            return read_in_any_form(self.files.read, self.options.root, part.path)
        data = self.files.read_range(f"{self.options.root}/{part.path}", part.offset, part.num_bytes)
        if len(data) != part.num_bytes:
            raise InvalidInput("truncated", f"{len(data)} bytes at {part.offset} instead of {part.num_bytes}")
        return data

    def read_numbers(self, part: ArrayPart) -> np.ndarray:
        """Reads an array."""
        return np.frombuffer(self.read(part), part.dtype).reshape(part.shape)

    def note_rotation(self, size: tuple[int, int] | None) -> None:
        """Records in `nums` if the image size in the annotations does not show whether the annotations must be
        rotated."""
        if self.options.source.drawn_on is None and is_turn_guessed(size, self.geometry):
            self.nums["num_turns_guessed"] = 1


# Converts a listed value to the value to store. Raises `InvalidInput` if the value is invalid.
Encoder = Callable[[Any, EncodedExample], Any]

# Converts the values of all objects in an image to the values to store of the objects with the given indices.
ObjectEncoder = Callable[[Objects, Sequence[int], EncodedExample], Any]


class FeatureKind:
    """A kind of feature, such as boxes or masks. See `tf_input.stored_kinds` for properties that the reader needs.

    Attributes:
        noun: The plural noun for values that reports draw as marks; empty if there are no marks.
        task: The name of the Hugging Face task for a target of this kind; empty if there is none.
        has_recount: Whether the statistics of this kind can be recomputed from the stored values.
        has_tfds_lists: Whether a list of any length is a `Sequence` in TensorFlow Datasets, instead of a tensor.
    """

    noun = ""
    task = ""
    has_recount = True
    has_tfds_lists = False

    def listed_facts(self, values: Iterable[Any]) -> PositionFacts | None:
        """Returns facts for checking whether the options fit the listed values. None if no check is needed."""
        return None

    def encoder(self, feature: Feature, options: EncoderOptions) -> Encoder:
        """Returns the function that converts listed values to stored values. By default, values do not change."""
        return lambda value, example: value

    def object_encoder(self, feature: Feature) -> ObjectEncoder | None:
        """Returns the encoder of a feature of objects, or None if the kind `bbox` encodes its values."""
        return None

    def check(self, feature: Feature, example: SerializedExample, decodes: bool, is_sampled: bool) -> CheckedImage | np.ndarray | None:
        """Checks the stored values of an example.

        Args:
            feature: The stored feature, whose number of values has been checked.
            example: The example.
            decodes: Whether to decode images and masks.
            is_sampled: Whether the pixels of the image `image` are needed for statistics.

        Returns:
            The checked image or the decoded mask; None for other values.

        Raises:
            BadExampleError, InvalidInput, UnicodeDecodeError: The values are invalid.
        """
        return None

    def recount(
        self, feature: Feature, example: SerializedExample, decoded: Any, split: SplitStatistics, statistics: ImageStatistics, is_sampled: bool
    ) -> None:
        """Adds the stored values of an example to the statistics. For an example that is being written, `add_extras`
        calls `count`.

        Args:
            feature: The feature, which is not `image`.
            example: The example.
            decoded: The result of `check`.
            split, statistics: The statistics of the split, and of all splits.
            is_sampled: Whether tensors of the example are part of the statistics.
        """

    def count(self, feature: Feature, fact: Any, split: SplitStatistics, statistics: ImageStatistics) -> None:
        """Adds a value to the statistics.

        Args:
            feature: The feature.
            fact: The part of the value that the statistics need, from `encoder` or `recount`.
            split, statistics: The statistics of the split, and of all splits.
        """

    def statistics(self, statistics: ImageStatistics) -> dict[str, Any]:
        """Returns the fields of `statistics.json` about all values of this kind."""
        return {}

    def describe_tfds(self, feature: Feature, images: StoredImages) -> dict[str, Any]:
        """Returns the description of the feature in the format of TensorFlow Datasets' `features.json`."""
        sides = ["-1" if side is None else str(side) for side in feature.shape]
        encoding = "bytes" if feature.is_packed else "none"
        tensor = {"shape": {"dimensions": sides} if sides else {}, "dtype": feature.value_dtype or "object", "encoding": encoding}
        return {"pythonClassName": f"{TFDS}.tensor_feature.Tensor", "tensor": tensor}

    def export(self, value: Any, size: Callable[[], tuple[int, int]], to_pixels: ToPixels) -> Any:
        """Converts the stored value of an example for export to other programs. Positions become pixels.

        Args:
            value: The value, as in `export.examples.ExportedExample`.
            size: Returns the (height, width) of the stored image in pixels.
            to_pixels: Converts fractions to pixels.
        """
        return value

    def marks(self, feature: Feature, numbers: np.ndarray, max_marks: int) -> list[Mark]:
        """Returns up to `max_marks` marks that show the stored numbers on the image. Invalid numbers are skipped."""
        return []
