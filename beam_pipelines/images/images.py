"""Checks, rotates, resizes and re-encodes images without Beam or TensorFlow.

Images are stored as JPEG or PNG, which all readers (tf.io, TensorFlow Datasets) can decode, or as WebP on request:

    source                                             stored as              `reencoded`
    JPEG; PNG of any kind (palette, alpha, 16 bits)    the original bytes     ""
    JPEG or PNG with an EXIF orientation other than 1  upright, same format   "exif_orientation"
    JPEG in CMYK or YCCK                               RGB JPEG               "cmyk", unless it is rotated
    GIF, BMP, WebP, HEIC, AVIF, JPEG 2000              PNG                    "gif", "bmp", "webp", "heic", "avif", "jp2"
    PPM, PGM                                           PNG of 8 or 16 bits    "ppm"
    TIFF with pixels (see `tiff_header`)               PNG of 8 or 16 bits    "tiff"
    raw pixels                                         PNG                    "raw"
    pixels in a `.npy` file                            PNG                    "npy"
    numbers with other dtypes or channel counts        the numbers            "", "raw" if reordered, "npy" or "tiff"
    a size other than `ImageConfig.size`               resized                "resized" (replaces other reasons)
    a format other than `ImageConfig.format`           converted              "format", unless it is resized
    any image if `ImageConfig.encoding` is `raw`       its pixels             "format", unless it is resized
    more than one frame (GIF, WebP, APNG, AVIF)        rejected
    0 or over 89,478,485 pixels (also after resizing)  rejected before decoding
    any other content                                  rejected

The column `reencoded` contains the reason for re-encoding. JPEGs are re-encoded with full chroma resolution (4:4:4) if
the quality is 95 (the default) or higher. At lower qualities, the chroma resolution is reduced (4:2:0). The files are
then a fifth smaller, and are decoded faster. A re-encoded WebP is lossy. A re-encoded PNG is lossless, except that
rotated 16-bit color becomes 8-bit. Gray images and alpha channels are kept. Images with a GIF, BMP or TIFF palette
become RGB. Resized or converted images have 8 bits and no palette. JPEGs and raw pixels have no alpha channel. Metadata
is removed. If a file (JPEG, TIFF or HEIC) contains several images, only the first or primary image is used.

Images can be checked at three levels:

    header   The header is complete and contains the size. Pixels are decoded only to re-encode images.
    decode   No pixels are missing, and TensorFlow can decode the file. The rows of a PNG are counted (see `png_files`). A
             JPEG is decoded at 1/8 scale, which detects as many errors as decoding at full scale.
    strict   The checks of `decode`. Also, libjpeg-turbo reports no problem that may affect pixels (see `jpeg_oddities`).
"""

from types import MappingProxyType
from typing import TYPE_CHECKING, Mapping, NamedTuple

import numpy as np

from beam_pipelines.config.image_config import ImageConfig
from beam_pipelines.errors import InvalidInput
from beam_pipelines.images.arrays import describe_array, tensor_of_bytes
from beam_pipelines.images.image_codecs import (
    DecodedJpeg,
    bad_data_refused,
    decode_jpeg,
    decode_with_pillow,
    drop_alpha,
    encode,
    expand,
    composite_over,
    load,
    open_with_pillow,
    rgb,
    to_image,
    rotate,
    rotate_pixels,
)
from beam_pipelines.images.image_headers import (
    EXIF,
    check_size,
    describe_bytes,
    exif_orientation,
    identify,
    read_jpeg_header,
)
from beam_pipelines.images.png_files import encode_deep_png, read_png
from beam_pipelines.images.raw_image import RawImage
from beam_pipelines.images.resize import Geometry, jpeg_reduction, resize, stored_size, rotated
from beam_pipelines.images.rotations import in_turn
from beam_pipelines.images.tiff_header import CONVERT
from beam_pipelines.images.tiff_pixels import decode_picture, read_header, tensor_layout, tiff_tensor
from tf_input.dataset_format import Feature

if TYPE_CHECKING:
    from PIL import Image

# The usual format for each extension. The actual format is read from the bytes. Phones also use .heic for JPEGs.
IMAGE_EXTENSIONS: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys((".jpg", ".jpeg", ".jpe", ".jfif", ".heic", ".heif"), "jpeg"),
        **{".png": "png", ".gif": "gif", ".bmp": "bmp", ".webp": "webp", ".tif": "tiff", ".tiff": "tiff"},
        **{".avif": "avif", ".jp2": "jp2", ".ppm": "ppm", ".pgm": "ppm", ".pnm": "ppm", ".npy": "npy"},
    }
)


class StoredImage(NamedTuple):
    """Properties of a stored image.

    Attributes:
        num_bytes: The size of the stored image, in bytes.
        format: The format of the source image, or an empty string if the image was not inspected.
        reencoded: The reason why the stored bytes differ from the source, or an empty string.
        height: The height of the stored image in pixels, or 0 if the image was not inspected.
        width: The width of the stored image in pixels, or 0 if the image was not inspected.
        num_channels: The number of channels of the stored image, including alpha. 0 for tensors, and if the image was
            not inspected.
        is_deep: Whether the source image is a PNG or TIFF with 16 bits per channel.
        is_odd: Whether libjpeg warns about the source image, although no pixel is missing or corrupt.
        has_more_pages: Whether the source file has more pages or images than the one that is stored.
    """

    num_bytes: int
    format: str = ""
    reencoded: str = ""
    height: int = 0
    width: int = 0
    num_channels: int = 0
    is_deep: bool = False
    is_odd: bool = False
    has_more_pages: bool = False


class CheckedImage(NamedTuple):
    """The result of checking an image, with the bytes to store.

    Attributes:
        format: The actual format of the source: `jpeg`, `png`, `tiff`, `gif`, `bmp`, `webp`, `heic`, `avif`, `jp2`,
            `ppm` (also PGM), `npy` or `raw`.
        height, width: The size of the stored image, in pixels.
        encoded: The bytes to store; None if the original bytes are stored.
        reencoded: The reason why the stored bytes differ from the source: `resized`, `format`, `exif_orientation`,
            `cmyk`, or the format of the source. Empty if the original bytes are stored.
        pixels: The RGB pixels at full scale without alpha, if requested, uint8 [height, width, 3]. If the image is
            re-encoded as JPEG or WebP, these are the pixels before encoding.
        geometry: The rotation and resizing of the image.
        num_channels, is_deep, is_odd, has_more_pages: As in `StoredImage`.
    """

    format: str
    height: int
    width: int
    encoded: bytes | None
    reencoded: str
    pixels: np.ndarray | None
    geometry: Geometry
    num_channels: int = 0
    is_deep: bool = False
    is_odd: bool = False
    has_more_pages: bool = False

    def describe(self, num_bytes: int) -> StoredImage:
        """Returns the properties of the stored image, given its size in bytes."""
        kept = self.num_channels, self.is_deep, self.is_odd, self.has_more_pages
        return StoredImage(num_bytes, self.format, self.reencoded, self.height, self.width, *kept)


def check_image(
    data: bytes, check: str, *, full_scale: bool = False, images: ImageConfig = ImageConfig(), is_checked: bool = False
) -> CheckedImage:
    """Checks an image and re-encodes it if its original bytes cannot be stored.

    Args:
        data: The bytes of an image file.
        check: The level of checks: `strict`, `decode` or `header`.
        full_scale: Whether to decode at full scale and return the pixels. Has no effect with the check `header`.
        images: The requested size, format and encoding. The encoding `raw` stores uint8 [height, width, 3].
        is_checked: Whether the image has already been checked at this level. If so, it is decoded only if necessary.

    Raises:
        InvalidInput: The bytes are not an image, are corrupt, or cannot be stored in a record.
    """
    if check not in ("strict", "decode", "header"):
        raise ValueError(f"check={check!r} is not strict, decode or header")
    decodes = check != "header" and (full_scale or not is_checked)
    image_format = identify(data)
    if image_format is None:
        raise InvalidInput("bad_image", f"{describe_bytes(data)}. It must be a JPEG, PNG, TIFF, GIF, BMP, WebP, PPM, HEIC, AVIF or JPEG 2000")
    with bad_data_refused(image_format):
        if image_format == "jpeg":
            return _check_jpeg(data, check, decodes, full_scale, images)
        if image_format == "png":
            return _check_png(data, check, decodes, full_scale, images)
        if image_format == "tiff":
            return _check_tiff(data, full_scale and check != "header", images)
        return _check_other(image_format, data, check, decodes, full_scale, images)


def check_pixels(
    data: bytes, raw: RawImage, images: ImageConfig = ImageConfig(), *, full_scale: bool = False, is_file: bool = False
) -> CheckedImage:
    """Checks raw pixels, in the same way as `check_image` checks image files.

    Gray images and alpha channels are kept. With the encoding `raw`, images from arrays keep their number of channels.
    Images from `.npy` files are stored as [height, width, 3], because the files may differ in the number of channels.

    Raises:
        InvalidInput: The number of bytes differs from the layout, or there are too many pixels.
    """
    (height, width, num_channels), image_format = raw[:3], "npy" if is_file else "raw"
    check_size(image_format, height, width)
    if raw.is_tensor:
        raise InvalidInput(
            "bad_image",
            f"{height} x {width} x {num_channels} numbers of {np.dtype(raw.dtype).name}; it must be uint8 in 1, 3 or "
            "4 channels",
        )
    if len(data) != raw.num_bytes:
        wanted = f"{height} x {width} x {num_channels} = {raw.num_bytes}"
        raise InvalidInput("bad_image", f"raw pixels: {len(data)} bytes instead of {wanted}")
    pixels = np.frombuffer(data, np.uint8).reshape(raw.shape)
    if raw.is_planar:
        pixels = np.ascontiguousarray(pixels.transpose(1, 2, 0))
    geometry = _plan((height, width), 1, images)
    image = to_image(pixels)
    if images.encoding == "raw" and geometry.stored == geometry.source_size and not raw.is_planar and not is_file:
        seen = rgb(composite_over(image, images.backdrop)) if full_scale else None
        return CheckedImage("raw", height, width, None, "", seen, geometry, num_channels)
    return _store(image_format, image, geometry, image_format, images, full_scale)


def check_tensor(data: bytes, raw: RawImage | None, feature: Feature, image_format: str) -> CheckedImage:
    """Checks an image that is stored as an array of numbers, which may include NaN.

    Args:
        data: The bytes of the numbers, without a header.
        raw: The layout of the numbers. None if the bytes are not an array, which is an error.
        feature: The tensor feature of the image.
        image_format: `npy` or `tiff` for numbers from a file, `raw` for numbers without a header.

    Raises:
        InvalidInput: The bytes are not an array, or have another dtype or number of channels.
    """
    if raw is None:
        file_type = (identify(data) or "").upper() or describe_bytes(data)
        wanted = describe_array(feature.dtype, feature.shape)
        raise InvalidInput("bad_image", f"{file_type}; it must be a .npy or TIFF file of {wanted}, like the first one")
    size = raw.shape[:2]
    check_size(image_format, *size)
    stored = tensor_of_bytes(data, raw.dtype, raw.shape, feature, "bad_image").data
    is_kept = stored is data and image_format == "raw"
    return CheckedImage(image_format, *size, None if is_kept else stored, "" if is_kept else image_format, None, Geometry(size, 1, size))


def check_tiff_tensor(data: bytes, feature: Feature) -> CheckedImage:
    """Checks a TIFF whose numbers are stored as a tensor.

    Raises:
        InvalidInput: The TIFF is corrupt, or has another dtype or number of bands than the feature.
    """
    header = read_header(data)
    with in_turn(header.size[0] * header.size[1]):
        raw, numbers = tiff_tensor(data, header)
        return check_tensor(numbers, raw, feature, "tiff")._replace(has_more_pages=header.num_pages > 1)


def _check_jpeg(data: bytes, check: str, decodes: bool, full_scale: bool, images: ImageConfig) -> CheckedImage:
    """Checks a JPEG. With `decodes`, the image is decoded even if its original bytes are stored."""
    header = read_jpeg_header(data)
    check_size("jpeg", header.height, header.width)
    strict, decoded, is_grey = check == "strict", DecodedJpeg(None), header.num_components == 1
    geometry = _plan((header.height, header.width), exif_orientation(header.exif) if header.exif else 1, images)
    if header.num_components == 4 or not _fits("jpeg", geometry, images):
        reduction = jpeg_reduction(geometry.upright, geometry.stored)
        with in_turn(header.height * header.width // reduction**2):
            decoded = decode_jpeg(data, header, "GRAY" if is_grey else "RGB", strict, reduction)
            reason = "exif_orientation" if geometry.orientation != 1 else "cmyk"
            stored = _store("jpeg", to_image(decoded.pixels), geometry, reason, images, full_scale and check != "header", reduction)
        return stored._replace(is_odd=decoded.is_odd)
    if decodes:
        reduction = 1 if full_scale else 8
        with in_turn(header.height * header.width // reduction**2):
            decoded = decode_jpeg(data, header, "RGB" if full_scale else "GRAY", strict, reduction)
    pixels = decoded.pixels if full_scale else None
    return CheckedImage("jpeg", *geometry.stored, None, "", pixels, geometry, header.num_components, is_odd=decoded.is_odd)


def _check_png(data: bytes, check: str, decodes: bool, full_scale: bool, images: ImageConfig) -> CheckedImage:
    png = read_png(data, checksums=check != "header")
    geometry = _plan((png.height, png.width), exif_orientation(png.others.get(b"eXIf", b"")), images)
    fits, wants_pixels, is_deep = _fits("png", geometry, images), full_scale and check != "header", png.num_bits == 16
    kept = CheckedImage("png", png.height, png.width, None, "", None, geometry, png.num_channels, is_deep)
    if fits and not wants_pixels:
        if decodes:
            png.check_rows()
        return kept
    with in_turn(png.height * png.width):
        image = decode_with_pillow("png", png.to_stored())
        if fits:
            return kept._replace(pixels=rgb(image))
        if images.keep_depth and is_deep and png.color_type:  # Pillow does not support such images.
            found = f"PNG: 16 bits in {png.num_channels} channels and EXIF orientation {geometry.orientation}"
            raise InvalidInput("bad_image", f"{found}; save it upright, or omit --keep_depth")
        return _store("png", image, geometry, "exif_orientation", images, wants_pixels)._replace(is_deep=is_deep)


def _check_other(image_format: str, data: bytes, check: str, decodes: bool, full_scale: bool, images: ImageConfig) -> CheckedImage:
    """Checks a GIF, BMP, WebP, PPM, HEIC, AVIF or JPEG 2000. Re-encodes the image, unless it is a WebP and WebP is
    requested."""
    image = open_with_pillow(image_format, data)
    # The decoder applies the rotation of a HEIC.
    orientation = 1 if image_format == "heic" else exif_orientation(image.info.get("exif", b"").removeprefix(EXIF))
    geometry = _plan((image.height, image.width), orientation, images)
    fits, wants_pixels = _fits(image_format, geometry, images), full_scale and check != "header"
    with in_turn(image.height * image.width):
        if not fits or decodes:
            load(image_format, image)
        if fits:
            pixels = rgb(image) if wants_pixels else None
            return CheckedImage(image_format, *geometry.stored, None, "", pixels, geometry, _num_channels(image))
        reason = "exif_orientation" if image_format == images.format else image_format
        is_deep = image.mode[0] == "I"  # a PGM with more than 8 bits, which Pillow reads as int32
        shown = to_image(np.asarray(image, np.uint16)[..., np.newaxis]) if is_deep else expand(image)
        stored = _store(image_format, shown, geometry, reason, images, wants_pixels)
        return stored._replace(is_deep=is_deep, has_more_pages=image_format == "heic" and image.n_frames > 1)


def _check_tiff(data: bytes, wants_pixels: bool, images: ImageConfig) -> CheckedImage:
    """Checks a TIFF, which is always re-encoded."""
    header = read_header(data)
    if header.is_tensor:
        tensor_layout(header)  # For a dtype that is never stored, this raises an error with advice.
        raise InvalidInput("bad_image", f"TIFF: {header.describe()}, but the other images are ordinary images; {CONVERT}")
    geometry = _plan(header.size, header.orientation, images)
    with in_turn(header.size[0] * header.size[1]):
        image = decode_picture(data, header)
        if isinstance(image, np.ndarray):
            stored = _store_deep(image, geometry, images, wants_pixels)
        else:
            is_deep = image.mode[0] == "I"
            stored = _store("tiff", image if is_deep else expand(image), geometry, "tiff", images, wants_pixels)._replace(is_deep=is_deep)
    return stored._replace(has_more_pages=header.num_pages > 1)


def _store_deep(pixels: np.ndarray, geometry: Geometry, images: ImageConfig, wants_pixels: bool) -> CheckedImage:
    """Encodes the 16-bit pixels of a TIFF, uint16 [height, width, 2 to 4]. Resized or converted images are reduced to 8 bits."""
    as_file = images.encoding == "file" and images.format in ("keep", "png")
    if not as_file or geometry.stored != geometry.upright:
        image = to_image((pixels >> 8).astype(np.uint8))
        return _store("tiff", image, geometry, "tiff", images, wants_pixels)._replace(is_deep=True)
    pixels = rotate_pixels(pixels, geometry.orientation)
    shown = rgb(to_image((pixels >> 8).astype(np.uint8))) if wants_pixels else None
    encoded = encode_deep_png(pixels)
    return CheckedImage("tiff", *geometry.stored, encoded, "tiff", shown, geometry, pixels.shape[2], is_deep=True)


def _plan(source_size: tuple[int, int], orientation: int, images: ImageConfig) -> Geometry:
    return Geometry(source_size, orientation, stored_size(images.size, *rotated(source_size, orientation)))


def _kept_format(image_format: str) -> str:
    """Returns the format in which an image is stored by default."""
    return "jpeg" if image_format == "jpeg" else "png"


def _fits(image_format: str, geometry: Geometry, images: ImageConfig) -> bool:
    """Returns whether the original bytes of an image can be stored."""
    wanted = _kept_format(image_format) if images.format == "keep" else images.format
    is_wanted = images.encoding == "file" and image_format == wanted
    return is_wanted and geometry.orientation == 1 and geometry.stored == geometry.source_size


def _store(
    image_format: str,
    image: "Image.Image",
    geometry: Geometry,
    reason: str,
    images: ImageConfig,
    wants_pixels: bool,
    reduction: int = 1,
) -> CheckedImage:
    """Resizes, rotates and encodes an image as necessary.

    Args:
        image_format: The format of the source.
        image: The decoded image.
        geometry: The rotation and resizing of the image.
        reason: The reason for re-encoding, if the image is neither resized nor converted.
        images: The requested size, format and encoding.
        wants_pixels: Whether to return the pixels.
        reduction: The factor by which the image was reduced during decoding.
    """
    kept_format, is_raw = _kept_format(image_format), images.encoding == "raw"
    stored_format = kept_format if images.format == "keep" else images.format
    is_resized = geometry.stored != geometry.upright
    image = composite_over(image, images.backdrop)
    is_converted = is_raw or stored_format not in (image_format, kept_format)
    if is_resized or is_converted:
        image = expand(image)
        if stored_format == "jpeg" or (is_raw and image_format != "raw"):
            image = drop_alpha(image)
    if is_resized:
        check_size(stored_format, *geometry.stored)
        size = geometry.stored if geometry.orientation <= 4 else geometry.stored[::-1]
        image = resize(image, size, reduction, geometry.source_size)
    image = rotate(image, geometry.orientation)
    num_channels = 3 if is_raw and image_format != "raw" else _num_channels(image)
    if is_raw:
        encoded = (np.asarray(image) if image_format == "raw" else rgb(image)).tobytes()
    else:
        encoded = encode(image, stored_format, images.quality)
    reason = "resized" if is_resized else "format" if is_converted else reason
    return CheckedImage(image_format, *geometry.stored, encoded, reason, rgb(image) if wants_pixels else None, geometry, num_channels)


def _num_channels(image: "Image.Image") -> int:
    has_alpha = image.mode.endswith("A")
    return (1 if image.mode[0] in "1IL" else 3) + has_alpha
