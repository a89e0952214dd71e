"""What a source lists of one input, and what it points at beside the image: where bytes lie, not the bytes."""

from typing import Any, Mapping, NamedTuple, Sequence

from beam_pipelines.images.raw_image import RawImage

# The offset of an image that is a file of its own, and what an example has in its place that is without an image.
WHOLE_FILE = -1
NO_IMAGE = -2


class FilePart(NamedTuple):
    """Where bytes lie that belong to an image: its mask, its target, another image.

    Attributes:
        path: The path of the file, relative to the source's root.
        offset: The offset of the first byte in the file; `WHOLE_FILE`: the part is all of the file.
        num_bytes: The number of bytes; 0 for a whole file of which the listing did not say it.
        spool: The number of the spool file where the bytes lie instead, because the source can't give them twice by range; 0: none.
    """

    path: str
    offset: int = WHOLE_FILE
    num_bytes: int = 0
    spool: int = 0


class ArrayPart(NamedTuple):
    """Where an array's numbers lie, one after the other and without a header.

    Attributes:
        path: The path of the file, relative to the source's root.
        offset: The offset of the first byte in the file.
        num_bytes: The number of bytes of the array.
        dtype: The type of the array's numbers, as NumPy writes it: `<f4`.
        shape: The shape of the array.
        spool: The number of the spool file where the bytes lie instead, because the source's own file is compressed; 0: none.
    """

    path: str
    offset: int
    num_bytes: int
    dtype: str
    shape: tuple[int, ...]
    spool: int = 0


class LabeledImage(NamedTuple):
    """One input, as a source lists it.

    Attributes:
        key: The example's stable id within its source, in Unicode's NFC form so that it is the same on every system.
        path: The path of the file where the image lies, or the values of an example without one, relative to the source's root.
        label: The class name, where the data set has the feature `label` of that kind; else empty.
        split: The name of the split that the source puts the input in; None: its group says it.
        num_bytes: The size of the image in bytes; 0 where the listing did not say, because that would have cost a look at each file.
        group: The name of the group that stays in one split together; empty: the key is the group.
        offset: The offset in the file at which the image begins; `WHOLE_FILE`: the image is the file; `NO_IMAGE`: there is no image.
        raw: How to read pixels that have no format, or that a `.npy` file has within another file; None: the bytes are an image file's.
        spool: The number of the spool file where the bytes lie instead, because the source's own file is compressed; 0: none.
        values: Name of each other feature -> its value; see `sources`. None: there are none.
    """

    key: str
    path: str
    label: str
    split: str | None
    num_bytes: int = 0
    group: str = ""
    offset: int = WHOLE_FILE
    raw: RawImage | None = None
    spool: int = 0
    values: Mapping[str, Any] | None = None


def image_bytes(image: LabeledImage, others: Sequence[str]) -> int:
    """The size in bytes of an input's images at the source, its own and those of other features; 0 where one of them is not known."""
    if not others:
        return image.num_bytes
    sizes = [image.num_bytes, *(image.values[name].num_bytes for name in others)]
    return sum(sizes) if all(sizes) else 0
