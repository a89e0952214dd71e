"""Describes an input as listed by a source: the location of the image bytes, and the values of the features."""

from typing import Any, Mapping, NamedTuple, Sequence

from beam_pipelines.images.raw_image import RawImage

# Special offsets: the image is an entire file, or the example has no image.
ENTIRE_FILE = -1
NO_IMAGE = -2


class FilePart(NamedTuple):
    """The location of additional data of an example, such as a mask, a dense target or a second image.

    Attributes:
        path: The path of the file, relative to the source's root.
        offset: The offset of the first byte in the file. `ENTIRE_FILE` means the whole file.
        num_bytes: The number of bytes, or 0 for an entire file of unknown size.
        spool: The number of the temporary file with the bytes, if the source cannot read byte ranges twice. Otherwise
            0.
    """

    path: str
    offset: int = ENTIRE_FILE
    num_bytes: int = 0
    spool: int = 0


class ArrayPart(NamedTuple):
    """The location of an array whose numbers are stored in C order without a header.

    Attributes:
        path: The path of the file, relative to the source's root.
        offset: The offset of the first byte in the file.
        num_bytes: The number of bytes of the array.
        dtype: The type of the array's numbers in NumPy's notation, such as `<f4`.
        shape: The shape of the array.
        spool: The number of the temporary file with the bytes, if the source file is compressed. Otherwise 0.
    """

    path: str
    offset: int
    num_bytes: int
    dtype: str
    shape: tuple[int, ...]
    spool: int = 0


class InputRecord(NamedTuple):
    """One input, as listed by a source.

    Attributes:
        key: The stable, unique name of the example, in Unicode NFC form so that it is the same on every system.
        path: The path of the file with the image or with the values of the example, relative to the source's root.
        label: The class name, if the dataset has a single-class feature `label`. Otherwise empty.
        split: The split that the source assigns. None if the split depends on the group.
        num_bytes: The size of the image in bytes. 0 if the size is unknown until the file is opened.
        group: The name of the group, whose examples stay in one split. If empty, the key is the group.
        offset: The offset of the image in the file. `ENTIRE_FILE` means the whole file, `NO_IMAGE` means no image.
        raw: The layout of raw pixels or of a nested `.npy` file. None for an encoded image.
        spool: The number of the temporary file with the bytes, if the source file is compressed. Otherwise 0.
        values: A mapping from each other feature to its value, or None. See `sources`.
    """

    key: str
    path: str
    label: str
    split: str | None
    num_bytes: int = 0
    group: str = ""
    offset: int = ENTIRE_FILE
    raw: RawImage | None = None
    spool: int = 0
    values: Mapping[str, Any] | None = None


def image_bytes(image: InputRecord, others: Sequence[str]) -> int:
    """Returns the total size of all images of an input, in bytes. Returns 0 if the size of an image is unknown."""
    if not others:
        return image.num_bytes
    sizes = [image.num_bytes, *(image.values[name].num_bytes for name in others)]
    return sum(sizes) if all(sizes) else 0
