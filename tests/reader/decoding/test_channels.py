"""Tests the number of channels and the bit depth of decoded images for every kind of PNG and JPEG."""

import io
import logging
import pathlib
from typing import Any

import cv2
import keras
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds
from PIL import Image

import tf_input
from beam_pipelines.__main__ import main
from made_images import write_files

SIDE = 12
DEEP = np.random.default_rng(0).integers(0, 1 << 16, (SIDE, SIDE), dtype=np.uint16)


def picture(seed: int, channels: int) -> np.ndarray:
    """Returns a uint8 image [SIDE, SIDE, channels] of large uniform cells, which JPEG compression preserves."""
    blotches = np.random.default_rng(seed).integers(0, 256, (3, 3, channels), dtype=np.uint8)
    return np.repeat(np.repeat(blotches, SIDE // 3, 0), SIDE // 3, 1)


def encode(image: Image.Image | np.ndarray, image_format: str, **options: Any) -> bytes:
    file = io.BytesIO()
    (image if isinstance(image, Image.Image) else Image.fromarray(image)).save(file, image_format, **options)
    return file.getvalue()


def encode_16_bit_colors() -> bytes:
    return cv2.imencode(".png", np.stack([DEEP[::-1], DEEP.T, DEEP], axis=-1))[1].tobytes()


RGBA = Image.fromarray(picture(0, 4))
FILES = {
    "gray.png": encode(picture(1, 1)[..., 0], "PNG"),
    "gray.jpg": encode(picture(2, 1)[..., 0], "JPEG"),
    "bits.png": encode(Image.fromarray(picture(3, 1)[..., 0]).convert("1"), "PNG"),
    "gray16.png": encode(Image.fromarray(DEEP), "PNG"),
    "gray_alpha.png": encode(RGBA.convert("LA"), "PNG"),
    "rgb.png": encode(picture(4, 3), "PNG"),
    "rgb.jpg": encode(picture(5, 3), "JPEG"),
    "rgba.png": encode(RGBA, "PNG"),
    "rgb16.png": encode_16_bit_colors(),
    "bits_alpha.png": encode(Image.fromarray(picture(3, 1)[..., 0]).convert("1"), "PNG", transparency=0),
    "palette.png": encode(Image.fromarray(picture(6, 3)).quantize(8), "PNG"),
    "palette_alpha.png": encode(RGBA.convert("RGB").quantize(8), "PNG", transparency=bytes(range(0, 240, 30))),
}
GRAY = ("gray.png", "gray.jpg", "bits.png", "gray16.png", "gray_alpha.png")


def prepare(root: pathlib.Path, files: dict[str, bytes], *options: str) -> tf_input.PreparedDataset:
    source = write_files(root / "in", {f"{'ab'[index % 2]}/{name}": data for index, (name, data) in enumerate(files.items())})
    command = ["prepare", "--input", str(source), "--output", str(root / "out"), "--splits=train=1", "--num_shards=1", *options]
    assert main(command) == 0
    return tf_input.open(root / "out")


def decode_with_pillow(data: bytes, channels: int) -> np.ndarray:
    """Decodes an image with Pillow to uint8 [SIDE, SIDE, channels]. Only the upper 8 bits of 16-bit images are kept."""
    image = Image.open(io.BytesIO(data))
    if image.mode[0] == "I":
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    rgba = np.asarray(image.convert("RGBA"))
    return rgba if channels == 4 else rgba[..., :3] if channels == 3 else np.asarray(Image.fromarray(rgba[..., :3]).convert("L"))[..., None]


@pytest.fixture(scope="module")
def mixed(tmp_path_factory) -> tf_input.PreparedDataset:
    return prepare(tmp_path_factory.mktemp("mixed"), FILES)


@pytest.mark.slow(1.2)
@pytest.mark.parametrize("channels", [None, 1, 4])
def test_batches_have_the_requested_channels(mixed, channels):
    """Images have the same pixels whether they are cached in memory, read from disk, or read by a `Sequence`."""
    names = [pathlib.PurePath(entry["key"]).name for entry in mixed["train"]]
    wanted = [decode_with_pillow(FILES[name], channels or 3).astype(int) for name in names]
    cached, read = {}, {"cache_in_memory": 0, "batch_size": len(names) + 1}
    for options in {None: (cached, read), 1: (cached,), 4: (read,)}[channels]:
        options = {"batch_size": len(names), "shuffle": False, "channels": channels, **options}
        images, _ = next(iter(mixed.batches("train", **options)))
        assert images.dtype == tf.uint8 and images.shape[1:] == (SIDE, SIDE, channels or 3)
        for name, actual, element in zip(names, images.numpy(), wanted):
            assert np.abs(actual.astype(int) - element).max() <= (6 if "jpg" in name else 2 if channels == 1 else 0), (name, options)
    assert mixed.example_spec("train", **options)[0].shape[1:] == images.shape[1:]
    (by_number, _), *_ = tf_input.Sequence(mixed, "train", **options)
    np.testing.assert_array_equal(by_number, images)  # A sequence reads images one by one even if they are cached.
    if channels is None:
        (as_numpy, _), *_ = mixed.as_numpy("train", **options)
        np.testing.assert_array_equal(as_numpy, images)
    small, _ = next(iter(mixed.batches("train", **{**options, "image_size": SIDE // 2, "augment": True, "seed": 0})))
    assert small.shape[1:] == (SIDE // 2, SIDE // 2, channels or 3)
    if channels is None:
        np.testing.assert_array_equal(np.stack([entry["image"] for entry in mixed["train"]]), images)


@pytest.mark.slow(2.3)
def test_dataset_of_gray_images_has_one_channel(tmp_path, capsys, caplog):
    digits = prepare(tmp_path, {name: FILES[name] for name in GRAY})
    assert "channels:     1 in batches, " in capsys.readouterr().out
    assert digits.channels == 1 and digits.statistics["images"]["channels"] == {"1": 4, "2": 1}
    names = [pathlib.PurePath(digit["key"]).name for digit in digits["train"]]
    for name, digit in zip(names, digits["train"]):
        assert np.abs(digit["image"].astype(int) - decode_with_pillow(FILES[name], 1)).max() <= 2 * ("jpg" in name), name
    tfds_data = tfds.builder_from_directory(str(tmp_path / "out")).as_dataset(split="train")
    assert {tfds_example["image"].shape for tfds_example in tfds_data} == {(SIDE, SIDE, 1)}
    augment = tf_input.Augmentation(brightness=0.5, contrast=0.5, saturation=0.5, hue=0.1)
    with caplog.at_level(logging.WARNING, "tf_input"):
        images, _ = next(iter(digits.batches("train", batch_size=5, image_size=8, augment=augment, seed=0)))
    assert images.shape == (5, 8, 8, 1) and "saturation and hue" in caplog.text
    model = keras.Sequential([keras.Input((SIDE, SIDE, 1)), digits.normalization_layer(), keras.layers.Flatten(), keras.layers.Dense(2)])
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True), jit_compile=False)
    model.optimizer.build(model.trainable_variables)  # Otherwise the first step would be traced twice.
    model.fit(train := digits.batches("train", batch_size=5), verbose=0)
    tf_input.export_serving(model, train, tmp_path / "served")
    served = tf.saved_model.load(str(tmp_path / "served")).signatures
    actual = served["preprocess"](image=tf.constant([FILES["rgb.png"], FILES["gray.png"]]))["image"].numpy()
    assert np.abs(actual.astype(int) - np.stack([decode_with_pillow(FILES[name], 1) for name in ("rgb.png", "gray.png")])).max() <= 2


@pytest.mark.slow
def test_keep_depth_option_keeps_16_bits(tmp_path, capsys):
    files = {name: FILES[name] for name in ("gray16.png", "rgb16.png", "rgb.png", "rgb.jpg", "rgba.png")}
    deep = prepare(tmp_path, files, "--keep_depth")
    assert deep.features["image"].dtype == "uint16"
    by_name = {pathlib.PurePath(entry["key"]).name: entry["image"] for entry in deep["train"]}
    # 8-bit values are scaled to 16 bits.
    wide = {name: decode_with_pillow(data, 3).astype(int) * 257 for name, data in files.items()}
    wide["gray16.png"], wide["rgb16.png"] = np.repeat(DEEP[..., None], 3, -1), np.stack([DEEP, DEEP.T, DEEP[::-1]], -1)
    for name, image in by_name.items():
        assert image.dtype == np.uint16 and np.abs(image.astype(int) - wide[name]).max() <= (6 * 257 if "jpg" in name else 0), name
    for cache_in_memory in (1 << 30, 0):
        images, _ = next(iter(deep.batches("train", batch_size=5, shuffle=False, cache_in_memory=cache_in_memory)))
        assert images.dtype == tf.uint16
        np.testing.assert_array_equal(images, np.stack([entry["image"] for entry in deep["train"]]))
        half, _ = next(iter(deep.batches("train", batch_size=5, shuffle=False, image_size=6, channels=4, cache_in_memory=cache_in_memory)))
        assert half.dtype == tf.uint16 and half.shape == (5, 6, 6, 4)
    stored = {element["key"].numpy().decode(): element["image"] for element in tfds.builder_from_directory(str(tmp_path / "out")).as_dataset(split="train")}
    for member in deep["train"]:  # TensorFlow Datasets and the reader may decode a JPEG slightly differently.
        assert stored[member["key"]].dtype == tf.uint16 and ("jpg" in member["key"] or np.array_equal(stored[member["key"]], member["image"])), member["key"]
    with pytest.raises(ValueError, match="augment=.*uint16 in 3"):
        deep.batches("train", batch_size=5, augment=tf_input.Augmentation(contrast=0.5))
    normal = deep.normalization_layer()(images)
    assert abs(float(tf.reduce_mean(normal))) < 0.1 and abs(float(tf.math.reduce_std(normal)) - 1) < 0.1
    for option in ("--image_size=short=8", "--image_encoding=raw", "--image_format=jpeg"):
        assert main(["prepare", "--input", str(tmp_path / "in"), "--output", str(tmp_path / "no"), "--keep_depth", option]) == 2
        assert "--keep_depth: " in capsys.readouterr().err, option


def test_rejects_invalid_channels(mixed, tmp_path):
    for channels in (2, 0, "3", True, 1.0):
        with pytest.raises(ValueError, match=f"channels={channels!r} .*RGB"):
            mixed.batches("train", batch_size=2, channels=channels)
    with pytest.raises(ValueError, match="augment=.*uint8 in 4 channels"):
        mixed.batches("train", batch_size=2, channels=4, augment=tf_input.Augmentation(brightness=0.1))
    np.savez(tmp_path / "a.npz", images=np.zeros((4, 5, 5, 2), np.float32))
    assert main(["prepare", "--input", str(tmp_path / "a.npz"), "--output", str(tmp_path / "out"), "--label=none", "--splits=train=1"]) == 0
    floats = tf_input.open(tmp_path / "out")
    with pytest.raises(ValueError, match="channels=1 .*'image' is a tensor"):
        floats.batches("train", batch_size=2, channels=1)
    with pytest.raises(ValueError, match="'image' is a tensor of float32"):
        floats.batches("train", batch_size=2, augment=tf_input.Augmentation(brightness=0.1))
    with pytest.raises(ValueError, match="'image' .* 1 channels"):
        floats.normalization_layer(channels=1)


@pytest.mark.slow
def test_raw_pixels_have_the_requested_channels(tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (4, 6, 6, 4), dtype=np.uint8)
    np.savez(tmp_path / "a.npz", images=images)
    command = ["prepare", "--input", str(tmp_path / "a.npz"), "--output", str(tmp_path / "out"), "--label=none", "--splits=train=1"]
    assert main([*command, "--image_encoding=raw"]) == 0
    pixels = tf_input.open(tmp_path / "out")
    order = [int(pixel["key"].rpartition("#")[2]) for pixel in pixels["train"]]
    for channels in (None, 3):
        actual = next(iter(pixels.batches("train", batch_size=4, channels=channels, shuffle=False)))
        np.testing.assert_array_equal(actual, images[order][..., : channels or 4])
    gray = next(iter(pixels.batches("train", batch_size=4, channels=1, shuffle=False)))
    assert np.abs(gray.numpy().astype(int) - (images[order][..., :3] @ [[0.299], [0.587], [0.114]])).max() <= 1
