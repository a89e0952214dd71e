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
import zlib
from types import MappingProxyType
from typing import TYPE_CHECKING, Mapping, NamedTuple

import numpy as np
import simplejpeg

# Pillow is imported where it is needed: it costs a process 80 ms and 6 MB, and clean JPEGs never need it.
if TYPE_CHECKING:
    from PIL import Image

IMAGE_EXTENSIONS: Mapping[str, str] = MappingProxyType(
    {".jpg": "jpeg", ".jpeg": "jpeg", ".png": "png", ".gif": "gif", ".bmp": "bmp", ".webp": "webp"}
)
MAX_IMAGE_PIXELS = 89_478_485  # Pillow's own limit against decompression bombs: a quarter GiB of RGB
MAX_IMAGE_SIDE = 1_000_000  # libpng's limit, hence tf.io's

_JPEG_MAGIC, _PNG_MAGIC, _GIF_MAGIC = b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", (b"GIF87a", b"GIF89a")
_FOREIGN = {b"<": "HTML or XML", b"version https://git-lfs": "a Git LFS pointer", b"II*": "a TIFF", b"MM\0*": "a TIFF"}
# The kinds of JPEG that tf.io decodes: Huffman or arithmetic codes, sequential or progressive; no lossless ones.
_FRAME_MARKERS = frozenset({0xFFC0, 0xFFC1, 0xFFC2, 0xFFC9, 0xFFCA})
# Tables, APPn, comments: what else libjpeg takes before the first scan.
_OTHER_MARKERS = frozenset({0xFFC4, 0xFFCC, 0xFFDB, 0xFFDC, 0xFFDD, *range(0xFFE0, 0xFFF0), 0xFFFE})
_unpack_segment, _unpack_frame = struct.Struct(">HH").unpack_from, struct.Struct(">BHHB").unpack_from
_PNG_CHUNKS = frozenset({b"IHDR", b"PLTE", b"tRNS", b"IDAT", b"IEND"})  # all that pixels depend on
_EXIF = b"Exif\0\0"
# What undoes the EXIF orientations from 2 to 8, by Pillow's names.
_TURNS = "FLIP_LEFT_RIGHT ROTATE_180 FLIP_TOP_BOTTOM TRANSPOSE ROTATE_270 TRANSVERSE ROTATE_90".split()


class BadImageError(ValueError):
    """An input that can't become a record: one line, what was found against what was expected."""


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
    if data.startswith(_JPEG_MAGIC):
        return "jpeg"
    if data.startswith(_PNG_MAGIC):
        return "png"
    if data.startswith(_GIF_MAGIC):
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
        _check_gif_header(data)
    image = _decode_with_pillow(image_format, data)
    orientation = _orientation(image.info.get("exif", b"").removeprefix(_EXIF))
    return _reencode(image_format, _turn(_expand(image), orientation), image_format, full_scale and check != "header")


def _check_jpeg(data: bytes, check: str, full_scale: bool) -> CheckedImage:
    header = _read_jpeg_header(data)
    _check_size("jpeg", header.height, header.width)
    strict, pixels = check == "strict", None
    orientation = _orientation(header.exif) if header.exif else 1
    if orientation != 1 or header.num_components == 4:
        image = _to_image(_decode_jpeg(data, header, "GRAY" if header.num_components == 1 else "RGB", strict, True))
        reason = "exif_orientation" if orientation != 1 else "cmyk"
        return _reencode("jpeg", _turn(image, orientation), reason, full_scale and check != "header")
    if check != "header":
        pixels = _decode_jpeg(data, header, "RGB" if full_scale else "GRAY", strict, full_scale)
    return CheckedImage("jpeg", header.height, header.width, None, "", pixels if full_scale else None)


def _check_png(data: bytes, check: str, full_scale: bool) -> CheckedImage:
    plain, others = _read_png_chunks(data, checksums=check != "header")
    if plain[8:16] != b"\0\0\0\x0dIHDR" or len(plain) < 33:
        raise BadImageError(f"PNG: begins with the chunk {plain[8:33]!r}; expected a whole IHDR")
    width, height = struct.unpack_from(">II", plain, 16)
    _check_size("png", height, width)
    _check_num_frames("png", int.from_bytes(others.get(b"acTL", b"")[:4]))
    orientation = _orientation(others.get(b"eXIf", b""))
    if check == "header" and orientation == 1:
        return CheckedImage("png", height, width, None, "", None)
    image = _decode_with_pillow("png", plain)
    wants_pixels = full_scale and check != "header"
    if orientation != 1:
        return _reencode("png", _turn(image, orientation), "exif_orientation", wants_pixels)
    return CheckedImage("png", height, width, None, "", _rgb(image) if wants_pixels else None)


def _check_gif_header(data: bytes) -> None:
    """Walks the blocks, since Pillow warns about a size that it only refuses at twice the limit."""
    num_frames, position = 0, 13
    try:
        width, height, flags = struct.unpack_from("<HHB", data, 6)
        position += _color_table_bytes(flags)
        while data[position] != 0x3B:  # the trailer
            if data[position] == 0x2C:  # an image
                left, top, frame_width, frame_height, flags = struct.unpack_from("<HHHHB", data, position + 1)
                if not num_frames:  # Pillow's canvas grows with the first frame
                    width, height = max(width, left + frame_width), max(height, top + frame_height)
                num_frames += 1
                position += 11 + _color_table_bytes(flags)
            elif data[position] == 0x21:  # an extension
                position += 2
            else:
                position += 1
                continue
            while data[position]:
                position += 1 + data[position]
            position += 1
    except (IndexError, struct.error):
        pass  # cut off: Pillow says so, if it needs what is missing
    if num_frames:
        _check_size("gif", height, width)
    _check_num_frames("gif", num_frames)


def _color_table_bytes(flags: int) -> int:
    return 3 << (flags & 7) + 1 if flags & 0x80 else 0


class _JpegHeader(NamedTuple):
    height: int
    width: int
    num_components: int
    exif: bytes
    num_bytes: int  # up to the first scan


def _read_jpeg_header(data: bytes) -> _JpegHeader:
    """Walks the marker segments before the first scan: 1 µs, where a search for EXIF takes 50 µs on a photograph.

    simplejpeg's own header function is no faster, does not tell a lossless JPEG, and raises KeyError on 4:4:1 chroma.
    """
    position, frame, exif = 2, (0, 0, 0, 0), b""
    try:
        while True:
            marker, length = _unpack_segment(data, position)
            if marker in _OTHER_MARKERS:
                if marker == 0xFFE1 and not exif and data.startswith(_EXIF, position + 4):
                    exif = data[position + 10 : position + 2 + length]
            elif marker in _FRAME_MARKERS:
                frame = _unpack_frame(data, position + 4)
            elif marker == 0xFFDA:
                break
            elif marker == 0xFFFF:  # padding
                position += 1
                continue
            else:
                raise BadImageError(f"JPEG: marker {marker:#x} at byte {position}; expected a lossy JPEG's header")
            position += 2 + length
    except struct.error:
        raise BadImageError(f"JPEG: truncated: {len(data)} bytes end within the header") from None
    precision, height, width, num_components = frame
    if precision != 8 or num_components not in (1, 3, 4):
        raise BadImageError(f"JPEG: {num_components} components of {precision} bits; expected 1, 3 or 4 of 8 bits")
    return _JpegHeader(height, width, num_components, exif, position)


def _decode_jpeg(data: bytes, header: _JpegHeader, colorspace: str, strict: bool, full_scale: bool) -> np.ndarray:
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
    plain = data[: header.num_bytes].replace(_EXIF, bytes(len(_EXIF))) + data[header.num_bytes :]
    image = _decode_with_pillow("jpeg", plain, at_eighth=not full_scale)
    pixels = np.asarray(image.convert("L" if colorspace == "GRAY" else "RGB"))
    return pixels.reshape(*pixels.shape[:2], -1)


def _read_png_chunks(data: bytes, checksums: bool) -> tuple[bytes, dict[bytes, bytes]]:
    """Splits a PNG into what its pixels depend on, and the other chunks by kind: texts can be bombs too."""
    position, kept, others, kind = 8, [_PNG_MAGIC], {}, b""
    while kind != b"IEND" and position < len(data):
        length, kind = int.from_bytes(data[position : position + 4]), data[position + 4 : position + 8]
        end = position + 12 + length
        if kind in _PNG_CHUNKS:
            kept.append(data[position:end])
        elif kind[:1].isupper():
            raise BadImageError(f"PNG: chunk {kind!r}, which a reader must not ignore and none knows")
        else:
            others.setdefault(kind, data[position + 8 : end - 4])
        if checksums and zlib.crc32(data[position + 4 : end - 4]).to_bytes(4) != data[end - 4 : end]:
            raise BadImageError(f"PNG: chunk {kind!r} at byte {position} is damaged or cut off: wrong checksum")
        position = end
    if checksums and kind != b"IEND":
        raise BadImageError(f"PNG: truncated: {len(data)} bytes end with chunk {kind!r}; expected b'IEND'")
    return b"".join(kept), others


def _orientation(tiff: bytes) -> int:
    """The orientation in an EXIF block's first directory (TIFF 6.0, Exif 2.32); 1 if there is none, or no valid one."""
    order = {b"II": "<", b"MM": ">"}.get(tiff[:2])
    if order:
        try:
            (start,) = struct.unpack_from(order + "I", tiff, 4)
            (num_entries,) = struct.unpack_from(order + "H", tiff, start)
            for entry in range(start + 2, start + 2 + 12 * num_entries, 12):
                tag, kind, count, value = struct.unpack_from(order + "HHIH", tiff, entry)
                if tag == 0x0112:
                    return value if (kind, count) == (3, 1) and 1 <= value <= 8 else 1
        except struct.error:
            pass  # cut off: cameras' software does that, and the picture is none the worse
    return 1


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
        _check_size(image_format, image.height, image.width)
        if image_format == "webp":
            _check_num_frames(image_format, image.n_frames)
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


def _check_size(image_format: str, height: int, width: int) -> None:
    if not 0 < height * width <= MAX_IMAGE_PIXELS or height > MAX_IMAGE_SIDE or width > MAX_IMAGE_SIDE:
        raise BadImageError(
            f"{image_format.upper()}: {width} x {height} pixels; "
            f"expected 1 to {MAX_IMAGE_PIXELS} in all, at most {MAX_IMAGE_SIDE} a side"
        )


def _check_num_frames(image_format: str, num_frames: int) -> None:
    if num_frames > 1:
        raise BadImageError(f"{image_format.upper()}: animated, {num_frames} frames; expected 1")


def _describe(data: bytes) -> str:
    if not data:
        return "0 bytes"
    looks = [f", {kind}" for start, kind in _FOREIGN.items() if data[:64].lstrip().startswith(start)]
    return f"starts with {data[:12]!r}{''.join(looks)}, which is no image that a record can hold"
