"""What a source lists of one input, and what it points at beside the image: where bytes lie, not the bytes."""

from typing import Any, Mapping, NamedTuple, Sequence

from beam_pipelines.images.raw_image import RawImage

# The offset of an image that is a file of its own, and what an example has in its place that is without an image.
WHOLE_FILE = -1
NO_IMAGE = -2


class FilePart(NamedTuple):
    """Where bytes lie that belong to an image: its mask, its target, another image.

    Attributes:
        path: A file, relative to the source's root.
        offset: Of the first byte; `WHOLE_FILE`: all of the file.
        num_bytes: How many, of a part; of a whole file 0 where the listing did not say.
        spool: The spool file where the bytes lie instead, because the source can't give them twice by range; 0: none.
    """

    path: str
    offset: int = WHOLE_FILE
    num_bytes: int = 0
    spool: int = 0


class ArrayPart(NamedTuple):
    """Where an array's numbers lie, one after the other and without a header.

    Attributes:
        path: The file, relative to the source's root.
        offset: Of the first byte.
        num_bytes: How many.
        dtype: Of a number, as NumPy writes it: `<f4`.
        shape: Of the array.
        spool: The spool file where the bytes lie instead, because the source's own file is compressed; 0: none.
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
        path: The file where the bytes lie, or the values of an example without an image, relative to the source's root.
        label: Class name, where the data set has the feature `label` of that kind; else empty.
        split: The split that the source puts it in; None: by its group.
        num_bytes: Size of the image; 0 where the listing did not say, because that would have cost a look at each file.
        group: What stays in one split together; empty: the key.
        offset: Where in the file the image begins; `WHOLE_FILE`: it is the file; `NO_IMAGE`: there is none.
        raw: How to read pixels that have no format, or that a `.npy` file has within another file; None: the bytes are an image file's.
        spool: The spool file where the bytes lie instead, because the source's own file is compressed; 0: none.
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
    """The bytes of an input's images at the source: of its own, and of those of other features; 0 where one's number is not known."""
    if not others:
        return image.num_bytes
    sizes = [image.num_bytes, *(image.values[name].num_bytes for name in others)]
    return sum(sizes) if all(sizes) else 0
