"""Decodes, rotates and encodes images with simplejpeg and Pillow."""

import contextlib
import importlib
import io
import re
import struct
import warnings
from typing import TYPE_CHECKING, Callable, Iterator, NamedTuple

import numpy as np

from beam_pipelines.errors import InvalidInput
from beam_pipelines.images.image_headers import EXIF, JpegHeader, check_jp2_depth, check_not_animated, check_size, read_jpeg_header
from beam_pipelines.images.jpeg_oddities import cut_trailing_bytes, tidy_header

# Pillow is imported only if it is needed. Its import takes 80 ms and 6 MB, and valid JPEGs are decoded without Pillow.
if TYPE_CHECKING:
    from PIL import Image, ImageFile

_READERS = {
    "jpeg": "PIL.JpegImagePlugin.JpegImageFile",
    "png": "PIL.PngImagePlugin.PngImageFile",
    "gif": "PIL.GifImagePlugin.GifImageFile",
    "bmp": "PIL.BmpImagePlugin.BmpImageFile",
    "webp": "PIL.WebPImagePlugin.WebPImageFile",
    "ppm": "PIL.PpmImagePlugin.PpmImageFile",
    # These formats need the package extra `recordmill[heif]`, or a codec that some builds of Pillow lack.
    "heic": "pillow_heif.HeifImageFile",
    "avif": "PIL.AvifImagePlugin.AvifImageFile",
    "jp2": "PIL.Jpeg2KImagePlugin.Jpeg2KImageFile",
}
_CODECS = {"avif": "avif", "jp2": "jpg_2000"}  # names in `PIL.features`

# Pillow's operations that reverse the EXIF orientations 2 to 8.
_TRANSPOSITIONS = "FLIP_LEFT_RIGHT ROTATE_180 FLIP_TOP_BOTTOM TRANSPOSE ROTATE_270 TRANSVERSE ROTATE_90".split()
_RARE_CHROMA = "subsampling level"  # Part of simplejpeg's message about an unsupported chroma subsampling.
_MAX_CUTS = 4  # libjpeg may report too few bytes, because it reads ahead.
_MISSING = re.compile("premature end", re.IGNORECASE)  # Part of libjpeg's message about missing pixels.
_MAX_SIDES = {"jpeg": 65_500, "webp": 16_383}  # Limits of libjpeg and libwebp.


class DecodedJpeg(NamedTuple):
    """The pixels of a JPEG.

    Attributes:
        pixels: The pixels, uint8 [height, width, 3] for RGB, or uint8 [height, width, 1] for GRAY.
        is_odd: Whether libjpeg warns about the file, although no pixel is missing or corrupt.
    """

    pixels: np.ndarray
    is_odd: bool = False


def decode_jpeg(data: bytes, header: JpegHeader, colorspace: str, strict: bool, reduction: int) -> DecodedJpeg:
    """Decodes a JPEG.

    Args:
        data: The bytes of the file.
        header: The header of the file.
        colorspace: `RGB` or `GRAY`.
        strict: Whether to reject corrupt pixels. Missing pixels are always rejected.
        reduction: The factor by which both sides are reduced, rounded up: 1, 2, 4 or 8.

    Raises:
        InvalidInput: Pixels are missing or corrupt, or libjpeg cannot decode the file.
    """
    try:
        return DecodedJpeg(_decode_strictly(data, header, colorspace, reduction))
    except _JpegError as error:
        warning = str(error)
    if _RARE_CHROMA not in warning:
        try:
            return DecodedJpeg(_decode_oddities(data, header, colorspace, reduction, warning), is_odd=True)
        except _JpegError as error:
            warning = str(error)
        if strict or _MISSING.search(warning):
            raise InvalidInput(
                "bad_image",
                f"JPEG: {warning}{'' if _MISSING.search(warning) else _advise_corrupt_pixels(data, header, reduction)}",
            )
    return DecodedJpeg(_decode_leniently(data, header, colorspace, reduction))


class _JpegError(Exception):
    """Raised for an error or warning of libjpeg."""


def _decode_strictly(data: bytes, header: JpegHeader, colorspace: str, reduction: int) -> np.ndarray:
    import simplejpeg  # not installed beside the reader alone, whose commands import the help of `prepare`

    is_cmyk = header.num_components == 4
    height, width = -(-header.height // reduction), -(-header.width // reduction)
    try:
        pixels = simplejpeg.decode_jpeg(
            data, "CMYK" if is_cmyk else colorspace, min_height=height, min_width=width, min_factor=reduction, strict=True
        )
    except ValueError as error:
        raise _JpegError(str(error)) from None
    return _cmyk_to_rgb(pixels, header.has_adobe) if is_cmyk else pixels


def _decode_oddities(data: bytes, header: JpegHeader, colorspace: str, reduction: int, warning: str) -> np.ndarray:
    """Decodes a JPEG after removing bytes that cause libjpeg warnings but do not affect pixels."""
    tidy = tidy_header(data, header)
    header = read_jpeg_header(tidy)
    for _ in range(_MAX_CUTS):
        try:
            return _decode_strictly(tidy, header, colorspace, reduction)
        except _JpegError as error:
            warning = str(error)
        tidy = cut_trailing_bytes(tidy, header, warning)
        if tidy is None:
            break
    raise _JpegError(warning)


def _decode_leniently(data: bytes, header: JpegHeader, colorspace: str, reduction: int) -> np.ndarray:
    """Decodes a JPEG that has corrupt pixels, or a chroma subsampling that only Pillow supports."""
    if data.rfind(b"\xff\xd9") < header.num_bytes:  # Pillow accepts some of these files, but tf.io does not.
        raise InvalidInput("bad_image", "JPEG: truncated: no end-of-image marker")
    # Remove EXIF data, because Pillow reads the resolution from it and warns about unknown content.
    plain = data[: header.num_bytes].replace(EXIF, bytes(len(EXIF))) + data[header.num_bytes :]
    image = decode_with_pillow("jpeg", plain, reduction)
    if image.mode == "CMYK":  # Pillow inverts the inks of all CMYK JPEGs.
        pixels = _cmyk_to_rgb(255 - np.asarray(image), header.has_adobe)
    else:
        pixels = np.asarray(image.convert("L" if colorspace == "GRAY" else "RGB"))
    return pixels.reshape(*pixels.shape[:2], -1)


def _advise_corrupt_pixels(data: bytes, header: JpegHeader, reduction: int) -> str:
    """Recommends `--check decode` in an error message about a corrupt JPEG, if the JPEG passes that check."""
    try:
        _decode_leniently(data, header, "GRAY", max(8, reduction))
    except InvalidInput:
        return ""
    return "; its pixels may be corrupt. --check decode accepts it"


def decode_with_pillow(image_format: str, data: bytes, reduction: int = 1) -> "Image.Image":
    """Decodes an image with Pillow, in Pillow's image mode. `reduction` applies to JPEGs only."""
    image = open_with_pillow(image_format, data)
    load(image_format, image, reduction)
    return image


def open_with_pillow(image_format: str, data: bytes, may_be_animated: bool = False) -> "ImageFile.ImageFile":
    """Opens an image and checks its header. `load` decodes the pixels of the first frame."""
    from PIL import Image

    if image_format == "jp2":
        check_jp2_depth(data)
    opener = _opener(image_format)
    warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)  # `check_size` rejects large images.
    with bad_data_refused(image_format):
        try:
            image = opener(io.BytesIO(data))  # `Image.open` hides details of errors.
        except Image.DecompressionBombError as error:
            raise ValueError(str(error)) from None
        check_size(image_format, image.height, image.width)
        if image_format in ("gif", "webp", "avif") and not may_be_animated:
            check_not_animated(image_format, image.is_animated)
    return image


def _opener(image_format: str) -> Callable[[io.BytesIO], "ImageFile.ImageFile"]:
    """Returns the Pillow class that reads an image format. Raises `InvalidInput` if an optional package is missing."""
    module, _, name = _READERS[image_format].rpartition(".")
    try:
        reader = getattr(importlib.import_module(module), name)
        if image_format in _CODECS:
            from PIL import features

            if not features.check(_CODECS[image_format]):
                raise ImportError(f"Pillow was built without {image_format}")
    except ImportError:
        raise InvalidInput(
            "bad_image",
            f"{image_format.upper()}: a package that reads this format is missing. Install it on each machine that runs `prepare`: "
            "pip install 'recordmill[heif]'. Or convert the images, for example with: "
            f"magick mogrify -format {'png' if image_format == 'jp2' else 'jpg'} *.{image_format}",
        ) from None
    return reader


def load(image_format: str, image: "ImageFile.ImageFile", reduction: int = 1) -> None:
    """Decodes the pixels of an opened image."""
    with bad_data_refused(image_format):
        if reduction > 1:
            image.draft(None, (max(1, image.width // reduction), max(1, image.height // reduction)))
        image.load()


@contextlib.contextmanager
def bad_data_refused(image_format: str) -> Iterator[None]:
    """Context manager that converts errors of image libraries about corrupt bytes to `InvalidInput`."""
    try:
        yield
    except (OSError, SyntaxError, ValueError, LookupError, ArithmeticError, EOFError, struct.error, RuntimeError) as error:
        if isinstance(error, RuntimeError) and image_format not in ("heic", *_CODECS):  # Their libraries raise it for corrupt bytes.
            raise
        raise InvalidInput("bad_image", f"{image_format.upper()}: {str(error) or type(error).__name__}") from None


def expand(image: "Image.Image") -> "Image.Image":
    """Converts an image to 8 bits per channel. Palettes become RGB or gray, and alpha channels are kept."""
    if image.mode[0] == "I":
        return to_image(_cut_to_8_bits(image)[..., np.newaxis])
    palette = image.getpalette() if image.mode == "P" else None
    is_grey = palette[0::3] == palette[1::3] == palette[2::3] if palette else image.mode in ("1", "L", "LA")
    mode = ("L" if is_grey else "RGB") + ("A" if image.has_transparency_data else "")
    return image if image.mode == mode else image.convert(mode)


def rotate(image: "Image.Image", orientation: int) -> "Image.Image":
    """Rotates and flips an image according to its EXIF orientation, so that it is upright."""
    from PIL import Image

    return image if orientation == 1 else image.transpose(Image.Transpose[_TRANSPOSITIONS[orientation - 2]])


def rotate_pixels(pixels: np.ndarray, orientation: int) -> np.ndarray:
    """Rotates and flips an array of shape [height, width, ...] according to the EXIF orientation of its image."""
    if orientation >= 5:  # rows and columns are swapped
        pixels = pixels.swapaxes(0, 1)
    if orientation in (3, 4, 7, 8):
        pixels = pixels[::-1]
    return pixels[:, ::-1] if orientation in (2, 3, 6, 7) else pixels


def rgb(image: "Image.Image") -> np.ndarray:
    """Returns the pixels of an image, uint8 [height, width, 3], as tf.io.decode_image(channels=3) does.

    The alpha channel is dropped, and 16-bit values are reduced to their upper 8 bits.
    """
    if image.mode[0] == "I":
        return np.repeat(_cut_to_8_bits(image)[..., np.newaxis], 3, axis=-1)
    if image.has_transparency_data:
        image = image.convert("RGBA")
    return np.asarray(image if image.mode == "RGB" else image.convert("RGB"))  # `convert` always copies.


def drop_alpha(image: "Image.Image") -> "Image.Image":
    """Drops the alpha channel. Transparent pixels keep their colors."""
    return image.convert(image.mode[:-1]) if image.mode in ("LA", "RGBA") else image


def composite_over(image: "Image.Image", grey: int | None) -> "Image.Image":
    """Composites an image over a gray background. Without an alpha channel or background, the image stays unchanged."""
    from PIL import Image

    if grey is None or image.mode[0] == "I" or not image.has_transparency_data:
        return image
    ground = Image.new("RGBA", image.size, (grey, grey, grey, 255))
    return Image.alpha_composite(ground, image.convert("RGBA")).convert("RGB")


def to_image(pixels: np.ndarray) -> "Image.Image":
    """Converts pixels, uint8 [height, width, 1, 3 or 4], to an image."""
    from PIL import Image

    return Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels)


def encode(image: "Image.Image", image_format: str, quality: int) -> bytes:
    """Encodes an image as a JPEG, PNG or WebP without metadata. Equal pixels give equal bytes.

    Raises:
        InvalidInput: The image is too large for the format.
    """
    limit = _MAX_SIDES.get(image_format)
    if limit and max(image.size) > limit:
        message = f"{image.width} x {image.height} pixels to store; the limit is {limit} a side"
        raise InvalidInput("bad_image", f"{image_format.upper()}: {message}")
    encoded = io.BytesIO()
    if image_format == "jpeg":
        image.save(encoded, "JPEG", quality=quality, subsampling=0 if quality >= 95 else 2, comment=None)
    elif image_format == "webp":
        image.save(encoded, "WEBP", quality=quality, icc_profile=None, exif=b"", xmp=b"")
    else:
        image.save(encoded, "PNG", icc_profile=None, compress_level=1)  # 7 times as fast as the default, 8% larger
    return encoded.getvalue()


def _cut_to_8_bits(image: "Image.Image") -> np.ndarray:
    return (np.asarray(image) >> 8).astype(np.uint8)


def _cmyk_to_rgb(pixels: np.ndarray, is_inverted: bool) -> np.ndarray:
    """Converts the pixels of a CMYK JPEG to RGB in the same way as TensorFlow and browsers. Files from Adobe's programs
    have inverted values."""
    from PIL import Image

    height, width, _ = pixels.shape
    inks = Image.frombytes("CMYK", (width, height), pixels.tobytes(), "raw", "CMYK;I" if is_inverted else "CMYK")
    return np.asarray(inks.convert("RGB"))
