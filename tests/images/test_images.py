"""Tests which images are stored unchanged, re-encoded or rejected."""

import io
import pathlib
import resource
import struct
import subprocess
import sys
import zlib

import numpy as np
import pytest
import simplejpeg
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps

from beam_pipelines.config.image_config import MAX_IMAGE_PIXELS, ImageConfig
from beam_pipelines.errors import InvalidInput
from beam_pipelines.images import image_codecs, images
from beam_pipelines.images.images import Geometry, check_image, check_pixels, identify
from beam_pipelines.images.raw_image import RawImage
from beam_pipelines.images.resize import stored_size

# A bad file must not cause a Python warning, which would appear in the log of each worker.
pytestmark = pytest.mark.filterwarnings("error", "ignore::ResourceWarning")  # other tests may leave files open

CHECKS = ("strict", "decode", "header")
SOME_FORMATS = ("JPEG", "PNG", "GIF", "BMP", "WEBP")


def smooth(height: int = 45, width: int = 61) -> Image.Image:
    """Returns an RGB image with smooth color gradients, which JPEG compression hardly changes."""
    y, x = np.mgrid[0:height, 0:width]
    red, green, blue = 255 * x / width, 255 * y / height, 255 * (x + y) / (height + width)
    return Image.fromarray(np.stack([red, green, blue], axis=-1).astype(np.uint8))


def noisy(height: int = 300, width: int = 400) -> Image.Image:
    """Returns an RGB image whose JPEG file is about 100 KB in size, like a photograph."""
    noise = np.random.default_rng(0).normal(0, 25, (height, width, 3))
    return Image.fromarray(np.clip(np.asarray(smooth(height, width)) + noise, 0, 255).astype(np.uint8))


def encode(image: Image.Image, image_format: str, **options) -> bytes:
    encoded = io.BytesIO()
    image.save(encoded, image_format, **options)
    return encoded.getvalue()


def decode(data: bytes) -> Image.Image:
    image = Image.open(io.BytesIO(data))
    image.load()
    return image


def animate(image_format: str, num_frames: int) -> bytes:
    frames = [smooth().transpose(Image.Transpose.ROTATE_180) if index % 2 else smooth() for index in range(num_frames)]
    return encode(frames[0], image_format, save_all=True, append_images=frames[1:])


def exif(orientation: int, order: str = "<") -> bytes:
    """Returns an EXIF block that contains only the given orientation, in the given byte order."""
    start = struct.pack(order + "2sHIH", {"<": b"II", ">": b"MM"}[order], 42, 8, 1)
    return b"Exif\0\0" + start + struct.pack(order + "HHIHxxI", 0x0112, 3, 1, orientation, 0)


def make_png(header: bytes, *chunks: tuple[bytes, bytes]) -> bytes:
    """Returns a PNG file with the given header, the given chunks (pairs of chunk type and data) and valid checksums."""
    data = b"\x89PNG\r\n\x1a\n"
    for kind, body in [(b"IHDR", header), *chunks]:
        data += struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
    return data


def png_with_size(width: int, height: int) -> bytes:
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return make_png(header, (b"IDAT", zlib.compress(bytes(100))), (b"IEND", b""))


def flat_jpeg(*sampling: int) -> bytes:
    """Returns a gray JPEG file of 16 x 16 pixels with the given sampling factors. Each block is two zero bits."""
    data = encode(Image.new("RGB", (16, 16), (128, 128, 128)), "JPEG", optimize=True, subsampling=0)
    frame, scan = data.index(b"\xff\xc0"), data.index(b"\xff\xda")
    header = bytearray(data[: scan + 14])
    header[frame + 11 : frame + 20 : 3] = bytes(sampling)
    across, down = max(factors >> 4 for factors in sampling), max(factors & 15 for factors in sampling)
    num_units = -(-16 // (8 * across)) * -(-16 // (8 * down))
    num_bits = 2 * num_units * sum((factors >> 4) * (factors & 15) for factors in sampling)
    bits = "0" * num_bits + "1" * (-num_bits % 8)
    return bytes(header) + int(bits, 2).to_bytes(len(bits) // 8) + b"\xff\xd9"


def difference(actual: Image.Image | np.ndarray, expected: Image.Image | np.ndarray) -> float:
    """Returns the mean absolute difference between the pixel values of two images. The shapes must be equal."""
    actual, expected = np.asarray(actual).astype(int), np.asarray(expected).astype(int)
    assert actual.shape == expected.shape
    return float(np.abs(actual - expected).mean())


def unchanged(height: int, width: int) -> Geometry:
    return Geometry((height, width), 1, (height, width))


def num_channels(data: bytes) -> int:
    """Returns the number of channels: 1 for gray images and 3 for color images, plus 1 for an alpha channel."""
    mode = decode(data).mode
    return (1 if mode[0] in "1LI" else 3) + mode.endswith("A")


GREY16 = Image.fromarray((np.arange(45 * 61).reshape(45, 61) * 23).astype(np.uint16))
TRANSPARENT = Image.merge("RGBA", [*smooth().split(), smooth().split()[0]])

VALID = {
    "JPEG": encode(smooth(), "JPEG"),
    "JPEG, progressive": encode(smooth(), "JPEG", progressive=True),
    "JPEG, 4:4:4": encode(smooth(), "JPEG", subsampling=0),
    "JPEG, RGB": encode(smooth(), "JPEG", keep_rgb=True),
    "JPEG, grey": encode(smooth().convert("L"), "JPEG"),
    "JPEG, 4:4:1": flat_jpeg(0x14, 0x11, 0x11),
    "JPEG, 4:1:0": flat_jpeg(0x42, 0x11, 0x11),
    "JPEG, chroma finer than luma": flat_jpeg(0x11, 0x22, 0x22),
    "JPEG, upright orientation": encode(smooth(), "JPEG", exif=exif(1)),
    "JPEG, padding before a marker": encode(smooth(), "JPEG").replace(b"\xff\xdb", b"\xff\xff\xff\xdb"),
    "JPEG, 1 x 1": encode(smooth(1, 1), "JPEG"),
    "JPEG, 3 x 7": encode(smooth(3, 7), "JPEG"),
    "PNG": encode(smooth(), "PNG"),
    "PNG, palette": encode(smooth().quantize(30), "PNG"),
    "PNG, palette, one transparent": encode(smooth().quantize(30), "PNG", transparency=3),
    "PNG, palette, alphas": encode(smooth().quantize(30), "PNG", transparency=bytes(range(30))),
    "PNG, grey": encode(smooth().convert("L"), "PNG"),
    "PNG, bits": encode(smooth().convert("1"), "PNG"),
    "PNG, grey and alpha": encode(TRANSPARENT.convert("LA"), "PNG"),
    "PNG, alpha": encode(TRANSPARENT, "PNG"),
    "PNG, 16 bit grey": encode(GREY16, "PNG"),
    "PNG, 16 bit colour": make_png(
        struct.pack(">IIBBBBB", 5, 4, 16, 2, 0, 0, 0),
        (b"IDAT", zlib.compress(b"".join(b"\0" + bytes(range(row, row + 30)) for row in range(4)))),
        (b"IEND", b""),
    ),
    "PNG, 1 x 1": encode(smooth(1, 1), "PNG"),
}


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("case", VALID)
def test_valid_images_are_stored_unchanged(case, check):
    checked = check_image(VALID[case], check)
    width, height = decode(VALID[case]).size
    expected = (case.split(",")[0].lower(), height, width, None, "", None, unchanged(height, width), num_channels(VALID[case]))
    assert checked == (*expected, "16 bit" in case, False, False), case


@pytest.mark.parametrize("check", ["strict", "decode"])
@pytest.mark.parametrize("case", VALID)
def test_full_scale_gives_rgb_pixels(case, check):
    pixels = check_image(VALID[case], check, full_scale=True).pixels
    image = decode(VALID[case])
    if case == "PNG, 16 bit grey":
        image = Image.fromarray((np.asarray(GREY16) >> 8).astype(np.uint8))
    assert pixels.dtype == np.uint8, case
    assert difference(pixels, image.convert("RGBA").convert("RGB")) == 0, case


def test_checks_without_decoding_give_no_pixels():
    for case in ("JPEG", "PNG"):
        assert check_image(VALID[case], "header", full_scale=True).pixels is None, case
    assert check_image(encode(smooth(), "GIF"), "header", full_scale=True).pixels is None


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_tensorflow_decodes_stored_images():
    import tensorflow as tf

    sources = VALID | {name: data for name, (data, _) in REENCODED.items()}
    for case, data in sources.items():
        checked = check_image(data, "strict", full_scale=True)
        stored = checked.encoded or data
        decoded = tf.io.decode_image(stored, channels=3, expand_animations=False).numpy()
        limit = 3 if identify(stored) == "jpeg" else 0  # TensorFlow uses a faster JPEG decoder
        assert difference(decoded, checked.pixels) <= limit, case


def test_format_is_detected_from_the_content():
    for image_format in SOME_FORMATS:
        data = encode(smooth(), image_format)
        assert identify(data) == image_format.lower()
        assert check_image(data, "strict").format == image_format.lower()
    assert identify(b"") is identify(b"RIFF\0\0\0\0WAVE") is None


REJECTED = {
    "empty": (b"", "0 bytes"),
    "HTML": (b"<!DOCTYPE html><html>not found</html>", "starts with b'<!DOCTYPE ht', HTML or XML"),
    "Git LFS pointer": (b"version https://git-lfs.github.com/spec/v1\n", "Git LFS"),
    "PSD": (b"8BPS\0\1" + bytes(100), "magick 'FILE.psd[0]' FILE.png"),
    "PDF": (b"%PDF-1.7\n" + bytes(100), "pdftoppm"),
    "SVG": (b'<?xml version="1.0"?>\n<svg xmlns="http://www.w3.org/2000/svg"/>', "rsvg-convert"),
    "JPEG XL": (b"\xff\x0a" + bytes(100), "djxl"),
    "JPEG XL, container": (b"\0\0\0\x0cJXL \r\n\x87\n" + bytes(100), "djxl"),
    "CR3": (b"\0\0\0\x18ftypcrx " + bytes(100), "a camera raw file (CR3)"),
    "RAF": (b"FUJIFILMCCD-RAW " + bytes(100), "a camera raw file (RAF)"),
    "DICOM": (bytes(128) + b"DICM", "a DICOM"),
    "icon": (b"\0\0\1\0\1\0" + bytes(100), "an icon"),
    "OpenEXR": (b"\x76\x2f\x31\x01" + bytes(100), "an OpenEXR"),
    "zip": (b"PK\3\4" + bytes(100), "a zip archive"),
    "video": (b"\0\0\0\x18ftypmp42" + bytes(100), "a video"),
    "HEIC, empty": (b"\0\0\0\x18ftypheic" + bytes(16), "HEIC: "),
    "AVIF, empty": (b"\0\0\0\x18ftypmif1\0\0\0\0avifmif1", "AVIF: "),
    "JPEG 2000, empty": (b"\0\0\0\x0cjP  \r\n\x87\n" + bytes(100), "JP2: "),
    "PPM, no header": (b"P6 x", "PPM: "),
    "PGM, huge number": (b"P5 99999999999999999999 2 255\n", "PPM: "),
    "PGM, truncated": (b"P5 2 2 255\n\0", "PPM: "),
    "text": (b"hello", "starts with b'hello'"),
    "zeros": (bytes(1000), r"starts with b'\x00\x00"),
    "text that starts like a BMP": (b"BMW", "BMP: "),
    "JPEG, lossless": (VALID["JPEG"].replace(b"\xff\xc0", b"\xff\xc3"), "JPEG: marker 0xffc3"),
    "JPEG, 12 bits": (VALID["JPEG"].replace(b"\xff\xc0\0\x11\x08", b"\xff\xc0\0\x11\x0c"), "components of 12 bits"),
    "JPEG, no height": (VALID["JPEG"].replace(b"\x08\0\x2d\0\x3d", b"\x08\0\0\0\x3d"), "JPEG: 61 x 0 pixels"),
    "PNG, no width": (png_with_size(0, 10), "PNG: 0 x 10 pixels"),
    "PNG, for iPhones": (VALID["PNG"].replace(b"IHDR", b"CgBI"), "CgBI"),
    "PNG, no header": (VALID["PNG"][:8] + VALID["PNG"][33:], "IHDR"),
    "GIF, animated": (animate("GIF", 3), "GIF: animated"),
    "GIF, animated, with junk": (animate("GIF", 2).replace(b",\0\0\0\0=", b"\0,\0\0\0\0="), "GIF: animated"),
    "WebP, animated": (animate("WEBP", 2), "WEBP: animated"),
    "APNG": (animate("PNG", 4), "PNG: animated"),
}


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("case", REJECTED)
def test_unsupported_files_are_rejected(case, check):
    data, message = REJECTED[case]
    with pytest.raises(InvalidInput) as error:
        check_image(data, check)
    assert message in str(error.value), case
    assert "\n" not in str(error.value), case


def test_missing_package_of_a_format_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "pillow_heif", None)  # `import pillow_heif` raises ImportError
    with pytest.raises(InvalidInput) as error:
        check_image(b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + bytes(100), "strict")
    assert "pip install 'recordmill[heif]'" in str(error.value) and "magick mogrify -format jpg *.heic" in str(error.value)


def test_palette_image_without_palette_is_rejected():
    data = make_png(struct.pack(">IIBBBBB", 2, 1, 8, 3, 0, 0, 0), (b"IDAT", zlib.compress(bytes(3))), (b"IEND", b""))
    with pytest.raises(InvalidInput, match="PNG: .*palette"):
        check_image(data, "strict", full_scale=True)


BOMBS = {
    "PNG": (png_with_size(60_000, 60_000), "60000 x 60000"),
    "PNG, a little over": (png_with_size(MAX_IMAGE_PIXELS // 1000 + 1, 1000), "89479 x 1000"),
    "PNG, too long": (png_with_size(1_000_001, 1), "1000001 x 1"),
    "JPEG": (VALID["JPEG"].replace(b"\x08\0\x2d\0\x3d", b"\x08\xff\xdc\xff\xdc"), "65500 x 65500"),
    "BMP": (b"BM" + struct.pack("<12xIIiiHH24x", 54, 40, 60_000, 60_000, 1, 24)[4:], "60000 x 60000"),
    "GIF": (b"GIF89a\xff\xff\xff\xff\0\0\0," + struct.pack("<4H", 0, 0, 1, 1) + b"\0\2\2\x44\1\0;", "65535 x 65535"),
    "GIF, frame larger than its screen": (
        b"GIF89a\1\0\1\0\0\0\0," + struct.pack("<4H", 0, 0, 10_000, 10_000) + b"\0\2\2\x44\1\0;",
        "10000 x 10000",
    ),
    "GIF, frame much larger than its screen": (
        b"GIF89a\1\0\1\0\0\0\0," + struct.pack("<4H", 0, 0, 60_000, 60_000) + b"\0\2\2\x44\1\0;",
        "3600000000 pixels",
    ),
    "PPM": (b"P6 60000 60000 255\n", "60000 x 60000"),
    "WebP": (
        animate("WEBP", 2).replace(b"\x3c\0\0\x2c\0\0", b"\xfe\x3f\0\xfe\x3f\0", 1),  # the canvas instead of a frame
        "16383 x 16383",
    ),
}


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("case", BOMBS)
def test_decompression_bombs_are_rejected_before_decoding(case, check):
    data, message = BOMBS[case]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(InvalidInput) as error:
        check_image(data, check, full_scale=True)
    assert message in str(error.value), case
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak < 100 << 10, case  # KiB


def test_pixel_limit_is_the_limit_of_pillow_warnings():
    checked = check_image(png_with_size(MAX_IMAGE_PIXELS // 1000, 1000), "header")
    assert checked.height * checked.width <= MAX_IMAGE_PIXELS == Image.MAX_IMAGE_PIXELS


def corrupt(data: bytes) -> dict[str, bytes]:
    middle, garbage = len(data) // 2, np.random.default_rng(1).bytes(4096)
    return {
        "truncated in the header": data[:100],
        "truncated after the header": data[:1000],
        "truncated in the middle": data[:middle],
        "truncated near the end": data[:-200],
        "no end marker": data[:-2],
        "half an end marker": data[:-1],
        "zeros for an end marker": data[:-2] + bytes(100),
        "zeros inside": data[:middle] + bytes(512) + data[middle + 512 :],
        "garbage inside": data[:middle] + garbage + data[middle + 4096 :],
    }


PHOTOGRAPH = encode(noisy(), "JPEG", quality=92)
GREY_PHOTOGRAPH = encode(noisy().convert("L"), "JPEG", quality=92)
def with_scans(data: bytes, number: int) -> bytes:
    """Returns a progressive JPEG file in which the last scan is repeated `number` times."""
    start, end = data.rindex(b"\xff\xda"), data.rindex(b"\xff\xd9")
    return data[:end] + data[start:end] * number + data[end:]


def test_too_many_scans_are_rejected_before_decoding():
    many = with_scans(encode(smooth(), "JPEG", progressive=True), 5000)
    for check in ("strict", "decode", "header"):
        with pytest.raises(InvalidInput, match="^JPEG: 50[0-9]{2} scans") as error:
            check_image(many, check)
        assert error.value.reason == "bad_image"
    trailing = encode(smooth(), "JPEG", progressive=True) + b"\xff\xda" * 1000
    assert check_image(trailing, "header").height == check_image(encode(smooth(), "JPEG"), "header").height
    one_scan = encode(smooth(), "JPEG")
    data = one_scan[:-2] + b"\xff\xda" * 1000 + one_scan[-2:]
    assert check_image(data, "header").format == "jpeg", "decoders ignore further scans"


ROTATED_PHOTOGRAPH = encode(noisy(), "JPEG", quality=92, exif=exif(6))


@pytest.mark.parametrize("full_scale", [False, True])
@pytest.mark.parametrize("case", corrupt(b""))
def test_strict_rejects_each_corrupt_jpeg(case, full_scale, capfd):
    for data in (PHOTOGRAPH, GREY_PHOTOGRAPH, ROTATED_PHOTOGRAPH, encode(noisy(), "JPEG", progressive=True)):
        for images in (ImageConfig(), *(ImageConfig(("short", side)) for side in (200, 100, 30, 9))):  # all decoding scales
            check_image(data, "strict", full_scale=full_scale, images=images)
            with pytest.raises(InvalidInput, match="^JPEG: "):
                check_image(corrupt(data)[case], "strict", full_scale=full_scale, images=images)
    assert capfd.readouterr().err == "", case


@pytest.mark.parametrize("case", [case for case in corrupt(b"") if "inside" not in case])
def test_decode_rejects_truncated_jpegs(case, capfd):
    for data in (PHOTOGRAPH, GREY_PHOTOGRAPH, ROTATED_PHOTOGRAPH, VALID["JPEG, 4:1:0"]):
        with pytest.raises(InvalidInput, match="^JPEG: "):
            check_image(corrupt(data)[case] if len(data) > 1000 else data[:-2], "decode")
    assert capfd.readouterr().err == "", case


@pytest.mark.parametrize("check", ["strict", "decode"])
@pytest.mark.parametrize("image_format", ["PNG", "GIF", "BMP", "WEBP"])
def test_truncated_files_of_other_formats_are_rejected(image_format, check):
    data = encode(noisy(60, 80), image_format)
    for length in (20, len(data) // 3, len(data) // 2, len(data) - 100):
        with pytest.raises(InvalidInput, match=f"^{image_format}: "):
            check_image(data[:length], check)


@pytest.mark.parametrize("check", ["strict", "decode"])
def test_png_with_a_wrong_checksum_or_no_end_is_rejected(check):
    data = encode(noisy(60, 80), "PNG")
    for case, bad in {"a changed byte": data[:500] + b"\0" + data[501:], "no IEND": data[:-12]}.items():
        assert bad != data, case
        with pytest.raises(InvalidInput, match="corrupt|truncated"):
            check_image(bad, check)


def test_header_check_reads_only_the_header():
    assert check_image(PHOTOGRAPH[:1000], "header")[1:3] == (300, 400)
    assert check_image(encode(noisy(60, 80), "PNG")[:500], "header")[1:3] == (60, 80)


REENCODED = {
    "GIF": (encode(smooth(), "GIF"), "RGB"),
    "GIF, grey": (encode(smooth().convert("L"), "GIF"), "L"),
    "GIF, grey, transparent": (encode(smooth().convert("L"), "GIF", transparency=3), "LA"),
    "GIF, transparent": (encode(smooth().quantize(30), "GIF", transparency=3), "RGBA"),
    "BMP": (encode(smooth(), "BMP"), "RGB"),
    "BMP, palette": (encode(smooth().quantize(30), "BMP"), "RGB"),
    "BMP, grey": (encode(smooth().convert("L"), "BMP"), "L"),
    "BMP, bits": (encode(smooth().convert("1"), "BMP"), "L"),
    "BMP, alpha": (encode(TRANSPARENT, "BMP"), None),
    "WebP": (encode(smooth(), "WEBP"), "RGB"),
    "WebP, lossless": (encode(smooth(), "WEBP", lossless=True), "RGB"),
    "WebP, alpha": (encode(TRANSPARENT, "WEBP", lossless=True), "RGBA"),
}


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("case", REENCODED)
def test_other_formats_are_reencoded_as_lossless_png(case, check):
    data, mode = REENCODED[case]
    source = decode(data)
    checked = check_image(data, check, full_scale=True)
    stored = decode(checked.encoded)
    expected_reason = case.split(",")[0].lower()
    assert (checked.format, checked.reencoded, stored.format) == (expected_reason, expected_reason, "PNG"), case
    assert (checked.width, checked.height) == source.size == stored.size, case
    assert stored.mode == mode or mode is None, case
    assert difference(stored.convert("RGBA"), source.convert("RGBA")) == 0, case
    if check != "header":
        assert difference(checked.pixels, source.convert("RGBA").convert("RGB")) == 0, case


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_jpegs_are_rotated_upright(mode, orientation, order, check):
    data = encode(smooth().convert(mode), "JPEG", quality=95, exif=exif(orientation, order))
    upright = ImageOps.exif_transpose(decode(data))
    checked = check_image(data, check, full_scale=True)
    assert (checked.encoded is None) == (orientation == 1)
    stored = decode(checked.encoded or data)
    assert (checked.format, stored.format, stored.mode) == ("jpeg", "JPEG", mode)
    assert checked.reencoded == ("" if orientation == 1 else "exif_orientation")
    assert (checked.width, checked.height) == upright.size == ((61, 45) if orientation < 5 else (45, 61))
    assert stored.getexif().get(0x0112, 1) == 1
    assert difference(stored, upright) < 1.5
    if check != "header":
        assert difference(checked.pixels, upright.convert("RGB")) == 0


def test_jpegs_are_reencoded_with_full_chroma():
    checked = check_image(encode(smooth(), "JPEG", exif=exif(3)), "strict")
    assert [layer[1:3] for layer in decode(checked.encoded).layer] == [(1, 1)] * 3


PNG_MODES = {
    "RGB": smooth(),
    "palette": smooth().quantize(30),
    "alpha": TRANSPARENT,
    "grey and alpha": TRANSPARENT.convert("LA"),
    "16 bit": GREY16,
    "bits": smooth().convert("1"),
}


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("orientation", [3, 6])
@pytest.mark.parametrize("case", PNG_MODES)
def test_pngs_are_rotated_upright_without_loss(case, orientation, check):
    data = encode(PNG_MODES[case], "PNG", exif=exif(orientation))
    upright = ImageOps.exif_transpose(decode(data))
    checked = check_image(data, check, full_scale=True)
    stored = decode(checked.encoded)
    assert (checked.format, checked.reencoded, stored.format) == ("png", "exif_orientation", "PNG"), case
    assert (checked.width, checked.height) == stored.size == upright.size, case
    assert stored.mode == upright.mode and difference(stored, upright) == 0, case
    assert not stored.getexif(), case
    if check != "header":
        assert checked.pixels.shape == (*stored.size[::-1], 3), case


def test_rotation_of_16_bit_colours_is_rejected_with_keep_depth():
    header, pixels = struct.pack(">IIBBBBB", 5, 4, 16, 2, 0, 0, 0), zlib.compress(bytes(4 * 31))
    rotated = make_png(header, (b"eXIf", exif(6)[6:]), (b"IDAT", pixels), (b"IEND", b""))
    with pytest.raises(InvalidInput, match="PNG: 16 bits.* 6"):
        check_image(rotated, "strict", images=ImageConfig(keep_depth=True))
    assert check_image(rotated, "strict").encoded is not None


def test_orientation_is_found_before_and_after_png_pixels():
    data, chunk = VALID["PNG"], make_png(b"", (b"eXIf", exif(6)[6:]))[20:]
    for case, position in {"before the pixels": 33, "after the pixels": len(data) - 12}.items():
        checked = check_image(data[:position] + chunk + data[position:], "strict")
        assert (checked.reencoded, checked.height, checked.width) == ("exif_orientation", 61, 45), case


def test_webp_images_are_rotated_upright():
    # Pillow removes one prefix
    for case, prefix in {"standard": b"", "with the prefix of cameras": b"Exif\0\0"}.items():
        data = encode(smooth(), "WEBP", lossless=True, exif=prefix + exif(6))
        checked = check_image(data, "strict")
        assert (checked.reencoded, checked.height, checked.width) == ("webp", 61, 45), case
        assert difference(decode(checked.encoded), smooth().transpose(Image.Transpose.ROTATE_270)) == 0, case


@pytest.mark.parametrize("check", CHECKS)
def test_invalid_orientation_is_ignored(check, capfd):
    blocks = {
        "orientation 0": exif(0),
        "orientation 9": exif(9),
        "orientation with a wrong type": exif(6).replace(b"\x12\x01\x03", b"\x12\x01\x07"),
        "only another tag": exif(6).replace(b"\x12\x01", b"\x13\x01"),
        "two orientations": exif(6).replace(b"\x12\x01\x03\0\x01", b"\x12\x01\x03\0\x02"),
        "truncated": exif(6)[:20],
        "invalid offset": exif(6).replace(b"\x08\0\0\0", b"\xff\xff\xff\xff"),
        "too large number of entries": exif(6)[:14] + b"\xff\xff" + exif(6)[16:].replace(b"\x12\x01", b"\x13\x01"),
        "no TIFF": b"Exif\0\0nonsense",
        "empty": b"Exif\0\0",
    }
    for case, block in blocks.items():
        data = encode(smooth(), "JPEG", exif=block)
        assert check_image(data, check)[3:5] == (None, ""), case
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("check", CHECKS)
def test_cmyk_jpegs_become_rgb(check):
    data = encode(smooth().convert("CMYK"), "JPEG", quality=95)
    checked = check_image(data, check, full_scale=True)
    stored = decode(checked.encoded)
    assert (checked.format, checked.reencoded, stored.format, stored.mode) == ("jpeg", "cmyk", "JPEG", "RGB")
    assert (checked.height, checked.width) == (45, 61)
    assert difference(stored, smooth()) < 4
    if check != "header":
        assert difference(checked.pixels, decode(data).convert("RGB")) == 0


def test_cmyk_jpegs_are_rotated_upright():
    checked = check_image(encode(smooth().convert("CMYK"), "JPEG", quality=95, exif=exif(6)), "strict")
    assert (checked.reencoded, checked.height, checked.width) == ("exif_orientation", 61, 45)
    assert difference(decode(checked.encoded), smooth().transpose(Image.Transpose.ROTATE_270)) < 4


@pytest.mark.parametrize("check", CHECKS)
def test_first_picture_of_a_multi_picture_jpeg_is_used(check):
    data = encode(smooth(), "MPO", save_all=True, append_images=[noisy(90, 80)])
    assert data.count(b"\xff\xd8\xff") == 2
    assert check_image(data, check)[:7] == ("jpeg", 45, 61, None, "", None, unchanged(45, 61))


def test_jpeg_is_decoded_once(monkeypatch):
    calls, decode_jpeg = [], simplejpeg.decode_jpeg

    def count(*args, **options):
        calls.append(args)
        return decode_jpeg(*args, **options)

    monkeypatch.setattr(image_codecs, "decode_with_pillow", None)
    monkeypatch.setattr(simplejpeg, "decode_jpeg", count)
    for case, data in {"clean": PHOTOGRAPH, "rotated": ROTATED_PHOTOGRAPH}.items():
        for full_scale in (False, True):
            calls.clear()
            check_image(data, "strict", full_scale=full_scale)
            assert len(calls) == 1, (case, full_scale)


def test_invalid_check_value_is_a_programming_error():
    with pytest.raises(ValueError, match="check='full'") as error:
        check_image(VALID["JPEG"], "full")
    assert not isinstance(error.value, InvalidInput)


def test_clean_jpegs_do_not_need_pillow():
    script = (
        "import sys; from beam_pipelines.images.images import check_image\n"
        "data = sys.stdin.buffer.read()\n"
        "for full_scale in (False, True): assert check_image(data, 'strict', full_scale=full_scale).width == 400\n"
        "print([name for name in ('PIL', 'tensorflow', 'apache_beam') if name in sys.modules])"
    )
    root = pathlib.Path(images.__file__).parents[2]
    run = subprocess.run([sys.executable, "-c", script], input=PHOTOGRAPH, capture_output=True, cwd=root, check=True)
    assert run.stdout.decode().strip() == "[]"


SMALL = ImageConfig(("short", 20))
PIXELS = ImageConfig(encoding="raw")
FORMATS = {"jpeg": ImageConfig(format="jpeg"), "png": ImageConfig(format="png"), "webp": ImageConfig(format="webp")}


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("case", [*VALID, "WebP"])
def test_images_with_the_wanted_size_and_format_are_stored_unchanged(case, check):
    data = VALID[case] if case in VALID else REENCODED[case][0]
    width, height = decode(data).size
    short, long = sorted((height, width))
    images_format = identify(data)
    for size in (None, ("short", short), ("long", long), ("short", 10**6), ("exact", height, width)):
        checked = check_image(data, check, images=ImageConfig(size, images_format, 50))
        assert checked[:8] == (images_format, height, width, None, "", None, unchanged(height, width), num_channels(data)), (case, size)


def test_images_stored_unchanged_are_checked():
    webp = encode(noisy(), "WEBP")
    for case, data in {"JPEG": PHOTOGRAPH, "PNG": encode(noisy(), "PNG"), "WebP": webp}.items():
        images = ImageConfig(("short", 10**6), identify(data))
        if case != "WebP":  # libwebp reads the end first
            assert check_image(data[:-200], "header", images=images).encoded is None, case
        for check in ("strict", "decode"):
            with pytest.raises(InvalidInput):
                check_image(data[:-200], check, images=images)


CONVERSIONS = {
    # Maps each case to the source, the configuration, the stored format, its mode and the reason.
    "JPEG, smaller": ("JPEG", SMALL, "JPEG", "RGB", "resized"),
    "JPEG grey, smaller": ("JPEG, grey", SMALL, "JPEG", "L", "resized"),
    "JPEG of rare chroma, smaller": ("JPEG, 4:1:0", ImageConfig(("short", 5)), "JPEG", "RGB", "resized"),
    "JPEG to PNG": ("JPEG", FORMATS["png"], "PNG", "RGB", "format"),
    "JPEG to PNG, smaller": ("JPEG", ImageConfig(("long", 9), "png"), "PNG", "RGB", "resized"),
    "JPEG to WebP": ("JPEG, grey", FORMATS["webp"], "WEBP", "RGB", "format"),
    "CMYK, smaller": ("CMYK", SMALL, "JPEG", "RGB", "resized"),
    "CMYK to JPEG": ("CMYK", FORMATS["jpeg"], "JPEG", "RGB", "cmyk"),
    "CMYK to PNG": ("CMYK", FORMATS["png"], "PNG", "RGB", "format"),
    "rotated JPEG to JPEG": ("rotated JPEG", FORMATS["jpeg"], "JPEG", "RGB", "exif_orientation"),
    "rotated JPEG to PNG": ("rotated JPEG", FORMATS["png"], "PNG", "RGB", "format"),
    "rotated JPEG, smaller": ("rotated JPEG", SMALL, "JPEG", "RGB", "resized"),
    "PNG, smaller": ("PNG", SMALL, "PNG", "RGB", "resized"),
    "PNG palette, smaller": ("PNG, palette", SMALL, "PNG", "RGB", "resized"),
    "PNG palette and alpha, smaller": ("PNG, palette, alphas", SMALL, "PNG", "RGBA", "resized"),
    "PNG 16 bit grey, smaller": ("PNG, 16 bit grey", SMALL, "PNG", "L", "resized"),
    "PNG 16 bit colour, smaller": ("PNG, 16 bit colour", ImageConfig(("short", 2)), "PNG", "RGB", "resized"),
    "PNG bits, smaller": ("PNG, bits", SMALL, "PNG", "L", "resized"),
    "PNG grey and alpha, smaller": ("PNG, grey and alpha", SMALL, "PNG", "LA", "resized"),
    "PNG alpha to JPEG": ("PNG, alpha", FORMATS["jpeg"], "JPEG", "RGB", "format"),
    "PNG palette and alpha to JPEG": ("PNG, palette, alphas", FORMATS["jpeg"], "JPEG", "RGB", "format"),
    "PNG grey and alpha to JPEG": ("PNG, grey and alpha", FORMATS["jpeg"], "JPEG", "L", "format"),
    "PNG 16 bit to JPEG": ("PNG, 16 bit grey", FORMATS["jpeg"], "JPEG", "L", "format"),
    "PNG bits to JPEG": ("PNG, bits", FORMATS["jpeg"], "JPEG", "L", "format"),
    "PNG alpha to WebP": ("PNG, alpha", FORMATS["webp"], "WEBP", "RGBA", "format"),
    "rotated PNG to PNG": ("rotated PNG", FORMATS["png"], "PNG", "RGB", "exif_orientation"),
    "GIF, smaller": ("GIF", SMALL, "PNG", "RGB", "resized"),
    "GIF to PNG": ("GIF", FORMATS["png"], "PNG", "RGB", "gif"),
    "GIF to JPEG": ("GIF", FORMATS["jpeg"], "JPEG", "RGB", "format"),
    "GIF, transparent, smaller": ("GIF, transparent", SMALL, "PNG", "RGBA", "resized"),
    "BMP, bits, to JPEG": ("BMP, bits", FORMATS["jpeg"], "JPEG", "L", "format"),
    "WebP to PNG": ("WebP", FORMATS["png"], "PNG", "RGB", "webp"),
    "WebP to JPEG, smaller": ("WebP", ImageConfig(("short", 20), "jpeg"), "JPEG", "RGB", "resized"),
    "WebP, smaller": ("WebP", ImageConfig(("short", 20), "webp"), "WEBP", "RGB", "resized"),
    "rotated WebP to WebP": ("rotated WebP", FORMATS["webp"], "WEBP", "RGB", "exif_orientation"),
    "JPEG, larger": ("JPEG", ImageConfig(("exact", 100, 70)), "JPEG", "RGB", "resized"),
}
SOURCES = {
    **VALID,
    **{case: data for case, (data, _) in REENCODED.items()},
    "CMYK": encode(smooth().convert("CMYK"), "JPEG", quality=95),
    "rotated JPEG": encode(smooth(), "JPEG", quality=95, exif=exif(6)),
    "rotated PNG": encode(smooth(), "PNG", exif=exif(6)),
    "rotated WebP": encode(smooth(), "WEBP", lossless=True, exif=exif(6)),
}


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("case", CONVERSIONS)
def test_images_are_converted_to_the_wanted_size_and_format(case, check):
    source, wanted, stored_format, mode, reason = CONVERSIONS[case]
    data = SOURCES[source]
    checked = check_image(data, check, full_scale=True, images=wanted)
    stored = decode(checked.encoded)
    assert (stored.format, stored.mode, checked.reencoded) == (stored_format, mode, reason), case
    assert checked.format == identify(data), case
    actual, orientation = decode(data), 6 if "rotated" in source else 1
    assert checked.geometry == ((actual.height, actual.width), orientation, (checked.height, checked.width)), case
    assert (checked.height, checked.width) == stored.size[::-1], case
    assert checked.geometry.stored == stored_size(wanted.size, *checked.geometry.upright), case
    assert (checked.pixels is None) == (check == "header"), case
    # Compares with Pillow at full scale, except for transparent pixels and 16 bits, which Pillow cannot convert.
    upright = ImageOps.exif_transpose(actual)
    if mode[-1] != "A" and "16 bit" not in source and not decode(data).has_transparency_data:
        if upright.mode == "P":
            upright = upright.convert("RGB")
        expected = upright.convert("RGB" if upright.mode != "1" else "L").resize(stored.size, Image.Resampling.LANCZOS)
        assert difference(stored.convert("RGB"), expected.convert("RGB")) < 5, case
        if check != "header":
            assert difference(checked.pixels, expected.convert("RGB")) < 4, case
    assert check_image(data, check, images=wanted).encoded == checked.encoded, case


def test_dropping_alpha_keeps_the_colours():
    pixels = np.full((16, 16, 4), (200, 100, 50, 0), np.uint8)
    data = encode(Image.fromarray(pixels), "PNG")
    cases = {"JPEG": FORMATS["jpeg"], "pixels": PIXELS, "smaller": ImageConfig(("short", 8), "jpeg")}
    for case, wanted in cases.items():
        checked = check_image(data, "strict", full_scale=True, images=wanted)
        assert (checked.pixels == (200, 100, 50)).all(), case


def test_converted_images_have_no_metadata():
    icc, secret = bytes(200), b"secret"
    for source, options in {
        "JPEG": {"comment": secret, "icc_profile": icc, "exif": exif(1), "xmp": secret},
        "PNG": {"icc_profile": icc, "exif": exif(1)},
        "GIF": {"comment": secret},
        "WEBP": {"icc_profile": icc, "exif": exif(1), "xmp": secret},
    }.items():
        data = encode(smooth(), source, **options)
        for wanted in ("jpeg", "png", "webp"):
            stored = decode(check_image(data, "strict", images=ImageConfig(("short", 20), wanted)).encoded)
            assert not {"icc_profile", "exif", "xmp", "comment"} & set(stored.info), (source, wanted)


def test_quality_decides_file_size_and_chroma():
    sizes = {}
    for image_format in ("jpeg", "webp"):
        for quality in (50, 80, 94, 95):
            checked = check_image(PHOTOGRAPH, "strict", images=ImageConfig(("short", 200), image_format, quality))
            sizes[image_format, quality] = len(checked.encoded)
            if image_format == "jpeg":
                luma, chroma = ((1, 1), (1, 1)) if quality == 95 else ((2, 2), (1, 1))
                assert [layer[1:3] for layer in decode(checked.encoded).layer] == [luma, chroma, chroma], quality
        assert len({sizes[image_format, quality] for quality in (50, 80, 94, 95)}) == 4
    assert list(sizes) == sorted(sizes, key=lambda case: (case[0], sizes[case]))


def test_stored_bytes_depend_neither_on_the_check_nor_on_the_run():
    for case, data in {**SOURCES, "rotated photograph": ROTATED_PHOTOGRAPH}.items():
        for wanted in (ImageConfig(), SMALL, FORMATS["webp"], PIXELS):
            stored = {check_image(data, check, images=wanted).encoded for check in (*CHECKS, "strict")}
            assert len(stored) == 1 or "JPEG, 4:" in case or "chroma" in case, (case, wanted)


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("case", SOURCES)
def test_raw_encoding_has_the_pixels_of_the_decoded_image(case, check):
    data = SOURCES[case]
    checked = check_image(data, check, full_scale=True, images=PIXELS)
    assert (checked.reencoded, len(checked.encoded)) == ("format", 3 * checked.height * checked.width), case
    pixels = np.frombuffer(checked.encoded, np.uint8).reshape(checked.height, checked.width, 3)
    wanted = check_image(data, "strict", full_scale=True).pixels
    # Two libraries decode JPEGs with a rare chroma and JPEGs that are not checked.
    assert difference(pixels, wanted) <= (1 if identify(data) == "jpeg" else 0), case
    if check != "header":
        np.testing.assert_array_equal(pixels, checked.pixels, err_msg=case)


def test_raw_encoding_can_have_a_fixed_size():
    for case, data in SOURCES.items():
        checked = check_image(data, "strict", images=ImageConfig(("exact", 10, 12), encoding="raw"))
        assert (checked.reencoded, len(checked.encoded)) == ("resized", 360), case
        assert checked.geometry.stored == (10, 12), case


def test_resized_jpeg_is_decoded_once_at_a_reduced_scale(monkeypatch):
    calls, decode_jpeg = [], simplejpeg.decode_jpeg

    def count(*args, **options):
        calls.append(decode_jpeg(*args, **options).shape)
        return decode_jpeg(*args, **options)

    monkeypatch.setattr(simplejpeg, "decode_jpeg", count)
    for side, shape in {200: (300, 400, 3), 70: (150, 200, 3), 30: (75, 100, 3), 10: (38, 50, 3)}.items():
        for wanted in (ImageConfig(("short", side)), ImageConfig(("short", side), encoding="raw")):
            calls.clear()
            assert check_image(PHOTOGRAPH, "strict", full_scale=True, images=wanted).pixels.shape[0] == side
            assert calls == [shape], side


def test_too_large_results_are_rejected():
    wide = make_png(
        struct.pack(">IIBBBBB", 70_000, 1, 1, 0, 0, 0, 0), (b"IDAT", zlib.compress(bytes(8751))), (b"IEND", b"")
    )
    assert check_image(wide, "strict").width == 70_000
    cases = {
        "JPEG": (wide, FORMATS["jpeg"], "JPEG: 70000 x 1 pixels to store"),
        "WebP": (wide, FORMATS["webp"], "WEBP: 70000 x 1 pixels to store"),
        "huge result": (VALID["PNG"], ImageConfig(("exact", 80, 1_100_000)), "PNG: 1100000 x 80 pixels"),
    }
    for case, (data, wanted, message) in cases.items():
        for check in CHECKS:
            with pytest.raises(InvalidInput) as error:
                check_image(data, check, images=wanted)
            assert message in str(error.value), case
    assert check_image(wide, "strict", images=ImageConfig(("long", 60_000), "jpeg")).width == 60_000


RGB_PIXELS = np.asarray(noisy(30, 41))
RAWS = {
    "RGB": (RGB_PIXELS.tobytes(), RawImage(30, 41, 3), RGB_PIXELS),
    "grey": (RGB_PIXELS[..., 1].tobytes(), RawImage(30, 41, 1), RGB_PIXELS[..., 1]),
    "planar RGB": (RGB_PIXELS.transpose(2, 0, 1).tobytes(), RawImage(30, 41, 3, True), RGB_PIXELS),
    "planar grey": (RGB_PIXELS[..., 1].tobytes(), RawImage(30, 41, 1, True), RGB_PIXELS[..., 1]),
}


@pytest.mark.parametrize("case", RAWS)
def test_raw_pixels_become_lossless_pngs(case):
    data, raw, pixels = RAWS[case]
    checked = check_pixels(data, raw, full_scale=True)
    stored = decode(checked.encoded)
    assert (checked[:3], checked.reencoded, checked.geometry) == (("raw", 30, 41), "raw", unchanged(30, 41)), case
    assert stored.format == "PNG" and difference(stored, pixels) == 0, case
    assert difference(checked.pixels, np.asarray(Image.fromarray(pixels).convert("RGB"))) == 0, case
    assert check_pixels(data, raw).pixels is None, case


@pytest.mark.parametrize("case", RAWS)
def test_raw_pixels_are_converted_to_the_wanted_format(case):
    data, raw, pixels = RAWS[case]
    for wanted, (stored_format, reason) in {
        ImageConfig(("short", 10)): ("PNG", "resized"),
        ImageConfig(format="png"): ("PNG", "raw"),
        ImageConfig(format="jpeg"): ("JPEG", "format"),
        ImageConfig(("exact", 9, 9), "webp"): ("WEBP", "resized"),
    }.items():
        checked = check_pixels(data, raw, wanted)
        stored = decode(checked.encoded)
        assert (stored.format, checked.reencoded) == (stored_format, reason), (case, wanted)
        expected = Image.fromarray(pixels).resize(stored.size, Image.Resampling.LANCZOS)
        assert difference(stored.convert("RGB"), expected.convert("RGB")) < 12, (case, wanted)
        assert stored.size[::-1] == (checked.height, checked.width) == checked.geometry.stored


@pytest.mark.parametrize("case", RAWS)
def test_raw_pixels_can_be_stored_as_raw_pixels(case):
    data, raw, pixels = RAWS[case]
    checked = check_pixels(data, raw, PIXELS, full_scale=True)
    if raw.is_planar:
        assert (checked.encoded, checked.reencoded) == (pixels.tobytes(), "format"), case
    else:
        assert (checked.encoded, checked.reencoded) == (None, ""), case
    assert checked.pixels.shape == (30, 41, 3), case
    smaller = check_pixels(data, raw, ImageConfig(("short", 15), encoding="raw"), full_scale=True)
    assert (len(smaller.encoded), smaller.reencoded) == (15 * 21 * raw.num_channels, "resized"), case


def test_raw_pixels_with_a_wrong_length_are_rejected():
    cases = {
        "too few": (bytes(11), RawImage(2, 2, 3), "raw pixels: 11 bytes"),
        "too many": (bytes(13), RawImage(2, 2, 3), "raw pixels: 13 bytes"),
        "no pixels": (b"", RawImage(0, 2, 3), "RAW: 2 x 0 pixels"),
        "huge": (bytes(9), RawImage(10**9, 10**9, 1), "RAW: 1000000000 x 1000000000 pixels"),
    }
    for case, (data, raw, message) in cases.items():
        with pytest.raises(InvalidInput) as error:
            check_pixels(data, raw)
        assert message in str(error.value), case


SEEDS = {
    **{case: data for case, data in VALID.items() if len(data) < 5000},
    **{case: data for case, (data, _) in REENCODED.items()},
    **{case: REJECTED[case][0] for case in ("APNG", "GIF, animated", "WebP, animated")},
    "JPEG, rotated": encode(smooth(), "JPEG", exif=exif(6)),
    "JPEG, CMYK": encode(smooth().convert("CMYK"), "JPEG"),
    "PNG, rotated": encode(smooth(), "PNG", exif=exif(6)),
}


@settings(max_examples=400, deadline=None)
@given(
    case=st.sampled_from(sorted(SEEDS)),
    check=st.sampled_from(CHECKS),
    full_scale=st.booleans(),
    changes=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), max_size=6),
    near_start=st.booleans(),
    kept=st.floats(0.01, 1) | st.just(1.0),
    wanted=st.sampled_from([ImageConfig(), SMALL, *FORMATS.values(), PIXELS]),
)
def test_any_bytes_are_converted_or_rejected(case, check, full_scale, changes, near_start, kept, wanted):
    data = bytearray(SEEDS[case])
    for location, value in changes:
        data[int(location * (min(64, len(data)) if near_start else len(data)))] = value
    data = bytes(data[: int(len(data) * kept)])
    try:
        checked = check_image(data, check, full_scale=full_scale, images=wanted)
    except InvalidInput as error:
        assert str(error) and "\n" not in str(error)
        return
    assert checked.height * checked.width > 0
    assert (checked.encoded is None) == (checked.reencoded == "")
    assert (checked.pixels is not None) == (full_scale and check != "header")
    if checked.pixels is not None:
        assert (checked.pixels.shape, checked.pixels.dtype) == ((checked.height, checked.width, 3), np.uint8)


MODERN = {"AVIF": {"quality": 90}, "JPEG2000": {}}


@pytest.mark.parametrize("image_format", MODERN)
def test_modern_formats_are_stored_as_png(image_format):
    Image.init()
    if image_format not in Image.SAVE:
        pytest.skip(f"this build of Pillow has no {image_format}")
    data = encode(smooth(), image_format, **MODERN[image_format])
    checked = check_image(data, "strict", full_scale=True)
    assert (checked.height, checked.width, checked.reencoded) == (45, 61, {"JPEG2000": "jp2"}.get(image_format, "avif"))
    assert difference(decode(checked.encoded), smooth()) <= (12 if image_format == "AVIF" else 0)
    assert check_image(data, "strict", images=ImageConfig(format="jpeg")).encoded.startswith(b"\xff\xd8\xff")
    for end in range(0, len(data), 17):
        with pytest.raises(InvalidInput):
            check_image(data[:end], "strict")
    for position in range(0, len(data), 7):
        try:
            check_image(data[:position] + bytes((data[position] ^ 0x55,)) + data[position + 1 :], "strict")
        except InvalidInput as error:
            assert error.reason == "bad_image"


@pytest.mark.parametrize(
    "data, stored, is_deep",
    [
        (b"P6\n# made\n2 1\n255\n" + bytes(range(6)), [[[0, 1, 2], [3, 4, 5]]], False),
        (b"P6 1 1 65535\n\1\0\2\0\3\0", [[[1, 2, 3]]], False),
        (b"P5 2 1 255\n\0\xff", [[0, 255]], False),
        (b"P5 2 1 15\n\1\x0f", [[17, 255]], False),
        (b"P5 2 1 65535\n\1\0\xff\xff", [[256, 65535]], True),
    ],
)
def test_ppm_and_pgm_are_stored_as_png(data, stored, is_deep):
    checked = check_image(data, "strict", full_scale=True)
    assert (checked.format, checked.reencoded, checked.is_deep) == ("ppm", "ppm", is_deep)
    image = Image.open(io.BytesIO(checked.encoded))
    assert image.format == "PNG" and np.asarray(image).tolist() == stored
    assert check_image(data, "header").encoded == checked.encoded


def test_avif_is_rotated_upright_and_animations_are_rejected():
    Image.init()
    if "AVIF" not in Image.SAVE:
        pytest.skip("this build of Pillow has no AVIF")
    checked = check_image(encode(smooth(), "AVIF", exif=exif(6)), "strict")
    assert (checked.height, checked.width, checked.geometry.orientation) == (61, 45, 6)
    with pytest.raises(InvalidInput, match="AVIF: animated"):
        check_image(animate("AVIF", 2), "strict")


def test_deep_jpeg_2000_is_rejected():
    if "JPEG2000" not in Image.SAVE:
        pytest.skip("this build of Pillow has no JPEG 2000")
    with pytest.raises(InvalidInput, match="JP2: 16 bits per channel"):
        check_image(encode(GREY16, "JPEG2000"), "strict")


def test_avif_inside_a_general_container_is_recognised():
    assert identify(b"\0\0\0\x1cftypmif1\0\0\0\0mif1avif") == "avif"
    assert identify(b"\0\0\0\x1cftypmif1\0\0\0\0mif1heic") == "heic"
    assert identify(b"\0\0\0\x1cftypqt  \0\0\0\0qt  avif") is None
