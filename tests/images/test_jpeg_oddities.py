"""Tests that JPEG files with harmless libjpeg warnings are accepted, and that corrupt JPEG files are rejected."""

import numpy as np
import pytest
from PIL import Image

from beam_pipelines.config.image_config import ImageConfig
from beam_pipelines.errors import InvalidInput
from beam_pipelines.images.image_headers import read_jpeg_header
from beam_pipelines.images.images import check_image
from images.test_images import VALID, GREY_PHOTOGRAPH, PHOTOGRAPH, decode, difference, encode, exif, noisy, smooth

RANDOM = np.random.default_rng(0).bytes(400).replace(b"\xff", b"\0")
PROGRESSIVE = encode(noisy(), "JPEG", progressive=True)
CMYK = encode(smooth().convert("CMYK"), "JPEG", quality=95)


def insert(data: bytes, position: int, more: bytes) -> bytes:
    return data[:position] + more + data[position:]


def unusual_jpegs(data: bytes) -> dict[str, bytes]:
    """Returns JPEG files that contain all pixels but cause libjpeg warnings."""
    segment, end = data.index(b"\xff\xdb"), len(data) - 2
    cases = {
        "bytes between segments": insert(data, segment, b"junk"),
        "bytes with a stuffed zero between segments": insert(data, segment, b"ju\xff\0nk"),
        "padding": insert(data, end, bytes(40)),
        "padding of ones": insert(data, end, b"\x7f" * 40),
        "a camera's trailer": insert(data, end, b"SEFHe\0\0\0\1\0\0\0Image_UTC_Data1419000000000SEFT"),
        "random bytes": insert(data, end, RANDOM),
        "padding and bytes between segments": insert(insert(data, end, bytes(40)), segment, b"junk"),
    }
    if b"JFIF\0" in data:
        version = data.index(b"JFIF\0") + 5
        cases["JFIF 0.00"] = data[:version] + b"\0\0" + data[version + 2 :]
        scan = data.index(b"\xff\xda")
        cases["spectral limits of a progressive scan"] = data[: scan + 11] + b"\0\0\0" + data[scan + 14 :]
    return cases


@pytest.mark.parametrize("check", ["strict", "decode"])
def test_unusual_jpegs_are_accepted_unchanged_and_counted(check):
    for data in (PHOTOGRAPH, GREY_PHOTOGRAPH, CMYK):
        plain = check_image(data, check, full_scale=True)
        assert not plain.is_odd
        for case, item in unusual_jpegs(data).items():
            if data is GREY_PHOTOGRAPH and "spectral limits" in case:
                continue  # the scan header of a grey JPEG is shorter
            for full_scale in (False, True):
                checked = check_image(item, check, full_scale=full_scale)
                assert checked.is_odd, case
                assert (checked.height, checked.width, checked.encoded) == (plain.height, plain.width, plain.encoded), case
            np.testing.assert_array_equal(checked.pixels, plain.pixels, err_msg=case)
            smaller = [check_image(image, check, images=ImageConfig(("short", 20))).encoded for image in (item, data)]
            assert smaller[0] == smaller[1], case


def test_bytes_after_the_end_are_not_counted_as_unusual():
    assert not check_image(PHOTOGRAPH + b"SEFT" * 100, "strict").is_odd


def test_progressive_jpeg_may_have_padding_but_not_unknown_bytes():
    assert check_image(insert(PROGRESSIVE, len(PROGRESSIVE) - 2, bytes(40)), "strict").is_odd
    with pytest.raises(InvalidInput, match="--check decode"):
        check_image(insert(PROGRESSIVE, len(PROGRESSIVE) - 2, RANDOM), "strict")


def test_remaining_compressed_pixels_are_an_error():
    """The height in the JPEG header is too small, so that compressed pixels remain after the last row."""
    for data in (PHOTOGRAPH, GREY_PHOTOGRAPH):
        frame = data.index(b"\xff\xc0")
        for rows in (16, 32, 160):
            short = data[: frame + 5] + (300 - rows).to_bytes(2) + data[frame + 7 :]
            with pytest.raises(InvalidInput, match="extraneous bytes.*--check decode"):
                check_image(short, "strict")
            assert check_image(short, "decode").height == 300 - rows


def test_truncated_jpeg_with_an_end_marker_fails_every_check():
    for data in (PHOTOGRAPH, GREY_PHOTOGRAPH, PROGRESSIVE, CMYK):
        scan = read_jpeg_header(data).num_bytes
        for cut in ((scan + len(data)) // 2, len(data) - 40):
            for check in ("strict", "decode"):
                with pytest.raises(InvalidInput, match="premature end") as error:
                    check_image(data[:cut] + b"\xff\xd9", check)
                assert "--check" not in str(error.value)


def test_corrupt_pixels_fail_strict_which_suggests_check_decode():
    rng, num_suggestions = np.random.default_rng(0), 0
    for position in rng.integers(len(PHOTOGRAPH) // 4, len(PHOTOGRAPH) - 100, 60).tolist():
        item = PHOTOGRAPH[:position] + b"\x55\xaa" + PHOTOGRAPH[position + 2 :]
        try:
            assert not check_image(item, "strict").is_odd
        except InvalidInput as error:
            if "--check decode" in str(error):
                check_image(item, "decode")
                num_suggestions += 1
    assert num_suggestions


def test_header_is_parsed_like_by_libjpeg():
    data, segment = VALID["JPEG"], VALID["JPEG"].index(b"\xff\xdb")
    valid = {
        "restart marker": insert(data, segment, b"\xff\xd0"),
        "temporary marker": insert(data, segment, b"\xff\x01"),
        "padding": insert(data, segment, b"\xff\xff\xff"),
        "zeros": insert(data, segment, bytes(9)),
        "zeros and padding": insert(data, segment, b"\0\xff\xff"),
    }
    for case, item in valid.items():
        for check in ("strict", "decode", "header"):
            assert check_image(item, check).width == 61, case
    rotated = encode(smooth(), "JPEG", exif=exif(6))
    assert check_image(insert(rotated, rotated.index(b"\xff\xdb"), b"junk"), "strict").reencoded == "exif_orientation"
    frame = data.index(b"\xff\xc0")
    length = int.from_bytes(data[frame + 2 : frame + 4]) + 2
    rejected = {
        "two frames": insert(data, frame, data[frame : frame + length]),
        "fractional chroma factor": data[: frame + 11] + b"\x31" + data[frame + 12 : frame + 14] + b"\x21" + data[frame + 15 :],
        "junk up to the end": data[:segment] + bytes(100),
    }
    for case, item in rejected.items():
        for check in ("strict", "decode", "header"):
            with pytest.raises(InvalidInput, match="^JPEG: "):
                check_image(item, check)


def without_adobe_segment(data: bytes) -> bytes:
    start = data.index(b"\xff\xee")
    return data[:start] + data[start + 2 + int.from_bytes(data[start + 2 : start + 4]) :]


@pytest.mark.parametrize("check", ["strict", "decode", "header"])
def test_cmyk_values_are_inverted_if_the_adobe_segment_is_present(check):
    red = np.zeros((32, 48, 4), np.uint8)
    red[..., 1:3] = 255
    inverted, plain = (encode(Image.fromarray(inks, "CMYK"), "JPEG", quality=95) for inks in (red, 255 - red))
    for data in (inverted, without_adobe_segment(plain)):
        for images in (ImageConfig(), ImageConfig(("short", 8)), ImageConfig(format="png")):
            stored = decode(check_image(data, check, images=images).encoded).convert("RGB")
            assert difference(stored, Image.new("RGB", stored.size, (255, 0, 0))) < 2
