"""Tests decoding JPEGs and PNGs to 8-bit RGB, decoding masks, and decoding a part of an image."""

import io

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from made_images import encode
from made_records import encode_mask
from prepared import picture
from tf_input.features import decode_images
from tf_input.features.mask import decode_mask_boxes, decode_masks
from tf_input.features.crop_geometry import compute_crops

PICTURE = picture(seed=0, image_size=(40, 60))


def save(image: Image.Image, image_format: str, **options) -> bytes:
    encoded = io.BytesIO()
    image.save(encoded, image_format, **options)
    return encoded.getvalue()


def to_rgb(gray: np.ndarray) -> np.ndarray:
    return np.repeat(gray[..., np.newaxis], 3, axis=-1)


def test_every_kind_of_png_becomes_8_bit_rgb():
    image = Image.fromarray(PICTURE)
    gray = np.asarray(image.convert("L"))
    palette = image.convert("P", palette=Image.Palette.ADAPTIVE)
    cases = {
        "color": (image, {}, PICTURE),
        "gray": (image.convert("L"), {}, to_rgb(gray)),
        "16-bit gray": (Image.fromarray((gray.astype(np.uint16) << 8) + 0x90), {}, to_rgb(gray)),
        "alpha": (Image.fromarray(np.dstack([PICTURE, gray])), {}, PICTURE),
        "gray with alpha": (image.convert("LA"), {}, to_rgb(gray)),
        "palette": (palette, {}, np.asarray(palette.convert("RGB"))),
        "palette with alpha": (palette, {"transparency": 3}, np.asarray(palette.convert("RGB"))),
        "1 bit": (image.convert("1"), {}, to_rgb(np.asarray(image.convert("1").convert("L")))),
    }
    for case, (original, options, expected) in cases.items():
        decoded = decode_images.decode_image(save(original, "PNG", **options))
        assert decoded.dtype == tf.uint8, case
        np.testing.assert_array_equal(decoded, expected, err_msg=case)


def test_every_kind_of_jpeg_becomes_rgb():
    image = Image.fromarray(PICTURE)
    cases = {
        "color": (image, {}),
        "no chroma subsampling": (image, {"subsampling": 0}),
        "progressive": (image, {"progressive": True}),
        "gray": (image.convert("L"), {}),
    }
    for case, (original, options) in cases.items():
        decoded = decode_images.decode_image(save(original, "JPEG", quality=95, **options))
        assert decoded.dtype == tf.uint8 and decoded.shape == (40, 60, 3), case
        difference = decoded.numpy().astype(float) - np.asarray(original.convert("RGB"))
        assert np.abs(difference).mean() < 3, case


@pytest.mark.parametrize("image_format", ["PNG", "JPEG"])
def test_boxes_are_cropped_and_resized(image_format):
    boxes = [(0, 0, 40, 60), (8, 16, 16, 16), (3, 5, 30, 41), (39, 59, 1, 1), (0, 0, 1, 60)]
    encoded = encode(PICTURE, image_format)
    complete = decode_images.decode_image(encoded).numpy()
    for image_size in [(16, 16), (24, 10), (1, 1), (80, 90)]:
        images = decode_images.decode_boxes(tf.fill([len(boxes)], encoded), tf.constant(boxes), image_size)
        assert (images.shape, images.dtype) == ((len(boxes), *image_size, 3), tf.uint8)
        for (top, left, height, width), image in zip(boxes, images):
            expected = tf.image.resize(complete[top : top + height, left : left + width], image_size)
            # For a JPEG with subsampled chroma, the edge of a box may differ slightly.
            difference = np.abs(tf.cast(image, tf.float32) - expected)
            assert difference.max() <= (0.5 if image_format == "PNG" else 20), (top, left, height, width)
            assert difference.mean() <= 2, (top, left, height, width)


def test_box_with_the_target_size_is_not_changed():
    images = decode_images.decode_boxes(tf.constant([encode(PICTURE, "PNG")]), tf.constant([[3, 5, 20, 30]]), (20, 30))
    np.testing.assert_array_equal(images[0], PICTURE[3:23, 5:35])


def test_selected_images_are_flipped():
    encoded, boxes = tf.fill([3], encode(PICTURE, "PNG")), tf.constant([[0, 0, 40, 60]] * 3)
    images = decode_images.decode_boxes(encoded, boxes, (40, 60), tf.constant([True, False, True]))
    for image, expected in zip(images, (PICTURE[:, ::-1], PICTURE, PICTURE[:, ::-1]), strict=True):
        np.testing.assert_array_equal(image, expected)


def test_box_can_be_padded_with_black():
    encoded = tf.fill([2], encode(PICTURE, "PNG"))
    boxes, extents = tf.constant([[0, 0, 40, 60]] * 2), tf.constant([[20, 31], [1, 31]])
    images = decode_images.decode_boxes(encoded, boxes, (21, 31), tf.constant([True, False]), extents).numpy()
    np.testing.assert_array_equal(images[0, 20:], 0)  # The padding has one more row below.
    expected = tf.image.resize(PICTURE, (20, 31))[:, ::-1]
    assert np.abs(images[0, :20] - expected.numpy()).max() <= 0.5
    assert images[1, 10].any() and not np.delete(images[1], 10, axis=0).any()


def detailed_picture(size: tuple[int, int]) -> np.ndarray:
    """Returns a uint8 image [height, width, 3] with details of several sizes, as in a photograph."""
    random, layers = np.random.default_rng(0), np.zeros((*size, 3))
    for cell in (3, 6, 12, 48):
        noise = random.integers(0, 256, (-(-size[0] // cell), -(-size[1] // cell), 3), dtype=np.uint8)
        layers += np.asarray(Image.fromarray(noise).resize(size[::-1], Image.Resampling.BICUBIC)) / 4
    return layers.astype(np.uint8)


def psnr(image: np.ndarray, expected: np.ndarray) -> float:
    return 10 * np.log10(255**2 / np.mean((image.astype(float) - expected) ** 2))


@pytest.mark.parametrize("fit", ["crop", "stretch", "pad"])
def test_large_jpeg_is_decoded_at_reduced_size_with_better_quality(fit):
    for size, ratio in (((601, 451), 4), ((333, 259), 2), ((1003, 1001), 8)):  # These sizes leave a partial JPEG block.
        pixels, image_size = detailed_picture(size), (100, 100)
        encoded = tf.constant([encode(pixels, "JPEG", quality=95)])
        psnrs = {}
        for scales in (False, True):
            crops = compute_crops(tf.constant([size]), image_size, fit, scales=scales)
            image = decode_images.decode_boxes(encoded, crops.boxes, image_size, None, crops.extents, crops.ratios)[0].numpy()
            top, left, height, width = crops.boxes[0].numpy()
            extent = image_size if crops.extents is None else tuple(crops.extents[0].numpy())
            resized = tf.image.resize(pixels[top : top + height, left : left + width], extent, antialias=True)
            gap_top, gap_left = ((100 - side) // 2 for side in extent)
            psnrs[scales] = psnr(image[gap_top : gap_top + extent[0], gap_left : gap_left + extent[1]], resized.numpy())
        assert crops.ratios.numpy().tolist() == [ratio], size
        assert psnrs[True] > max(28, psnrs[False] + 2), (size, psnrs)


def test_only_jpegs_are_decoded_at_reduced_size():
    pixels = picture(0, (64, 96))
    encoded = tf.constant([encode(pixels, "PNG"), encode(pixels, "JPEG", quality=95), encode(pixels[..., 0], "JPEG")])
    boxes = tf.constant([[8, 16, 40, 80]] * 3)
    images = decode_images.decode_boxes(encoded, boxes, (5, 10), ratios=tf.constant([8, 8, 1])).numpy()
    np.testing.assert_array_equal(images[0], decode_images.decode_boxes(encoded[:1], boxes[:1], (5, 10))[0])
    np.testing.assert_array_equal(images[2], decode_images.decode_boxes(encoded[2:], boxes[:1], (5, 10))[0])
    blocks = pixels[8:48, 16:96].reshape(5, 8, 10, 8, 3).mean(axis=(1, 3))
    assert np.abs(images[1] - blocks).max() < 6 < np.abs(images[0] - blocks).max()


def test_raw_pixels_are_read_unchanged():
    for shape in ((4, 5, 3), (4, 5, 1)):
        pixels = np.random.default_rng(0).integers(0, 256, (3, *shape), dtype=np.uint8)
        stored = tf.constant([pixel.tobytes() for pixel in pixels])
        for read in (decode_images.decode_pixels, tf.function(decode_images.decode_pixels)):
            np.testing.assert_array_equal(read(stored, shape), pixels)


def test_raw_pixels_with_wrong_number_of_bytes_raise():
    for stored in ([bytes(12), bytes(13)], [bytes(24)], [b""]):
        with pytest.raises((ValueError, tf.errors.InvalidArgumentError)):
            decode_images.decode_pixels(tf.constant(stored), (2, 2, 3))
            pytest.fail(str(stored))


MASK = np.arange(24, dtype=np.uint8).reshape(4, 6) * 11
DEEP_MASK = MASK.astype(np.uint16) * 250


def test_masks_of_8_and_16_bits_keep_their_values():
    encoded = tf.constant([encode_mask(MASK), encode_mask(DEEP_MASK), encode_mask(MASK.astype(np.uint16))])
    masks = decode_masks(encoded, (4, 6))
    assert (masks.shape, masks.dtype) == ((3, 4, 6, 1), tf.uint16)
    np.testing.assert_array_equal(masks[..., 0], [MASK, DEEP_MASK, MASK])


def test_mask_boxes_follow_the_boxes_of_their_images():
    encoded, sizes = tf.constant([encode_mask(MASK), encode_mask(DEEP_MASK)]), tf.constant([[4, 6]] * 2)
    boxes, flipped = tf.constant([[1, 2, 2, 3], [0, 0, 4, 6]]), tf.constant([False, True])
    masks = decode_mask_boxes(encoded, sizes, boxes, (4, 6), flipped)[..., 0]
    np.testing.assert_array_equal(masks[0], np.repeat(np.repeat(MASK[1:3, 2:5], 2, axis=0), 2, axis=1))
    np.testing.assert_array_equal(masks[1], DEEP_MASK[:, ::-1])
    framed = decode_mask_boxes(encoded, sizes, boxes, (6, 6), None, tf.constant([[2, 3], [4, 6]]))[..., 0]
    np.testing.assert_array_equal(framed[0], np.pad(MASK[1:3, 2:5], [(2, 2), (1, 2)]))
    np.testing.assert_array_equal(framed[1], np.pad(DEEP_MASK, [(1, 1), (0, 0)]))


def test_invalid_masks_raise():
    palette = Image.fromarray(PICTURE).convert("P", palette=Image.Palette.ADAPTIVE)
    cases = {
        "palette": save(palette, "PNG"),
        "colors": encode(PICTURE, "PNG"),
        "1 bit": save(palette.convert("1"), "PNG"),
        "JPEG": encode(PICTURE[..., 0], "JPEG"),
        "another size": encode_mask(MASK),
    }
    sizes, boxes = tf.constant([[40, 60]]), tf.constant([[0, 0, 2, 2]])
    for case, encoded in cases.items():
        for read in (
            lambda masks: decode_masks(masks, (40, 60)),
            lambda masks: decode_mask_boxes(masks, sizes, boxes, (2, 2)),
        ):
            with pytest.raises((ValueError, tf.errors.InvalidArgumentError)):
                read(tf.constant([encoded]))
                pytest.fail(case)


def test_box_beyond_the_image_raises():
    for image_format in ("PNG", "JPEG"):
        encoded = tf.constant([encode(PICTURE, image_format)])
        for box in ([0, 0, 41, 60], [20, 0, 30, 60], [-1, 0, 10, 10]):
            with pytest.raises(tf.errors.InvalidArgumentError):
                decode_images.decode_boxes(encoded, tf.constant([box]), (8, 8))
                pytest.fail(f"{image_format} {box}")


def test_stored_sizes_are_read_from_encoded_bytes():
    images = [picture(0, (40, 60)), picture(1, (7, 90))[..., 0], picture(2, (1, 1))]
    encoded = [encode(image, image_format) for image in images for image_format in ("JPEG", "PNG", "BMP")]
    sizes = decode_images.stored_sizes(tf.constant(encoded))
    assert sizes.dtype == tf.int32
    assert sizes.numpy().tolist() == [list(image.shape[:2]) for image in images for _ in range(3)]


def test_central_box_has_the_aspect_ratio_of_the_target():
    cases = [
        # Columns: image, target, box.
        ((40, 60), (224, 224), (0, 10, 40, 40)),
        ((60, 40), (224, 224), (10, 0, 40, 40)),
        ((40, 60), (20, 30), (0, 0, 40, 60)),
        ((40, 60), (10, 20), (5, 0, 30, 60)),
        ((41, 60), (8, 8), (0, 9, 41, 41)),
        ((1, 1000), (224, 224), (0, 499, 1, 1)),
        ((1000, 1), (2, 200), (499, 0, 1, 1)),
        ((32, 32), (32, 32), (0, 0, 32, 32)),
    ]
    for size, target, expected in cases:
        assert tuple(decode_images.central_boxes(tf.constant([size]), target)[0].numpy()) == expected, (size, target)
