"""png_files: which PNGs are accepted, and that TensorFlow decodes these."""

import concurrent.futures
import io
import struct
import time
import tracemalloc
import zlib

import numpy as np
import pytest
from PIL import Image

from beam_pipelines.config.image_config import ImageConfig
from beam_pipelines.errors import InvalidInput
from beam_pipelines.images.class_masks import read_mask
from beam_pipelines.images.images import check_image
from beam_pipelines.images.png_files import read_png
from beam_pipelines.images.rotations import LARGE_PIXELS, in_turn
from images.test_images import SEEDS, encode, make_png, noisy

SIDE = 8


def header(color_type: int = 2, num_bits: int = 8, compression: int = 0, filtering: int = 0, interlacing: int = 0) -> bytes:
    return struct.pack(">IIBBBBB", SIDE, SIDE, num_bits, color_type, compression, filtering, interlacing)


def pixels(data: bytes) -> tuple[bytes, bytes]:
    return b"IDAT", zlib.compress(data)


RGB, GREY, PALETTE, END = header(), header(0), header(3), (b"IEND", b"")
ROWS, GREY_ROWS = bytes(SIDE * (1 + 3 * SIDE)), bytes(SIDE * (1 + SIDE))
TEXT, COLORS = (b"tEXt", b"a\0b"), (b"PLTE", bytes(range(48)))
PARTS = [(b"IDAT", zlib.compress(ROWS)[:9]), (b"IDAT", zlib.compress(ROWS)[9:])]

SOUND = {
    "plain": make_png(RGB, pixels(ROWS), END),
    "parts": make_png(RGB, *PARTS, END),
    "empty parts": make_png(RGB, (b"IDAT", b""), *PARTS, (b"IDAT", b""), END),
    "interlaced": make_png(header(interlacing=1), pixels(bytes(3 * SIDE * SIDE + 15)), END),
    "more rows than there are": make_png(RGB, pixels(2 * ROWS), END),
    "bytes behind the pixels": make_png(RGB, (b"IDAT", zlib.compress(ROWS) + b"more"), END),
    "pixels again, behind a text": make_png(RGB, pixels(ROWS), TEXT, pixels(b""), END),
    "a palette behind the pixels": make_png(RGB, pixels(ROWS), COLORS, END),
    "a corrupt palette that is not used": make_png(RGB, (b"PLTE", bytes(7)), pixels(ROWS), END),
    "a palette of a grey image": make_png(GREY, COLORS, pixels(GREY_ROWS), END),
    "fewer colors than indexes": make_png(PALETTE, (b"PLTE", bytes(6)), pixels((b"\0" + bytes([200] * SIDE)) * SIDE), END),
    "transparency, too short": make_png(RGB, (b"tRNS", b"\0"), pixels(ROWS), END),
    "transparency, too short, behind the pixels": make_png(GREY, pixels(GREY_ROWS), (b"tRNS", b"\0"), END),
    "transparency, above 256": make_png(PALETTE, COLORS, (b"tRNS", bytes(300)), pixels(GREY_ROWS), END),
    "transparency before the palette": make_png(PALETTE, (b"tRNS", bytes(3)), COLORS, pixels(GREY_ROWS), END),
    "transparency of colors that there are not": make_png(PALETTE, COLORS, (b"tRNS", bytes(20)), pixels(GREY_ROWS), END),
    "an IEND with a body": make_png(RGB, pixels(ROWS), (b"IEND", b"x")),
}
CORRUPT = {
    "rows are missing": make_png(RGB, pixels(ROWS[:25]), END),
    "half a row is missing": make_png(RGB, pixels(ROWS[:-12]), END),
    "an interlaced row is missing": make_png(header(interlacing=1), pixels(bytes(3 * SIDE * SIDE + 14)), END),
    "the compressed pixels have no end": make_png(RGB, (b"IDAT", zlib.compress(ROWS)[:-4]), END),
    "a checksum of pixels is wrong": make_png(RGB, (b"IDAT", zlib.compress(ROWS)[:-4] + b"abcd"), END),
    "an unknown filter": make_png(RGB, pixels(ROWS[:25] + b"\5" + ROWS[26:]), END),
    "pixels in two places": make_png(RGB, PARTS[0], TEXT, PARTS[1], END),
    "no pixels": make_png(RGB, END),
    "a chunk before the header": make_png(RGB, pixels(ROWS), END).replace(b"\0\0\0\rIHDR", make_png(b"", TEXT)[20:] + b"\0\0\0\rIHDR"),
    "a second header": make_png(RGB, (b"IHDR", RGB), pixels(ROWS), END),
    "a second header behind the pixels": make_png(RGB, pixels(ROWS), (b"IHDR", RGB), END),
    "two palettes": make_png(PALETTE, COLORS, COLORS, pixels(GREY_ROWS), END),
    "two palettes that are not used": make_png(RGB, COLORS, COLORS, pixels(ROWS), END),
    "no palette": make_png(PALETTE, pixels(GREY_ROWS), END),
    "a corrupt palette": make_png(PALETTE, (b"PLTE", bytes(7)), pixels(GREY_ROWS), END),
    "an empty palette": make_png(PALETTE, (b"PLTE", b""), pixels(GREY_ROWS), END),
    "a palette above 256": make_png(PALETTE, (b"PLTE", bytes(900)), pixels(GREY_ROWS), END),
    "an unknown depth": make_png(header(num_bits=5), pixels(ROWS), END),
    "a depth that colors do not have": make_png(header(num_bits=4), pixels(ROWS), END),
    "an unknown compression": make_png(header(compression=1), pixels(ROWS), END),
    "an unknown filtering": make_png(header(filtering=64), pixels(ROWS), END),
    "an unknown interlacing": make_png(header(interlacing=2), pixels(ROWS), END),
    "a corrupt name": make_png(RGB, pixels(ROWS), (b"a1Cd", b""), END),
    "an unknown chunk that matters": make_png(RGB, pixels(ROWS), (b"ABCD", b""), END),
}


@pytest.mark.parametrize("full_scale", [False, True])
@pytest.mark.parametrize("check", ["strict", "decode"])
def test_accepts_what_libpng_reads_and_nothing_else(check, full_scale):
    for case, data in SOUND.items():
        assert check_image(data, check, full_scale=full_scale).encoded is None, case
    for case, data in CORRUPT.items():
        with pytest.raises(InvalidInput, match="^PNG: ") as error:
            check_image(data, check, full_scale=full_scale)
        assert error.value.reason == "bad_image", case


@pytest.mark.parametrize("check", ["strict", "decode", "header"])
def test_missing_rows_are_never_stored_black(check):
    for case in ("rows are missing", "half a row is missing", "pixels in two places", "no pixels"):
        for images in (ImageConfig(("exact", 4, 4)), ImageConfig(format="jpeg"), ImageConfig(encoding="raw")):
            with pytest.raises(InvalidInput, match="^PNG: truncated"):
                check_image(CORRUPT[case], check, images=images)


def test_a_corrupt_png_is_no_mask():
    for case, data in {**CORRUPT, **SOUND}.items():
        if data[25] in (0, 3) and case in SOUND:
            assert read_mask(data).shape == (SIDE, SIDE), case
        else:
            with pytest.raises(InvalidInput) as error:
                read_mask(data)
            assert error.value.reason == "bad_mask", case


def test_pixels_are_those_of_pillow():
    for case, data in {**SEEDS, "large": encode(noisy(700, 900), "PNG")}.items():
        if "PNG" in case and "APNG" not in case or case == "large":
            stored, actual = (np.asarray(Image.open(io.BytesIO(item))) for item in (read_png(data, True).to_stored(), data))
            np.testing.assert_array_equal(stored, actual, err_msg=case)


def test_rows_are_checked_in_constant_memory():
    side = 4096
    large = make_png(struct.pack(">IIBBBBB", side, side, 16, 0, 0, 0, 0), pixels(bytes(side * (1 + 2 * side))), END)
    tracemalloc.start()
    try:
        assert check_image(large, "strict").is_deep
        assert tracemalloc.get_traced_memory()[1] < 4 << 20, "decoded it has 32 MiB"
    finally:
        tracemalloc.stop()


def test_large_images_are_decoded_one_at_a_time():
    now, most = [0], [0]

    def work(num_pixels: int) -> None:
        with in_turn(num_pixels):
            now[0] += 1
            most[0] = max(most[0], now[0])
            time.sleep(0.02)
            now[0] -= 1

    for num_pixels, expected in ((LARGE_PIXELS + 1, 1), (LARGE_PIXELS, 4)):
        most[0] = 0
        with concurrent.futures.ThreadPoolExecutor(4) as threads:
            list(threads.map(work, [num_pixels] * 4))
        assert most[0] == expected
