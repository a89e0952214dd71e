"""Makes images smaller, or of one size: which size, from how little of a JPEG, by which filter.

The filter is Pillow's antialiased Lanczos: images are resized once and read many times. Of a JPEG that shrinks by far, no more
than a half, a quarter or an eighth of the scale is decoded (DCT scaling), such that twice the wanted size is left. Photographs of
500 x 375 pixels a second, one thread, decoded and resized, and their PSNR against the full scale with the same filter:

    short side                          64            128           256
    full scale                          300           270           190
    full scale, bicubic                 380, 44 dB    335, 45 dB    240, 45 dB
    half, quarter, eighth; 2 x left     600, 52 dB    270           190
    any of 8 scales; 1 x left           820, 41 dB    550, 40 dB    250, 43 dB

The scales of 5/8 to 7/8 take longer to decode than the whole. What is decoded at 1/n of the scale has `ceil(side / n)` pixels, the
last of which may stick out of the image: to resize only `side / n` of them is worth 15 dB.
"""

from typing import TYPE_CHECKING, NamedTuple

from beam_pipelines.config.image_config import MAX_IMAGE_PIXELS

if TYPE_CHECKING:
    from PIL import Image


class Geometry(NamedTuple):
    """How an image came to be stored as it is, for boxes, masks and arrays that have to follow it.

    Attributes:
        found: (height, width) in pixels of the source's image, before it is turned.
        orientation: The EXIF orientation of the source's image, 1 to 8; 1: it stays as it is.
        stored: (height, width) in pixels of the image as stored, turned and resized.
    """

    found: tuple[int, int]
    orientation: int
    stored: tuple[int, int]

    @property
    def upright(self) -> tuple[int, int]:
        """(height, width) in pixels of the image once turned, before it is resized."""
        return turned(self.found, self.orientation)


def turned(size: tuple[int, int], orientation: int) -> tuple[int, int]:
    """(height, width) of an image of that size, once it is turned by its EXIF orientation."""
    return size if orientation <= 4 else size[::-1]


def stored_size(size: tuple[str, int] | tuple[str, int, int] | None, height: int, width: int) -> tuple[int, int]:
    """(height, width) that an upright image of these sides is stored in; `size` as in `config.ImageConfig`."""
    if size is None:
        return height, width
    if size[0] == "exact":
        return size[1], size[2]
    side = min(height, width) if size[0] == "short" else max(height, width)
    if side <= size[1]:
        return height, width
    return _scale(height, size[1], side), _scale(width, size[1], side)


def _scale(length: int, numerator: int, denominator: int) -> int:
    """Scales a length, rounded, in integers; at least 1."""
    return max(1, (2 * length * numerator + denominator) // (2 * denominator))


def jpeg_reduction(found: tuple[int, int], wanted: tuple[int, int]) -> int:
    """The part of its scale that a JPEG is decoded at, 1, 2, 4 or 8, such that twice the wanted sides are left."""
    if min(found) < 8:  # so few that scales can't be told apart by the sizes that they give
        return 1
    return next((n for n in (8, 4, 2) if all(have >= 2 * n * want for have, want in zip(found, wanted))), 1)


def resize(image: "Image.Image", size: tuple[int, int], reduction: int, found: tuple[int, int]) -> "Image.Image":
    """Resizes an image without a palette.

    Args:
        image: The image, at full scale, or at 1/`reduction` of it.
        size: (height, width) in pixels that the image is to have.
        reduction: The part of its scale that the image was decoded at, as `jpeg_reduction` gives it.
        found: (height, width) in pixels of the image at full scale.
    """
    from PIL.Image import Resampling

    height, width = size
    right, bottom = found[1] / reduction, found[0] / reduction
    if width * image.height > MAX_IMAGE_PIXELS:  # Pillow does rows first, which could be huge
        image = image.resize((image.width, height), Resampling.LANCZOS, box=(0, 0, image.width, bottom))
        bottom = height
    return image.resize((width, height), Resampling.LANCZOS, box=(0, 0, right, bottom))
