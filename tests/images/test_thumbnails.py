"""Tests that thumbnails are created for stored images and for rejected images."""

import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from beam_pipelines.errors import InvalidInput
from beam_pipelines.images.images import check_image
from beam_pipelines.images.raw_image import RawImage
from beam_pipelines.images.thumbnails import check_thumbnail, make_thumbnail, make_thumbnail_of_refused, measure_brightness
from made_images import encode, noise


def picture(height: int, width: int) -> np.ndarray:
    """Returns a uint8 array of shape [height, width, 3] whose pixels become brighter from left to right."""
    return np.broadcast_to(np.linspace(0, 255, width).astype(np.uint8)[:, np.newaxis], (height, width, 3)).copy()


def pixels_of(encoded: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(encoded)).convert("RGB")).astype(int)


def npy(values: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, values)
    return file.getvalue()


def test_thumbnail_of_any_image_is_small():
    for data, raw in (
        (encode(picture(300, 500), "JPEG"), None),
        (encode(picture(300, 500), "PNG"), None),
        (encode(np.dstack([picture(300, 500), np.full((300, 500), 9, np.uint8)]), "PNG"), None),
        (picture(300, 500).tobytes(), RawImage(300, 500, 3)),
        (encode(noise(0, 600, 1000), "PNG"), None),
    ):
        thumbnail = make_thumbnail(data, raw)
        assert thumbnail.encoded.startswith(b"\xff\xd8") and len(thumbnail.encoded) <= 24 << 10
        assert pixels_of(thumbnail.encoded).shape[:2] == thumbnail[1:] == (67, 112)
    small = encode(noise(1, 20, 30), "JPEG")
    assert make_thumbnail(small) == (small, 20, 30)
    with pytest.raises(InvalidInput):
        make_thumbnail(small[:200])


def test_thumbnail_of_a_rejected_image_shows_the_decodable_part():
    complete = picture(200, 320)
    frames = [Image.fromarray(complete), Image.fromarray(255 - complete)]
    gif, wrong_sum = io.BytesIO(), bytearray(encode(noise(2, 40, 60), "PNG"))
    frames[0].save(gif, "GIF", save_all=True, append_images=frames[1:])
    wrong_sum[-13] ^= 1  # in the checksum of the last pixels
    jpeg = encode(complete, "JPEG", quality=90)
    cases = {
        "valid": (jpeg, None, complete[::4, ::4]),
        "animated": (gif.getvalue(), None, complete[::4, ::4]),
        "truncated": (jpeg[: len(jpeg) * 3 // 4], None, complete[:100:4, ::4]),
        "truncated in the header": (jpeg[:100], None, None),
        "small and truncated": (encode(complete[:64, :96], "JPEG")[:-30], None, complete[:32, :96]),
        "wrong checksum": (bytes(wrong_sum), None, noise(2, 40, 60)),
        "HTML": (b"<html>404</html>", None, None),
        "empty": (b"", None, None),
        "too few pixels": (complete.tobytes()[:-1], RawImage(200, 320, 3), None),
        "an array": (npy(complete[:100, :100]), None, complete[:100, :100]),
        "a tensor": (npy(complete.astype(np.float32)), None, None),
        "too large": (jpeg.replace(b"\x00\xc8\x01\x40", b"\xff\xff\xff\xff"), None, None),
    }
    for case, (data, raw, expected) in cases.items():
        actual = make_thumbnail_of_refused(data, raw)
        assert (actual is None) == (expected is None), case
        if actual and case != "wrong checksum":  # JPEG compression changes noise
            pixels, expected = pixels_of(actual.encoded), expected.astype(int)
            assert max(pixels.shape) <= 112, case
            across = np.linspace(0, 1, 20)
            seen, wanted = (np.quantile(row, across, method="nearest") for row in (pixels[5, :, 0], expected[5, :, 0]))
            assert np.abs(seen - wanted).mean() < 12, case


def test_invalid_thumbnails_are_rejected():
    for data, message in (
        (bytes(30 << 10), "30720 bytes"),
        (encode(picture(20, 30), "PNG"), "not a JPEG"),
        (encode(picture(200, 100), "JPEG"), "100 x 200 pixels"),
        (encode(picture(20, 30), "JPEG")[:-60], "JPEG: "),
    ):
        with pytest.raises(InvalidInput, match=message):
            check_thumbnail(data)
    check_thumbnail(make_thumbnail(encode(picture(200, 100), "PNG")).encoded)


def test_brightness_is_measured_from_thumbnails():
    light = {value: measure_brightness(make_thumbnail(encode(np.full((50, 70, 3), value, np.uint8), "PNG")).encoded) for value in (0, 51, 255)}
    assert light == pytest.approx({0: 0.0, 51: 0.2, 255: 1.0}, abs=0.01)
    with pytest.raises(InvalidInput):
        measure_brightness(encode(picture(40, 40), "JPEG")[:-60])


@pytest.mark.parametrize("name", ["GIF with sides of 65,535 pixels", "PNG with a corrupt chunk at its end"])
def test_failure_of_a_decoder_on_corrupt_bytes_gives_no_thumbnail(name):
    if name.startswith("GIF"):
        data = b"GIF89a" + struct.pack("<HHBBB", 1, 1, 0, 0, 0) + b"," + struct.pack("<HHHHB", 0, 0, 65535, 65535, 0) + b"\x02\x02\x4c\x01\x00;"
    else:
        complete = encode(noise(0, 8, 8), "PNG")
        start = complete.index(b"IDAT") + 8
        gamma = struct.pack(">I", 2) + b"gAMA" + b"\0\1" + struct.pack(">I", zlib.crc32(b"gAMA\0\1"))
        data = complete[:start] + bytes([complete[start] ^ 1]) + complete[start + 1 : -12] + gamma + complete[-12:]
    with pytest.raises(InvalidInput):
        check_image(data, "strict")
    assert make_thumbnail_of_refused(data) is None
