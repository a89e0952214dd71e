"""Tests that each prepared image is read once per epoch with its original pixels and label."""

import numpy as np
import pytest
import tensorflow as tf

import tf_input
from beam_pipelines.__main__ import main
from made_images import encode, noise, write_files

CLASSES = ("ant", "bee", "cow")


@pytest.mark.slow
def test_images_and_labels_are_read_back(tmp_path):
    files = {}
    for index in range(60):
        image_format = ("JPEG", "PNG", "BMP")[index % 3]
        files[f"{CLASSES[index % 3]}/{index:03d}.{image_format.lower()[:4]}"] = encode(noise(index), image_format)
    files = {key.replace(".jpeg", ".jpg"): data for key, data in files.items()}
    write_files(tmp_path / "in", files)
    assert main(["prepare", "--input", str(tmp_path / "in"), "--output", str(tmp_path / "out"), "--num_shards", "5"]) == 0

    expected = {}
    for key, data in files.items():
        pixels = tf.io.decode_image(data, channels=3).numpy()
        expected[pixels.tobytes()] = key.split("/")[0]
    prepared = tf_input.open(tmp_path / "out")
    for epoch in range(2):
        seen = {}
        for split in prepared.splits:
            for images, labels in prepared.batches(split, batch_size=7):
                for pixels, label in zip(images.numpy(), labels.numpy()):
                    seen[pixels.tobytes()] = prepared.class_names[label]
        assert seen == expected, epoch


def test_unshuffled_batches_are_in_rank_order(tmp_path):
    files = {f"ant/{index}.png": encode(np.full((4, 4, 3), index, np.uint8), "PNG") for index in range(200)}
    write_files(tmp_path / "in", files)
    options = ["--num_shards", "3", "--splits", "train=1", "--seed", "9"]
    assert main(["prepare", "--input", str(tmp_path / "in"), "--output", str(tmp_path / "out"), *options]) == 0
    from beam_pipelines.elements.shuffle_keys import shuffle_key

    by_rank = sorted(range(200), key=lambda index: shuffle_key(9, f"ant/{index}.png".encode()))
    batches = tf_input.open(tmp_path / "out").batches("train", batch_size=64, shuffle=False)
    assert [int(pixels[0, 0, 0]) for images, _ in batches for pixels in images.numpy()] == by_rank
