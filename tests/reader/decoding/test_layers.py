"""Tests the normalization layer and the augmentation layer for uint8 batches, including saving and loading."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_input
from beam_pipelines.__main__ import main
from made_images import encode, write_files
from prepared import picture, prepare_images
from tf_input.dataset_format import Feature
from tf_input.features.augment import ColorChanges, change_colors
from tf_input.decoding.layers import RandomFlipAndColors, augmentation_layer, normalization_layer
from tf_input.read_config import Augmentation

IMAGE = Feature("image", "image")
COLORS = Augmentation(flip=False, brightness=0.4, contrast=0.3, saturation=0.6, hue=0.1)


def make_statistics(images: np.ndarray) -> dict:
    pixels = images.reshape(-1, 3).astype(np.float64)
    facts = {"mean": pixels.mean(axis=0).tolist(), "variance": pixels.var(axis=0).tolist()}
    return {"splits": {"train": {"pixels": facts}}}


def pictures(count: int = 8, size: tuple[int, int] = (12, 18)) -> np.ndarray:
    return np.stack([picture(seed, size) for seed in range(count)])


def as_array(value) -> np.ndarray:
    return keras.ops.convert_to_numpy(keras.ops.cast(value, "float32"))


@pytest.mark.slow
def test_normalized_dataset_has_mean_0_and_variance_1(tmp_path):
    options = {"num_images": {"a": 30, "b": 30}, "image_size": (16, 16)}
    flowers = tf_input.open(prepare_images(tmp_path, "--splits=train=1", **options))
    layer = normalization_layer(flowers.statistics, flowers.features["image"])
    outputs = np.concatenate([as_array(layer(x)) for x, _ in flowers.batches("train", batch_size=32)])
    assert outputs.dtype == np.float32 and outputs.shape == (60, 16, 16, 3)
    np.testing.assert_allclose(outputs.mean(axis=(0, 1, 2)), 0, atol=0.02)
    np.testing.assert_allclose(outputs.var(axis=(0, 1, 2)), 1, atol=0.01)


def test_normalizes_raw_gray_pixels(tmp_path):
    gray = pictures()[..., 0]
    np.savez(tmp_path / "digits.npz", x=gray, y=np.arange(len(gray)) % 2)
    options = ["--image_encoding=raw", "--splits=train=1", f"--output={tmp_path / 'out'}"]
    assert main(["prepare", "--input", str(tmp_path / "digits.npz"), *options]) == 0
    digits = tf_input.open(tmp_path / "out")
    (x, _), *_ = digits.batches("train", batch_size=8)
    outputs = as_array(normalization_layer(digits.statistics, digits.features["image"])(x))
    assert outputs.shape == (*gray.shape, 1)
    assert abs(outputs.mean()) < 1e-5 and abs(outputs.var() - 1) < 1e-5


@pytest.mark.slow(3)
def test_normalization_layer_supports_one_or_three_channels(tmp_path):
    files = {f"{label}/{index}.png": encode(picture(index, (16, 16))[..., 0], "PNG") for label in "ab" for index in range(6)}
    command = ["prepare", "--input", str(write_files(tmp_path / "in", files)), "--output", str(tmp_path / "out"), "--splits=train=1"]
    assert main(command) == 0
    digits = tf_input.open(tmp_path / "out")
    for channels in (None, 1, 3):
        (x, _), *_ = digits.batches("train", batch_size=12, channels=channels)
        outputs = as_array(digits.normalization_layer(channels=channels)(x))
        assert outputs.shape == (12, 16, 16, channels or 1) and abs(outputs.mean()) < 1e-4 and abs(outputs.var() - 1) < 1e-4
    for channels, message in ((4, "'image' .* 4 channels"), (1, "channels=1")):
        with pytest.raises(ValueError, match=message):
            normalization_layer(make_statistics(pictures()), IMAGE, channels=channels)


def test_channel_without_variance_becomes_0():
    images = pictures()
    images[..., 1] = 77
    outputs = as_array(normalization_layer(make_statistics(images), IMAGE)(images))
    assert np.isfinite(outputs).all() and not outputs[..., 1].any()


def test_normalization_layer_requires_pixel_statistics(tmp_path):
    directory = prepare_images(tmp_path, "--splits=train=1", "--check=header", num_images={"a": 4, "b": 4})
    flowers = tf_input.open(directory)
    with pytest.raises(ValueError, match="'train' .*--check=decode"):
        normalization_layer(flowers.statistics, flowers.features["image"])
    with pytest.raises(ValueError, match="'image' .* 4 channels"):
        normalization_layer(make_statistics(pictures()), Feature("image", "pixels", (8, 8, 4)))


@pytest.mark.slow(0.8)
@pytest.mark.parametrize("policy", ["float32", "mixed_float16", "mixed_bfloat16"])
def test_model_with_both_layers_can_be_saved_and_loaded(tmp_path, policy):
    images, augmentation = pictures(), Augmentation(brightness=0.2, contrast=0.2, saturation=0.2, hue=0.05)
    keras.config.set_dtype_policy(policy)
    try:
        first = [augmentation_layer(augmentation, seed=1), normalization_layer(make_statistics(images), IMAGE)]
        last = [keras.layers.Flatten(), keras.layers.Dense(2)]
        model = keras.Sequential([keras.Input((12, 18, 3), dtype="uint8"), *first, *last])
        normalize = keras.Model(model.inputs, model.layers[1].output)
    finally:
        keras.config.set_dtype_policy("float32")
    normalized = normalize.predict(images, verbose=0)
    assert normalized.dtype.name == policy.removeprefix("mixed_")
    expected = (images - images.mean(axis=(0, 1, 2))) / images.std(axis=(0, 1, 2))
    tolerance = {"float32": 1e-4, "mixed_float16": 0.01, "mixed_bfloat16": 0.05}[policy]
    np.testing.assert_allclose(normalized.astype(np.float32), expected, atol=tolerance)
    varied = as_array(model.layers[0](images, training=True))
    assert np.isfinite(varied).all() and (varied != images).any() and varied.max() <= 255
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded.predict(images, verbose=0), model.predict(images, verbose=0))
    assert loaded.layers[0].get_config() == model.layers[0].get_config()
    assert loaded.layers[0].hue == 0.05


def test_images_are_augmented_only_in_training():
    images = pictures()
    layer = augmentation_layer(Augmentation(brightness=0.4, contrast=0.3, saturation=0.6, hue=0.1), seed=3)
    for still in (layer(images), layer(images, training=False), keras.Sequential([layer])(images)):
        np.testing.assert_array_equal(as_array(still), images)
    first, second = (as_array(layer(images, training=True)) for _ in range(2))
    assert (first != second).any(axis=(1, 2, 3)).all()
    again = augmentation_layer(Augmentation(brightness=0.4, contrast=0.3, saturation=0.6, hue=0.1), seed=3)
    np.testing.assert_array_equal(as_array(again(images, training=True)), first)
    as_float = augmentation_layer(Augmentation(brightness=0.4, contrast=0.3, saturation=0.6, hue=0.1), seed=3)
    np.testing.assert_allclose(as_array(as_float(images.astype(np.float32), training=True)), first, atol=1e-3)


def test_half_of_the_images_are_flipped():
    images = np.repeat(pictures(1), 400, axis=0)
    augmented = as_array(augmentation_layer(Augmentation(), seed=0)(images, training=True))
    is_flipped = (augmented == images[:, :, ::-1]).all(axis=(1, 2, 3))
    assert ((augmented == images).all(axis=(1, 2, 3)) ^ is_flipped).all() and 160 < is_flipped.sum() < 240


def test_layer_changes_colors_like_the_input_pipeline():
    """The test draws the same random numbers as the layer, and passes these numbers to `change_colors`."""
    for images in (pictures(), pictures()[..., :1]):
        varied = as_array(augmentation_layer(COLORS, seed=5)(images, training=True))
        draws = as_array(keras.random.uniform((5, len(images)), -1, 1, seed=keras.random.SeedGenerator(5)))
        changes = ColorChanges(
            1 + COLORS.brightness * draws[0],
            1 + COLORS.saturation * draws[2],
            2 * np.pi * COLORS.hue * draws[3],
            1 + COLORS.contrast * draws[1],
        )
        expected = change_colors(tf.constant(images), ColorChanges(*map(tf.constant, changes))).numpy()
        assert np.abs(varied - expected).max() < 0.51  # `change_colors` rounds its results.


def test_rejects_invalid_use_of_layers():
    with pytest.raises(ValueError, match="flip, brightness"):
        augmentation_layer(Augmentation(flip=False))
    with pytest.raises(ValueError, match="hue=0.7"):
        RandomFlipAndColors(hue=0.7)
    with pytest.raises(ValueError, match="4 channels"):
        augmentation_layer(COLORS)(np.zeros((1, 4, 4, 4), np.uint8), training=True)
    for training in (True, False):  # A served model must not differ from the trained one.
        with pytest.raises(ValueError, match="'augmentation' .*uint16"):
            augmentation_layer(Augmentation())(np.zeros((1, 4, 4, 3), np.uint16), training=training)


def test_normalizes_uint16_with_mixed_float16():
    """In float16, the number 65,535 is infinite."""
    images = np.full((1, 2, 2, 3), 65535, np.uint16)
    deep = Feature("image", "image", dtype="uint16")
    keras.config.set_dtype_policy("mixed_float16")
    try:
        layer = normalization_layer({"splits": {"train": {"pixels": {"mean": [127.5] * 3, "variance": [100.0] * 3}}}}, deep)
    finally:
        keras.config.set_dtype_policy("float32")
    np.testing.assert_allclose(as_array(layer(images)), 12.75, rtol=1e-4)
