"""Identifies, checks, turns upright and re-encodes the bytes of images: plain functions, no Beam, no TensorFlow.

A record holds a JPEG or a PNG and nothing else, so that every reader (tf.io, TensorFlow Datasets) decodes every record:

    source                                             stored as              `reencoded`
    JPEG; PNG of any kind (palette, alpha, 16 bit)     the bytes that it has  ""
    JPEG or PNG with an EXIF orientation other than 1  upright, same format   "exif_orientation"
    JPEG in CMYK or YCCK                               RGB JPEG               "cmyk", if it need not be turned
    GIF, BMP, WebP                                     PNG                    "gif", "bmp", "webp"
    more than one frame (GIF, WebP, APNG)              refused
    over 89,478,485 pixels, or none                    refused, before anything is decoded
    anything else, whatever its name says              refused

A re-encoded JPEG has quality 95 and full chroma (4:4:4). A re-encoded PNG is lossless (but 16-bit colour that has to be
turned becomes 8-bit): grey stays grey, alpha stays, the palette of a GIF or BMP becomes RGB. Metadata does not survive.
Of several pictures in one JPEG file (MPO) the first counts.

How far an image is checked:

    header   its header is whole and gives its size; pixels are decoded only where it has to be re-encoded
    decode   Pillow decodes it, so it is not truncated; a JPEG at 1/8 scale, which finds what full scale finds
    strict   nothing is damaged: beyond `decode`, a JPEG gives no warning in libjpeg-turbo

Both `decode` and `strict` verify the checksums of a PNG, which Pillow leaves out.
"""

import io
import struct
from types import MappingProxyType
from typing import TYPE_CHECKING, Mapping, NamedTuple

import numpy as np
import simplejpeg

from beam_pipelines.image_headers import (
    EXIF,
    GIF_MAGIC,
    JPEG_MAGIC,
    PNG_MAGIC,
    BadImageError,
    JpegHeader,
    check_gif_header,
    check_num_frames,
    check_size,
    exif_orientation,
    read_jpeg_header,
    read_png_chunks,
)

# Pillow is imported where it is needed: it costs a process 80 ms and 6 MB, and clean JPEGs never need it.
if TYPE_CHECKING:
    from PIL import Image

IMAGE_EXTENSIONS: Mapping[str, str] = MappingProxyType(
    {".jpg": "jpeg", ".jpeg": "jpeg", ".png": "png", ".gif": "gif", ".bmp": "bmp", ".webp": "webp"}
)
_FOREIGN = {b"<": "HTML or XML", b"version https://git-lfs": "a Git LFS pointer", b"II*": "a TIFF", b"MM\0*": "a TIFF"}
# What undoes the EXIF orientations from 2 to 8, by Pillow's names.
_TURNS = "FLIP_LEFT_RIGHT ROTATE_180 FLIP_TOP_BOTTOM TRANSPOSE ROTATE_270 TRANSVERSE ROTATE_90".split()


class CheckedImage(NamedTuple):
    """What a record is to hold.

    Attributes:
        format: What the source's bytes are, whatever its name: `jpeg`, `png`, `gif`, `bmp` or `webp`.
        height: Of the image as stored, in pixels.
        width: Likewise.
        encoded: The bytes to store; None: the source's own.
        reencoded: Why they are not the source's own: `exif_orientation`, `cmyk`, `gif`, `bmp`, `webp`; else empty.
        pixels: uint8 [height, width, 3], RGB at full scale and without alpha, if they were asked for. Where a JPEG is
            re-encoded, from before that: nothing is decoded twice.
    """

    format: str
    height: int
    width: int
    encoded: bytes | None
    reencoded: str
    pixels: np.ndarray | None


def identify(data: bytes) -> str | None:
    """The format that the first bytes show; None if it is none of ours."""
    if data.startswith(JPEG_MAGIC):
        return "jpeg"
    if data.startswith(PNG_MAGIC):
        return "png"
    if data.startswith(GIF_MAGIC):
        return "gif"
    if data.startswith(b"BM"):
        return "bmp"
    return "webp" if data.startswith(b"RIFF") and data[8:12] == b"WEBP" else None


def check_image(data: bytes, check: str, *, full_scale: bool = False) -> CheckedImage:
    """Checks one image, and re-encodes it where a record can't hold it as it is.

    Args:
        data: The bytes of an image file.
        check: `strict`, `decode` or `header`.
        full_scale: Whether to decode at full scale and return the pixels; `header` returns none.

    Raises:
        BadImageError: It is no image, a damaged one, or one that a record can't hold.
    """
    if check not in ("strict", "decode", "header"):
        raise ValueError(f"check={check!r}; expected strict, decode or header")
    image_format = identify(data)
    if image_format == "jpeg":
        return _check_jpeg(data, check, full_scale)
    if image_format == "png":
        return _check_png(data, check, full_scale)
    if image_format is None:
        raise BadImageError(f"{_describe(data)}; expected JPEG, PNG, GIF, BMP or WebP")
    if image_format == "gif":
        check_gif_header(data)
    image = _decode_with_pillow(image_format, data)
    orientation = exif_orientation(image.info.get("exif", b"").removeprefix(EXIF))
    return _reencode(image_format, _turn(_expand(image), orientation), image_format, full_scale and check != "header")


def _check_jpeg(data: bytes, check: str, full_scale: bool) -> CheckedImage:
    header = read_jpeg_header(data)
    check_size("jpeg", header.height, header.width)
    strict, pixels = check == "strict", None
    orientation = exif_orientation(header.exif) if header.exif else 1
    if orientation != 1 or header.num_components == 4:
        image = _to_image(_decode_jpeg(data, header, "GRAY" if header.num_components == 1 else "RGB", strict, True))
        reason = "exif_orientation" if orientation != 1 else "cmyk"
        return _reencode("jpeg", _turn(image, orientation), reason, full_scale and check != "header")
    if check != "header":
        pixels = _decode_jpeg(data, header, "RGB" if full_scale else "GRAY", strict, full_scale)
    return CheckedImage("jpeg", header.height, header.width, None, "", pixels if full_scale else None)


def _check_png(data: bytes, check: str, full_scale: bool) -> CheckedImage:
    plain, others = read_png_chunks(data, checksums=check != "header")
    if plain[8:16] != b"\0\0\0\x0dIHDR" or len(plain) < 33:
        raise BadImageError(f"PNG: begins with the chunk {plain[8:33]!r}; expected a whole IHDR")
    width, height = struct.unpack_from(">II", plain, 16)
    check_size("png", height, width)
    check_num_frames("png", int.from_bytes(others.get(b"acTL", b"")[:4]))
    orientation = exif_orientation(others.get(b"eXIf", b""))
    if check == "header" and orientation == 1:
        return CheckedImage("png", height, width, None, "", None)
    image = _decode_with_pillow("png", plain)
    wants_pixels = full_scale and check != "header"
    if orientation != 1:
        return _reencode("png", _turn(image, orientation), "exif_orientation", wants_pixels)
    return CheckedImage("png", height, width, None, "", _rgb(image) if wants_pixels else None)


def _decode_jpeg(data: bytes, header: JpegHeader, colorspace: str, strict: bool, full_scale: bool) -> np.ndarray:
    """uint8 [height, width, 3] for RGB, [height, width, 1] for GRAY; the sides an eighth where not at full scale."""
    is_cmyk = header.num_components == 4
    if strict:
        scale = {} if full_scale else {"min_height": 1, "min_width": 1, "min_factor": 8}
        try:
            pixels = simplejpeg.decode_jpeg(data, "CMYK" if is_cmyk else colorspace, strict=True, **scale)
        except ValueError as error:
            # Not damage but a rare chroma subsampling, which only Pillow knows.
            if "subsampling level" not in str(error):
                raise BadImageError(f"JPEG: {error}") from None
        else:
            return _cmyk_to_rgb(pixels) if is_cmyk else pixels
    if data.rfind(b"\xff\xd9") < header.num_bytes:  # Pillow does not always mind; tf.io does
        raise BadImageError("JPEG: truncated: no end-of-image marker")
    # Without its EXIF, in which Pillow looks for a resolution, warning about what it does not understand.
    plain = data[: header.num_bytes].replace(EXIF, bytes(len(EXIF))) + data[header.num_bytes :]
    image = _decode_with_pillow("jpeg", plain, at_eighth=not full_scale)
    pixels = np.asarray(image.convert("L" if colorspace == "GRAY" else "RGB"))
    return pixels.reshape(*pixels.shape[:2], -1)


def _decode_with_pillow(image_format: str, data: bytes, at_eighth: bool = False) -> "Image.Image":
    from PIL import BmpImagePlugin, GifImagePlugin, JpegImagePlugin, PngImagePlugin, WebPImagePlugin

    opener = {
        "jpeg": JpegImagePlugin.JpegImageFile,
        "png": PngImagePlugin.PngImageFile,
        "gif": GifImagePlugin.GifImageFile,
        "bmp": BmpImagePlugin.BmpImageFile,
        "webp": WebPImagePlugin.WebPImageFile,
    }[image_format]
    try:
        # Not Image.open: it warns of large images, which is not thread-safe to silence, and hides why it refuses one.
        image = opener(io.BytesIO(data))
        check_size(image_format, image.height, image.width)
        if image_format == "webp":
            check_num_frames(image_format, image.n_frames)
        if at_eighth:
            image.draft(None, (1, 1))
        image.load()
        if image.mode == "P" and image.palette is None:  # only a PNG's can be missing
            raise BadImageError("PNG: a palette image without its palette (PLTE)")
    except BadImageError:
        raise
    except (OSError, SyntaxError, ValueError) as error:  # what Pillow raises for bad data, by fuzzing
        raise BadImageError(f"{image_format.upper()}: {error}") from None
    return image


def _expand(image: "Image.Image") -> "Image.Image":
    """A palette becomes colours, or greys if it has no others; alpha stays."""
    palette = image.getpalette() if image.mode == "P" else None
    is_grey = palette[0::3] == palette[1::3] == palette[2::3] if palette else image.mode in ("1", "L", "LA")
    return image.convert(("L" if is_grey else "RGB") + ("A" if image.has_transparency_data else ""))


def _turn(image: "Image.Image", orientation: int) -> "Image.Image":
    from PIL import Image

    return image if orientation == 1 else image.transpose(Image.Transpose[_TURNS[orientation - 2]])


def _reencode(image_format: str, image: "Image.Image", reason: str, wants_pixels: bool) -> CheckedImage:
    encoded = io.BytesIO()
    if image_format == "jpeg":
        image.save(encoded, "JPEG", quality=95, subsampling=0)
    else:
        image.save(encoded, "PNG", icc_profile=None, compress_level=1)  # 7 times as fast as the default, 8 % larger
    pixels = _rgb(image) if wants_pixels else None
    return CheckedImage(image_format, image.height, image.width, encoded.getvalue(), reason, pixels)


def _rgb(image: "Image.Image") -> np.ndarray:
    """uint8 [height, width, 3], as tf.io.decode_image(channels=3) gives it: alpha dropped, 16 bits cut to 8."""
    if image.mode[0] == "I":
        return np.repeat((np.asarray(image) >> 8).astype(np.uint8)[..., np.newaxis], 3, axis=-1)
    if image.has_transparency_data:
        image = image.convert("RGBA")
    return np.asarray(image.convert("RGB"))


def _to_image(pixels: np.ndarray) -> "Image.Image":
    from PIL import Image

    return Image.fromarray(pixels if pixels.shape[2] == 3 else pixels[..., 0])


def _cmyk_to_rgb(pixels: np.ndarray) -> np.ndarray:
    from PIL import Image

    # CMYK;I: Photoshop stores CMYK inverted, everybody followed, and Pillow too takes it for granted.
    height, width, _ = pixels.shape
    return np.asarray(Image.frombytes("CMYK", (width, height), pixels.tobytes(), "raw", "CMYK;I").convert("RGB"))


def _describe(data: bytes) -> str:
    if not data:
        return "0 bytes"
    looks = [f", {kind}" for start, kind in _FOREIGN.items() if data[:64].lstrip().startswith(start)]
    return f"starts with {data[:12]!r}{''.join(looks)}, which is no image that a record can hold"
