"""Tests that boxes, masks and dense targets are cropped, flipped and padded like their image."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

import tf_input
from beam_pipelines.__main__ import main
from made_images import encode, write_files
from made_records import encode_mask
from prepared import picture
from tf_input.features import decode_images
from tf_input.features.mask import decode_mask_boxes
from tf_input.features.decode_images import MAX_SMALL_SIDE
from tf_input.features.bbox import move_boxes
from tf_input.features.crop_geometry import CropGeometry, fitting_extents, compute_crops, crop_dense_targets, crop_masks, crop_pixels
from tf_input.read_config import INTERPOLATIONS, Augmentation

SIZE = (40, 60)


def make_crop(box, flipped=False, extent=None, image_size=(20, 20), size=SIZE) -> CropGeometry:
    extents = None if extent is None else tf.constant([extent])
    return CropGeometry(tf.constant([size]), tf.constant([box]), tf.constant([flipped]), extents, image_size)


def test_compute_crops_gives_boxes_extents_and_canvases():
    cases = [
        # Columns: size, image_size, fit, box, extent, canvas.
        ((40, 60), (20, 20), "crop", (0, 10, 40, 40), None, (0, 10 / 60, 1, 50 / 60)),
        ((40, 60), (20, 20), "stretch", (0, 0, 40, 60), None, (0, 0, 1, 1)),
        ((40, 60), (30, 30), "pad", (0, 0, 40, 60), (20, 30), (-0.25, 0, 1.25, 1)),
        ((60, 40), (30, 30), "pad", (0, 0, 60, 40), (30, 20), (0, -0.25, 1, 1.25)),
        ((1, 1000), (10, 10), "pad", (0, 0, 1, 1000), (1, 10), (-4, 0, 6, 1)),
        ((20, 30), (40, 60), "pad", (0, 0, 20, 30), (40, 60), (0, 0, 1, 1)),  # The image is enlarged.
    ]
    for size, image_size, fit, box, extent, canvas in cases:
        crops = compute_crops(tf.constant([size]), image_size, fit)
        case = (size, image_size, fit)
        assert tuple(crops.boxes[0].numpy()) == box, case
        assert (None if crops.extents is None else tuple(crops.extents[0].numpy())) == extent, case
        np.testing.assert_allclose(crops.canvas_boxes()[0], canvas, atol=1e-6, err_msg=str(case))


def test_augmentation_without_crop_uses_the_fit():
    sizes, seed = tf.constant([SIZE] * 50), tf.constant([3, 0], tf.int64)
    cropped = compute_crops(sizes, (20, 20), "crop", Augmentation(), seed)
    assert len(np.unique(cropped.boxes, axis=0)) > 40
    complete = compute_crops(sizes, (20, 20), "stretch", Augmentation(crop=False), seed)
    assert np.unique(complete.boxes, axis=0).tolist() == [[0, 0, 40, 60]]
    np.testing.assert_array_equal(complete.flipped, cropped.flipped)
    assert 10 < complete.flipped.numpy().sum() < 40


@settings(max_examples=50, deadline=None)
@given(st.tuples(st.integers(1, 5000), st.integers(1, 5000)), st.tuples(st.integers(1, 600), st.integers(1, 600)))
def test_fitting_extent_fills_one_side_of_the_canvas(size, image_size):
    extent = fitting_extents(tf.constant([size]), image_size)[0].numpy()
    assert (extent >= 1).all() and (extent <= image_size).all() and (extent == image_size).any()
    scale = min(image_size[0] / size[0], image_size[1] / size[1])
    assert np.abs(extent - np.maximum(1, np.array(size) * scale)).max() <= 0.51


def test_boxes_are_moved_with_the_crop():
    center_box = (0.25, 0.25, 0.75, 0.75)  # In pixels: 10, 15, 30, 45.
    cases = [
        # Columns: crop, box, box within the crop, valid.
        (make_crop((0, 0, 40, 60)), center_box, center_box, True),
        (make_crop((10, 15, 20, 30)), center_box, (0, 0, 1, 1), True),
        (make_crop((0, 0, 40, 30)), center_box, (0.25, 0.5, 0.75, 1), True),
        (make_crop((0, 0, 40, 29)), center_box, (0.25, 15 / 29, 0.75, 1), False),
        (make_crop((0, 0, 40, 60), flipped=True), (0, 0.1, 1, 0.3), (0, 0.7, 1, 0.9), True),
        (make_crop((0, 0, 40, 30), flipped=True), (0.25, 0.25, 0.75, 0.5), (0.25, 0, 0.75, 0.5), True),
        (make_crop((0, 0, 40, 60), extent=(10, 20)), center_box, (0.375, 0.25, 0.625, 0.75), True),
        (make_crop((0, 0, 40, 60), extent=(20, 10), flipped=True), (0, 0, 1, 0.5), (0, 0.5, 1, 0.75), True),
    ]
    for crops, box, expected, valid in cases:
        boxes, seen = move_boxes(tf.ragged.constant([[box]], inner_shape=(4,), ragged_rank=1), crops)
        np.testing.assert_allclose(boxes.values[0], expected, atol=1e-6, err_msg=str(crops))
        assert seen.to_list() == [[valid]], crops


def test_each_box_follows_the_crop_of_its_image():
    crops = CropGeometry(tf.constant([SIZE] * 3), tf.constant([[0, 0, 40, 60], [0, 0, 40, 30], [0, 0, 20, 60]]), None, None, (8, 8))
    boxes = tf.ragged.constant([[[0, 0, 0.5, 0.5]], [], [[0, 0, 0.5, 0.5]] * 2], tf.float32, ragged_rank=1, inner_shape=(4,))
    moved, seen = move_boxes(boxes, crops)
    assert moved.to_list() == [[[0, 0, 0.5, 0.5]], [], [[0, 0, 1, 0.5]] * 2]
    assert seen.to_list() == [[True], [], [True, True]]


CROPS = {
    "complete image": dict(box=(0, 0, 40, 60)),
    "crop": dict(box=(3, 5, 30, 41)),
    "enlarged": dict(box=(3, 5, 10, 11), image_size=(33, 41)),
    "flipped": dict(box=(3, 5, 30, 41), flipped=True),
    "one pixel": dict(box=(39, 59, 1, 1), image_size=(3, 2)),
    "resized to one pixel": dict(box=(0, 0, 40, 60), image_size=(1, 1)),
    "padded": dict(box=(0, 0, 40, 60), extent=(13, 19)),
    "flipped and padded": dict(box=(0, 0, 40, 60), flipped=True, extent=(80, 119), image_size=(81, 130)),
}


@pytest.mark.slow(0.2)
@pytest.mark.parametrize("case", CROPS)
def test_cropped_pixels_equal_cropped_encoded_images(case):
    crops, pixels = make_crop(**CROPS[case]), picture(seed=0, image_size=SIZE)
    encoded = tf.constant([encode(pixels, "PNG")])
    expected = decode_images.decode_boxes(encoded, crops.boxes, crops.image_size, crops.flipped, crops.extents).numpy()[0]
    seen = crop_pixels(tf.constant(pixels[np.newaxis]), crops).numpy()[0]
    assert seen.shape == expected.shape
    # A separately decoded box repeats its edge. A crop of the whole image is interpolated beyond the edge.
    assert np.abs(seen - expected).mean() < 0.7 and np.abs(seen - expected).max() < 12
    np.testing.assert_array_equal(seen.any(axis=-1), expected.any(axis=-1))  # The padding is the same.


@pytest.mark.parametrize("interpolation", [name for name in INTERPOLATIONS if name != "bilinear"])
@pytest.mark.parametrize("case", CROPS)
def test_interpolated_pixels_equal_interpolated_encoded_images(case, interpolation):
    """Crops from decoded images and from encoded images differ only by rounding."""
    crops, pixels = make_crop(**CROPS[case])._replace(interpolation=interpolation), picture(seed=0, image_size=SIZE)
    encoded = tf.constant([encode(pixels, "PNG")])
    expected = decode_images.decode_boxes(encoded, crops.boxes, crops.image_size, crops.flipped, crops.extents, interpolation=interpolation).numpy()[0]
    seen = crop_pixels(tf.constant(pixels[np.newaxis]), crops).numpy()[0]
    assert np.abs(seen - expected).max() <= 0.5


STORED = {"raw": ["--image_encoding=raw", "--image_size=exact=240x240"], "png": [], "jpeg": []}


@pytest.mark.slow
@pytest.mark.parametrize("stored", STORED)
def test_warns_about_shrunken_images_without_antialiasing(stored, tmp_path, caplog):
    """Stripes that are two pixels wide become gray with antialiasing, but stay black and white without antialiasing."""
    lines = np.zeros((240, 240, 3), np.uint8)
    lines[2::4] = lines[3::4] = 255
    image_format = "JPEG" if stored == "jpeg" else "PNG"
    files = {f"{label}/{index}.{image_format.lower()}": encode(lines, image_format) for label in "ab" for index in range(3)}
    command = ["prepare", "--input", str(write_files(tmp_path / "in", files)), "--output", str(tmp_path / "out"), "--splits=test=1"]
    assert main([*command, *STORED[stored]]) == 0

    def read(budget: int, **options) -> np.ndarray:
        data = tf_input.open(tmp_path / "out")
        caplog.clear()
        return tf_input.Sequence(data, "test", batch_size=6, cache_in_memory=budget, **options)[0][0].astype(int)

    for budget in (0, 1 << 30):
        for options in ({"image_size": 24}, {"image_size": (24, 30), "fit": "pad"}):
            averaged = read(budget, interpolation="antialiased", **options)
            inner = averaged[:, 1:-1, 3:-3]
            assert np.abs(inner - 127).max() <= 4 and not caplog.records, (budget, options)
            sampled = read(budget, **options)
            is_averaged = stored == "jpeg" and not budget  # JPEGs are decoded at 1/8 of their size.
            assert (np.abs(sampled[:, 1:-1, 3:-3] - 127).max() > 60) != is_averaged
            assert bool("antialiased" in caplog.text and "240 x 240" in caplog.text) != is_averaged
    read(0, image_size=120)
    assert not caplog.records
    data = tf_input.open(tmp_path / "out")
    fingerprints = [data.batches("test", batch_size=6, image_size=24, seed=0, interpolation=name).iterator_state.fingerprint for name in ("bilinear", "bicubic")]
    assert fingerprints[1].pop("interpolation") == "bicubic" and fingerprints[0] == fingerprints[1]


@pytest.mark.parametrize("case", CROPS)
def test_cropped_masks_equal_cropped_encoded_masks(case):
    crops, mask = make_crop(**CROPS[case]), np.random.default_rng(0).integers(0, 256, SIZE, dtype=np.uint8)
    expected = decode_mask_boxes(
        tf.constant([encode_mask(mask)]), crops.sizes, crops.boxes, crops.image_size, crops.flipped, crops.extents
    )
    for dtype in (tf.uint8, tf.int32):
        seen = crop_masks(tf.cast(mask[np.newaxis, ..., np.newaxis], dtype), crops)
        assert seen.dtype == dtype
        np.testing.assert_array_equal(seen, expected)


def test_scale_ratio_of_jpeg_decoding():
    cases = [
        # Columns: size, image_size, fit, ratio, box.
        ((80, 120), (40, 40), "crop", 2, (0, 20, 80, 80)),
        ((79, 120), (40, 40), "crop", 1, (0, 20, 79, 79)),
        ((81, 121), (40, 40), "crop", 2, (0, 20, 80, 82)),  # The last of 81 rows belongs to none of 40 pairs.
        ((163, 163), (20, 40), "crop", 4, (40, 0, 84, 160)),
        ((3001, 2001), (10, 10), "crop", 8, (504, 0, 2000, 2000)),
        ((803, 1603), (100, 100), "stretch", 8, (0, 0, 800, 1600)),
        ((80, 39), (40, 20), "stretch", 1, (0, 0, 80, 39)),
        ((80, 163), (40, 40), "pad", 4, (0, 0, 80, 160)),  # The image becomes 20 x 40.
    ]
    for size, image_size, fit, ratio, box in cases:
        crops = compute_crops(tf.constant([size]), image_size, fit, scales=True)
        assert (crops.ratios.numpy().tolist(), tuple(crops.boxes[0].numpy())) == ([ratio], box), (size, image_size, fit)
        assert compute_crops(tf.constant([size]), image_size, fit).ratios is None


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 3000), st.integers(1, 3000)), min_size=1, max_size=8),
    st.tuples(st.integers(1, 300), st.integers(1, 300)),
    st.sampled_from(["crop", "stretch", "pad", "random"]),
    st.integers(0, 2**40),
)
def test_scaled_jpeg_crops_are_aligned_and_large_enough(sizes, image_size, fit, seed):
    augmentation, seed = (Augmentation() if fit == "random" else None), tf.constant([seed, 0], tf.int64)
    fit, sizes = "crop" if fit == "random" else fit, np.array(sizes, np.int32)
    plain = compute_crops(tf.constant(sizes), image_size, fit, augmentation, seed)
    crops = compute_crops(tf.constant(sizes), image_size, fit, augmentation, seed, scales=True)
    boxes, ratios = crops.boxes.numpy(), crops.ratios.numpy()[:, np.newaxis]
    assert (boxes % ratios == 0).all() and (boxes[:, :2] >= 0).all() and (boxes[:, :2] + boxes[:, 2:] <= sizes).all()
    assert (np.abs(boxes - plain.boxes.numpy()) <= 2 * ratios).all() and (boxes == plain.boxes.numpy())[ratios[:, 0] == 1].all()
    wanted = image_size if crops.extents is None else crops.extents.numpy()
    assert (boxes[:, 2:] // ratios >= np.where(ratios > 1, wanted, 1)).all()
    is_small = sizes.max(axis=1, keepdims=True) <= MAX_SMALL_SIDE
    assert (ratios[is_small] == 1).all()
    assert (is_small | (ratios == 8) | (boxes[:, 2:] // ratios < 2 * np.array(wanted) + 2).any(axis=1, keepdims=True)).all()


def test_cropped_dense_targets_keep_their_resolution():
    dense_targets = np.arange(24, dtype=np.float32).reshape(1, 4, 6, 1)
    complete = crop_dense_targets(tf.constant(dense_targets), make_crop((0, 0, 40, 60)))
    np.testing.assert_allclose(complete, dense_targets, atol=1e-4)
    np.testing.assert_allclose(crop_dense_targets(dense_targets, make_crop((0, 0, 40, 60), flipped=True)), dense_targets[:, :, ::-1], atol=1e-4)
    # Positions of the samples for a quarter of the image.
    rows, columns = [0, 0.25, 0.75, 1.25], [0, 0.25, 0.75, 1.25, 1.75, 2.25]
    expected = 6 * np.array(rows)[:, np.newaxis] + columns
    np.testing.assert_allclose(crop_dense_targets(dense_targets, make_crop((0, 0, 20, 30)))[0, :, :, 0], expected, atol=1e-4)
    framed = crop_dense_targets(dense_targets, make_crop((0, 0, 40, 60), extent=(10, 20)))[0, :, :, 0].numpy()
    assert not framed[[0, 3]].any() and framed[1:3].all(axis=1).tolist() == [True, True]
