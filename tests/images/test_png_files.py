"""Tests that a PNG file is accepted if and only if libpng can read the file."""

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


def make_header(color_type: int = 2, num_bits: int = 8, compression: int = 0, filtering: int = 0, interlacing: int = 0) -> bytes:
    return struct.pack(">IIBBBBB", SIDE, SIDE, num_bits, color_type, compression, filtering, interlacing)


def pixel_chunk(data: bytes) -> tuple[bytes, bytes]:
    return b"IDAT", zlib.compress(data)


RGB, GREY, PALETTE, END = make_header(), make_header(0), make_header(3), (b"IEND", b"")
ROWS, GREY_ROWS = bytes(SIDE * (1 + 3 * SIDE)), bytes(SIDE * (1 + SIDE))
TEXT, COLORS = (b"tEXt", b"a\0b"), (b"PLTE", bytes(range(48)))
PARTS = [(b"IDAT", zlib.compress(ROWS)[:9]), (b"IDAT", zlib.compress(ROWS)[9:])]

VALID_PNGS = {
    "plain": make_png(RGB, pixel_chunk(ROWS), END),
    "parts": make_png(RGB, *PARTS, END),
    "empty parts": make_png(RGB, (b"IDAT", b""), *PARTS, (b"IDAT", b""), END),
    "interlaced": make_png(make_header(interlacing=1), pixel_chunk(bytes(3 * SIDE * SIDE + 15)), END),
    "too many rows": make_png(RGB, pixel_chunk(2 * ROWS), END),
    "bytes after the pixels": make_png(RGB, (b"IDAT", zlib.compress(ROWS) + b"more"), END),
    "empty pixel chunk after a text": make_png(RGB, pixel_chunk(ROWS), TEXT, pixel_chunk(b""), END),
    "palette after the pixels": make_png(RGB, pixel_chunk(ROWS), COLORS, END),
    "unused corrupt palette": make_png(RGB, (b"PLTE", bytes(7)), pixel_chunk(ROWS), END),
    "palette in a grey image": make_png(GREY, COLORS, pixel_chunk(GREY_ROWS), END),
    "fewer colors than indexes": make_png(PALETTE, (b"PLTE", bytes(6)), pixel_chunk((b"\0" + bytes([200] * SIDE)) * SIDE), END),
    "transparency, too short": make_png(RGB, (b"tRNS", b"\0"), pixel_chunk(ROWS), END),
    "transparency, too short, after the pixels": make_png(GREY, pixel_chunk(GREY_ROWS), (b"tRNS", b"\0"), END),
    "transparency, more than 256 values": make_png(PALETTE, COLORS, (b"tRNS", bytes(300)), pixel_chunk(GREY_ROWS), END),
    "transparency before the palette": make_png(PALETTE, (b"tRNS", bytes(3)), COLORS, pixel_chunk(GREY_ROWS), END),
    "transparency of missing colors": make_png(PALETTE, COLORS, (b"tRNS", bytes(20)), pixel_chunk(GREY_ROWS), END),
    "IEND with a body": make_png(RGB, pixel_chunk(ROWS), (b"IEND", b"x")),
}
CORRUPT_PNGS = {
    "missing rows": make_png(RGB, pixel_chunk(ROWS[:25]), END),
    "missing half row": make_png(RGB, pixel_chunk(ROWS[:-12]), END),
    "missing interlaced row": make_png(make_header(interlacing=1), pixel_chunk(bytes(3 * SIDE * SIDE + 14)), END),
    "compressed pixels without an end": make_png(RGB, (b"IDAT", zlib.compress(ROWS)[:-4]), END),
    "wrong checksum of pixels": make_png(RGB, (b"IDAT", zlib.compress(ROWS)[:-4] + b"abcd"), END),
    "an unknown filter": make_png(RGB, pixel_chunk(ROWS[:25] + b"\5" + ROWS[26:]), END),
    "pixels in two places": make_png(RGB, PARTS[0], TEXT, PARTS[1], END),
    "no pixels": make_png(RGB, END),
    "a chunk before the header": make_png(RGB, pixel_chunk(ROWS), END).replace(b"\0\0\0\rIHDR", make_png(b"", TEXT)[20:] + b"\0\0\0\rIHDR"),
    "a second header": make_png(RGB, (b"IHDR", RGB), pixel_chunk(ROWS), END),
    "a second header after the pixels": make_png(RGB, pixel_chunk(ROWS), (b"IHDR", RGB), END),
    "two palettes": make_png(PALETTE, COLORS, COLORS, pixel_chunk(GREY_ROWS), END),
    "two unused palettes": make_png(RGB, COLORS, COLORS, pixel_chunk(ROWS), END),
    "no palette": make_png(PALETTE, pixel_chunk(GREY_ROWS), END),
    "a corrupt palette": make_png(PALETTE, (b"PLTE", bytes(7)), pixel_chunk(GREY_ROWS), END),
    "an empty palette": make_png(PALETTE, (b"PLTE", b""), pixel_chunk(GREY_ROWS), END),
    "palette with more than 256 colors": make_png(PALETTE, (b"PLTE", bytes(900)), pixel_chunk(GREY_ROWS), END),
    "an unknown depth": make_png(make_header(num_bits=5), pixel_chunk(ROWS), END),
    "invalid depth for colors": make_png(make_header(num_bits=4), pixel_chunk(ROWS), END),
    "an unknown compression": make_png(make_header(compression=1), pixel_chunk(ROWS), END),
    "an unknown filtering": make_png(make_header(filtering=64), pixel_chunk(ROWS), END),
    "an unknown interlacing": make_png(make_header(interlacing=2), pixel_chunk(ROWS), END),
    "a corrupt name": make_png(RGB, pixel_chunk(ROWS), (b"a1Cd", b""), END),
    "unknown critical chunk": make_png(RGB, pixel_chunk(ROWS), (b"ABCD", b""), END),
}


@pytest.mark.parametrize("full_scale", [False, True])
@pytest.mark.parametrize("check", ["strict", "decode"])
def test_exactly_the_files_that_libpng_reads_are_accepted(check, full_scale):
    for case, data in VALID_PNGS.items():
        assert check_image(data, check, full_scale=full_scale).encoded is None, case
    for case, data in CORRUPT_PNGS.items():
        with pytest.raises(InvalidInput, match="^PNG: ") as error:
            check_image(data, check, full_scale=full_scale)
        assert error.value.reason == "bad_image", case


@pytest.mark.parametrize("check", ["strict", "decode", "header"])
def test_missing_rows_are_never_stored_as_black(check):
    for case in ("missing rows", "missing half row", "pixels in two places", "no pixels"):
        for images in (ImageConfig(("exact", 4, 4)), ImageConfig(format="jpeg"), ImageConfig(encoding="raw")):
            with pytest.raises(InvalidInput, match="^PNG: truncated"):
                check_image(CORRUPT_PNGS[case], check, images=images)


def test_corrupt_png_is_not_a_mask():
    for case, data in {**CORRUPT_PNGS, **VALID_PNGS}.items():
        if data[25] in (0, 3) and case in VALID_PNGS:
            assert read_mask(data).shape == (SIDE, SIDE), case
        else:
            with pytest.raises(InvalidInput) as error:
                read_mask(data)
            assert error.value.reason == "bad_mask", case


def test_pixels_match_pillow():
    for case, data in {**SEEDS, "large": encode(noisy(700, 900), "PNG")}.items():
        if "PNG" in case and "APNG" not in case or case == "large":
            stored, actual = (np.asarray(Image.open(io.BytesIO(item))) for item in (read_png(data, True).to_stored(), data))
            np.testing.assert_array_equal(stored, actual, err_msg=case)


def test_rows_are_checked_in_constant_memory():
    side = 4096
    large = make_png(struct.pack(">IIBBBBB", side, side, 16, 0, 0, 0, 0), pixel_chunk(bytes(side * (1 + 2 * side))), END)
    tracemalloc.start()
    try:
        assert check_image(large, "strict").is_deep
        assert tracemalloc.get_traced_memory()[1] < 4 << 20, "the decoded image has 32 MiB"
    finally:
        tracemalloc.stop()


def test_large_images_are_decoded_one_at_a_time():
    active, most = [0], [0]

    def work(num_pixels: int) -> None:
        with in_turn(num_pixels):
            active[0] += 1
            most[0] = max(most[0], active[0])
            time.sleep(0.02)
            active[0] -= 1

    for num_pixels, expected in ((LARGE_PIXELS + 1, 1), (LARGE_PIXELS, 4)):
        most[0] = 0
        with concurrent.futures.ThreadPoolExecutor(4) as threads:
            list(threads.map(work, [num_pixels] * 4))
        assert most[0] == expected
