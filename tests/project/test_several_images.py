"""Tests that every step from preparation to training supports examples with several images."""

import csv
import json
import pathlib
import shutil
from typing import Any, Callable, Mapping

import keras
import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

import tf_input
from beam_pipelines.__main__ import main
from beam_pipelines.images.images import check_image
from beam_pipelines.publish.summary import format_size
from engines import digest
from made_arrays import make_pixels
from made_images import encode, write_files
from made_records import example, write_records
from prepared import picture
from tf_input.dataset_format import DEAD_LETTERS, STATISTICS
from tf_input.decoding.raw_images import decode_images
from tf_input.read_config import Augmentation, ReadConfig

NUM = 24
# Sizes of the left images; the right images have half of the height and width
SIZES = [(40 + seed % 3, 60 + seed % 7) for seed in range(NUM)]
OPTIONS = ("--feature=right=second:image", "--splits=train=0.75,test=0.25", "--num_shards=train=2,test=1")
BOTH = ("image", "right")


def write_table(root: pathlib.Path, rows: list[dict[str, Any]], files: Mapping[str, bytes]) -> pathlib.Path:
    write_files(root, files)
    with open(root / "pairs.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return root / "pairs.csv"


def right_files() -> list[bytes]:
    """Returns the right-hand images, which are smaller copies of the left-hand images, as JPEG, PNG and BMP files."""
    rotated = Image.Exif()
    rotated[0x0112] = 6
    files = []
    for index, (height, width) in enumerate(SIZES):
        half = np.asarray(Image.fromarray(picture(index, SIZES[index])).resize((width // 2, height // 2), Image.Resampling.BOX))
        ways = [("JPEG", {"quality": 95}), ("JPEG", {"quality": 95, "exif": rotated}), ("PNG", {}), ("BMP", {})]
        image_format, options = ways[index % 4]
        files.append(encode(np.rot90(half) if "exif" in options else half, image_format, **options))
    return files


def write_pairs(root: pathlib.Path, bad: Mapping[int, bytes] = {}) -> pathlib.Path:
    """Writes a table with two columns of images. `bad` replaces files of the second column."""
    rows = [{"file_name": f"left/{i}.png", "second": f"right/{i}", "label": ["odd", "even"][i % 2]} for i in range(NUM)]
    files = {f"left/{index}.png": encode(picture(index, size), "PNG") for index, size in enumerate(SIZES)}
    files |= {f"right/{index}": bad.get(index, data) for index, data in enumerate(right_files())}
    return write_table(root, rows, files)


def prepare(table: pathlib.Path, output: pathlib.Path, *options: str) -> pathlib.Path:
    assert main(["prepare", "--input", str(table), "--output", str(output), "--name=made", *options]) == 0
    return output


@pytest.fixture(scope="module")
def pairs(tmp_path_factory) -> tf_input.PreparedDataset:
    root = tmp_path_factory.mktemp("pairs")
    return tf_input.open(prepare(write_pairs(root / "in"), root / "out", *OPTIONS))


def stored_values(data: tf_input.PreparedDataset) -> dict[str, dict[str, Any]]:
    """Reads all examples without `tf_input` and returns their feature values by key."""
    actual = {}
    for record in tf.data.TFRecordDataset(sorted(map(str, pathlib.Path(data.directory).glob("*.tfrecord-*")))).as_numpy_iterator():
        features = tf.train.Example.FromString(record).features.feature
        values = {name: getattr(item, item.WhichOneof("kind")).value[0] for name, item in features.items()}
        actual[values["key"].decode()] = values
    return actual


@pytest.mark.slow(1.5)
def test_second_image_is_stored_like_the_first(pairs):
    rights = right_files()
    actual = stored_values(pairs)
    assert len(actual) == NUM
    for index, (height, width) in enumerate(SIZES):
        values, checked = actual[f"left/{index}.png"], check_image(rights[index], "strict")
        assert values["right"] == (checked.encoded or rights[index])
        assert (values["height"], values["width"]) == (height, width)
        assert (values["right/height"], values["right/width"]) == (height // 2, width // 2) == (checked.height, checked.width)
    facts = json.loads((pairs.directory / STATISTICS).read_text())
    assert facts["images"]["formats"] == {"png": NUM}
    right = facts["other_images"]["right"]
    assert (right["formats"], right["reencoded"]) == ({"bmp": 6, "jpeg": 12, "png": 6}, {"bmp": 6, "exif_orientation": 6})
    assert (right["num_images"], right["height"]["min"], right["width"]["max"]) == (NUM, 20, 33)
    sizes = [len(values[name]) for values in actual.values() for name in BOTH]
    assert sum(split["image_bytes"] for split in facts["splits"].values()) == sum(sizes)
    assert main(["verify", str(pairs.directory), "--decode"]) == 0
    assert right["bytes"]["mean"] == sum(len(values["right"]) for values in actual.values()) / NUM


def test_all_images_are_resized_and_converted(tmp_path):
    options = (*OPTIONS, "--image_size=short=16", "--image_format=jpeg:90")
    for values in stored_values(tf_input.open(prepare(write_pairs(tmp_path / "in"), tmp_path / "out", *options))).values():
        for name, (height, width) in {"image": (values["height"], values["width"]), "right": (values["right/height"], values["right/width"])}.items():
            assert min(height, width) == 16 and values[name].startswith(b"\xff\xd8\xff")
            assert tf.io.decode_jpeg(values[name]).shape == (height, width, 3)


@pytest.mark.slow
def test_bad_second_image_makes_the_example_a_dead_letter(tmp_path, capsys):
    bad = {3: b"<!DOCTYPE html>", 8: right_files()[8][:200], 11: b""}
    table = write_pairs(tmp_path / "in", bad)
    (tmp_path / "in/right/5").unlink()
    command = ["prepare", "--input", str(table), "--output", str(tmp_path / "out"), "--name=made", *OPTIONS]
    assert main([*command, "--max_bad_fraction=0.01"]) == 2
    assert "dead letters" in capsys.readouterr().err
    assert main([*command, "--max_bad_fraction=0.5", "--resume"]) == 0
    letters = {item["path"]: item for item in map(json.loads, (tmp_path / "out" / DEAD_LETTERS).read_text().splitlines())}
    assert set(letters) == {f"left/{index}.png" for index in (*bad, 5)}
    for index in bad:
        letter = letters[f"left/{index}.png"]
        assert (letter["stage"], letter["reason"]) == ("check", "bad_image") and letter["message"].startswith(f"right: right/{index}: ")
    missing = letters["left/5.png"]
    assert (missing["stage"], missing["reason"], missing["message"]) == ("read", "unreadable", "right/5: No such file or directory")
    assert main([*command[:4], str(tmp_path / "fresh"), *command[5:], "--max_bad_fraction=0.5"]) == 0
    assert digest(tmp_path / "out") == digest(tmp_path / "fresh")
    assert len(stored_values(tf_input.open(tmp_path / "out"))) == NUM - 4


@pytest.mark.slow
def test_unchecked_second_image_has_no_stored_size(tmp_path):
    """An empty file is a dead letter even without checks."""
    table = write_pairs(tmp_path / "in", {7: b""})
    data = tf_input.open(prepare(table, tmp_path / "out", *OPTIONS, "--check=none", "--max_bad_fraction=0.1"))
    assert "right/height" not in data.features and len(stored_values(data)) == NUM - 1
    x, _ = next(iter(data.batches("train", batch_size=4, inputs=BOTH, image_size={"image": 24, "right": (8, 12)}, augment=True, seed=0)))
    assert (x["image"].shape, x["right"].shape) == ((4, 24, 24, 3), (4, 8, 12, 3))


@pytest.mark.slow
def test_key_of_several_columns_allows_repeated_images(tmp_path, capsys):
    files = {f"{index}.png": encode(picture(index, (8, 9)), "PNG") for index in range(5)}
    rows = [{"a": f"{i}.png", "b": f"{j}.png", "label": "same" if i % 2 == j % 2 else "other"} for i in range(5) for j in range(i)]
    command = ["--image_column=a", "--feature=b:image", "--splits=train=1"]
    table = write_table(tmp_path / "in", rows, files)
    assert main(["prepare", "--input", str(table), "--output", str(tmp_path / "out"), *command]) == 2
    assert "--key_column=a,b " in capsys.readouterr().err
    data = tf_input.open(prepare(table, tmp_path / "out", *command, "--key_column=a,b"))
    assert set(stored_values(data)) == {f"{row['a']}|{row['b']}" for row in rows}
    assert """batch_size=128, inputs=('image', 'b'))""" in capsys.readouterr().out


def test_estimate_counts_all_images(tmp_path, capsys):
    table = write_pairs(tmp_path / "in")
    assert main(["prepare", "--input", str(table), "--output", str(tmp_path / "out"), *OPTIONS, "--estimate"]) == 0
    num_bytes = sum(path.stat().st_size for path in (tmp_path / "in").rglob("*/*"))
    assert f"read:      {format_size(num_bytes)} " in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("fit", ["crop", "pad"])
def test_each_image_has_its_own_size(pairs, fit):
    sizes = {"image": (24, 20), "right": 16}
    expected = stored_values(pairs)
    options = {"inputs": (*BOTH, "key"), "image_size": sizes, "fit": fit}
    for x, _ in pairs.batches("test", batch_size=5, **options):
        for location, key in enumerate(x["key"].numpy()):
            for name, size in sizes.items():
                np.testing.assert_array_equal(x[name][location], decode_images(tf.constant([expected[key.decode()][name]]), size, fit)[0], name)


def test_one_of_several_images_can_stay_encoded(pairs):
    x, _ = next(iter(pairs.batches("train", batch_size=4, inputs=BOTH, image_size={"image": 8, "right": "encoded"}, shuffle=False)))
    assert x["image"].shape == (4, 8, 8, 3)
    for index, data in enumerate(x["right"].numpy()):
        np.testing.assert_array_equal(tf.io.decode_image(data, 3), pairs["train"][index]["right"])


def test_single_size_applies_to_all_images(pairs):
    both, _ = next(iter(pairs.batches("test", batch_size=5, inputs=BOTH, image_size=16)))
    assert both["image"].shape == both["right"].shape == (5, 16, 16, 3)


def test_unscaled_images_are_padded_separately(pairs):
    x, _ = next(iter(pairs.batches("train", batch_size=4, inputs=BOTH, image_size="largest", padding=tf_input.Padding(mask=True))))
    for name, (height, width) in {"image": (42, 66), "right": (21, 33)}.items():
        assert x[name].shape == (4, height, width, 3) and x[f"{name}_mask"].shape[:3] == (4, height, width)
        assert 0 < np.count_nonzero(x[f"{name}_mask"]) < 4 * height * width
        assert not np.any(np.where(np.reshape(x[f"{name}_mask"], (4, height, width, 1)), 0, x[name]))


@pytest.mark.slow
def test_example_may_have_only_named_images(tmp_path):
    table = write_pairs(tmp_path / "in")
    options = ("--image=none", "--feature=left=file_name:image", "--feature=right=second:image", "--splits=train=1")
    data = tf_input.open(prepare(table, tmp_path / "out", *options))
    assert len(data["train"]) == NUM and data["train"][0]["left"].shape[2] == 3
    x, y = next(iter(data.batches("train", batch_size=4, image_size={"left": 16, "right": 8}, augment=True, seed=0)))
    assert {name: item.shape for name, item in x.items()} == {"left": (4, 16, 16, 3), "right": (4, 8, 8, 3)} and y.shape == (4,)


@pytest.mark.slow(2)
def test_images_share_channels_and_can_be_combined_with_tensors(tmp_path):
    """If all images are grayscale, they are read with one channel. `--keep_depth` keeps 16 bits."""
    rng = np.random.default_rng(0)
    greys, depths = rng.integers(0, 256, (2, 6, 8, 9), np.uint8), rng.integers(0, 2**16, (6, 8, 9), np.uint16)
    files = {f"{side}/{i}.png": encode(pixels, "PNG") for side, images in zip("lr", greys) for i, pixels in enumerate(images)}
    files |= {f"deep/{i}.png": encode(depth, "PNG") for i, depth in enumerate(depths)}
    for index, depth in enumerate(depths):
        (tmp_path / "in").mkdir(exist_ok=True)
        np.save(tmp_path / f"in/{index}.npy", depth[..., np.newaxis])
    files["colours.png"] = encode(picture(0, (8, 9)), "PNG")
    rows = [{"image": f"l/{i}.png", "right": f"r/{i}.png", "map": f"{i}.npy", "label": "ab"[i % 2], "deep": f"deep/{i}.png"} for i in range(6)]
    table, options = write_table(tmp_path / "in", rows, files), ("--feature=right:image", "--feature=map:tensor", "--splits=train=1")
    grey = tf_input.open(prepare(table, tmp_path / "grey", *options))
    (x, _), keys = next(iter(grey.batches("train", batch_size=6, shuffle=False, inputs=(*BOTH, "map"), with_keys=True)))
    order = [int(key.numpy().decode()[2:-4]) for key in keys]
    for name, expected in {"image": greys[0], "right": greys[1], "map": depths}.items():
        np.testing.assert_array_equal(x[name], expected[order, ..., np.newaxis])
    assert x["map"].dtype == tf.uint16
    x, _ = next(iter(grey.batches("train", batch_size=6, inputs=BOTH, channels=4)))
    assert x["image"].shape == x["right"].shape == (6, 8, 9, 4)
    with pytest.raises(ValueError, match="augment=.*uint8 in 4 channels"):
        grey.batches("train", batch_size=6, inputs="right", channels=4, augment=Augmentation(crop=False, hue=0.1), seed=0)
    rows[0]["right"] = "colours.png"
    mixed = tf_input.open(prepare(write_table(tmp_path / "in", rows, {}), tmp_path / "mixed", *options))
    x, _ = next(iter(mixed.batches("train", batch_size=6, inputs=BOTH)))
    assert x["image"].shape == x["right"].shape == (6, 8, 9, 3)
    deep = tf_input.open(prepare(table, tmp_path / "deep", "--image_column=deep", "--feature=right=deep:image", "--splits=train=1", "--keep_depth"))
    x, _ = next(iter(deep.batches("train", batch_size=6, inputs=BOTH)))
    assert x["image"].dtype == x["right"].dtype == tf.uint16 and bool(tf.reduce_all(x["image"] == x["right"])) and x["right"].shape[-1] == 1


def test_indexed_example_has_all_images(pairs):
    item = pairs["train"][3]
    height, width, _ = item["image"].shape
    assert item["right"].shape == (height // 2, width // 2, 3) and (item["right/height"], item["right/width"]) == (height // 2, width // 2)


@pytest.mark.slow
def test_image_can_be_the_label(tmp_path):
    table = write_pairs(tmp_path / "in")
    data = tf_input.open(prepare(table, tmp_path / "out", "--label=second:image", "--image_size=exact=20x30"))
    assert data.targets == ("label",) and data.image_size == (20, 30)
    for cache_in_memory in (0, 1 << 30):
        for x, y in data.batches("train", batch_size=8, augment=True, seed=0, cache_in_memory=cache_in_memory):
            assert x.shape == y.shape
            assert np.abs(x.numpy().astype(float) - y.numpy()).mean() < 8, "both images have the same crop"


def write_copies(root: pathlib.Path, sizes: Callable[[int], tuple[int, int]]) -> pathlib.Path:
    """Writes a table of examples with three copies of an image. The copies differ only after augmentation."""
    files = {f"{index}.png": encode(picture(index, sizes(index)), "PNG") for index in range(NUM)}
    return write_table(root, [{"file_name": name, "label": "a"} for name in files], files)


COPIES = ("--feature=right=file_name:image", "--feature=third=file_name:image", "--splits=train=1")
NAMES = ("image", "right", "third")
COLOURS = {"brightness": 0.5, "contrast": 0.5, "saturation": 0.5, "hue": 0.2}


@pytest.fixture(scope="module")
def mixed(tmp_path_factory) -> tf_input.PreparedDataset:
    root = tmp_path_factory.mktemp("mixed")
    return tf_input.open(prepare(write_copies(root / "in", lambda index: (40 + index, 60 - index)), root / "out", *COPIES))


@pytest.fixture(scope="module")
def uniform(tmp_path_factory) -> tf_input.PreparedDataset:
    """Returns a dataset of images with the same size, which can therefore be cached in memory."""
    root = tmp_path_factory.mktemp("uniform")
    return tf_input.open(prepare(write_copies(root / "in", lambda index: (40, 50)), root / "out", *COPIES))


def num_same(first: tf.Tensor, second: tf.Tensor) -> int:
    return sum(np.array_equal(*pair) for pair in zip(first.numpy(), second.numpy(), strict=True))


@pytest.mark.slow(1.7)
def test_augment_together_selects_images_with_equal_augmentation(mixed):
    options = {"batch_size": NUM, "image_size": 16, "augment": Augmentation(brightness=0.5), "seed": 3}
    alone, _ = next(iter(mixed.batches("train", **options)))
    # The test with images of other sizes covers the value False.
    for together, groups in ((True, [NAMES]), (["third", "right"], [("right", "third")])):
        augment = Augmentation(brightness=0.5, together=together)
        x, _ = next(iter(mixed.batches("train", inputs=NAMES, **{**options, "augment": augment})))
        for first, second in (("image", "right"), ("image", "third"), ("right", "third")):
            is_equal = any(first in group and second in group for group in groups)
            assert num_same(x[first], x[second]) == (NUM if is_equal else 0), (together, first, second)
        assert num_same(x["image"], alone) == NUM, "other images must not change the first image"


@pytest.mark.slow(1.3)
def test_colour_augmentation_is_equal_on_all_hosts_and_in_memory(uniform):
    augment = Augmentation(crop=False, flip=False, together=("image", "third"), **COLOURS)
    options = {"batch_size": NUM, "augment": augment, "seed": 3, "inputs": NAMES, "image_size": (40, 50)}
    options["shuffle"] = False
    x, _ = next(iter(uniform.batches("train", **options)))
    assert num_same(x["image"], x["third"]) == NUM and num_same(x["image"], x["right"]) == num_same(x["right"], x["third"]) == 0
    part, _ = next(iter(uniform.batches("train", hosts=(2, 1), **options)))
    for name in NAMES:
        np.testing.assert_array_equal(part[name], x[name][1::2])  # hosts take the examples of a batch in turn
    read, _ = next(iter(uniform.batches("train", cache_in_memory=0, **options)))
    tf.nest.map_structure(np.testing.assert_array_equal, read, x)


@pytest.mark.slow
def test_images_of_different_sizes_have_the_same_crop(pairs):
    options = {"batch_size": 18, "image_size": (20, 30), "seed": 1, "inputs": BOTH}
    differ = {}
    for together in (True, False):
        x, _ = next(iter(pairs.batches("train", augment=Augmentation(min_area=0.3, together=together), **options)))
        differ[together] = np.abs(x["image"].numpy().astype(float) - x["right"].numpy()).mean()
    assert differ[True] < 10 < 20 < differ[False], differ


def test_memory_budget_counts_all_images(uniform):
    image_bytes, label_bytes = NUM * 40 * 50 * 3, NUM * 8
    for names, budget, is_cached in ((("image",), image_bytes + label_bytes, True), (BOTH, 2 * image_bytes + label_bytes - 1, False), (BOTH, 2 * image_bytes + label_bytes, True)):
        config = ReadConfig(8, inputs=names, cache_in_memory=budget, seed=0, image_size={"image": 16, "right": 8}, hosts=(1, 0))
        plan = uniform.split_reader("train").plan(config)
        assert (plan.cached is not None) == is_cached
        assert plan.decoder.num_output_bytes == 3 * (16 * 16 + (8 * 8 if "right" in names else 0)) + 8  # plus the label


@pytest.mark.parametrize(
    "options, message",
    [
        ({"augment": Augmentation(together=("image", "write"))}, "together: 'write' "),
        ({"augment": Augmentation(together=("image", "right")), "inputs": "image"}, "together: 'right' "),
        ({"image_size": {"image": 8, "left": 8}}, "image_size: 'left' "),
        ({"image_size": {}}, "image_size={}"),
        ({"image_size": {"image": 8, "right": (1, 2, 3)}}, "image_size={'image': 8, 'right': (1, 2, 3)}"),
        ({"image_size": {"image": 8}}, "'right': images have heights from 20 to 21 and widths from 30 to 33"),
    ],
)
def test_invalid_read_options_are_rejected(pairs, options, message):
    with pytest.raises(ValueError) as error:
        pairs.batches("train", **{"batch_size": 4, "image_size": 8, "inputs": BOTH, **options})
    assert message in str(error.value)


@pytest.mark.parametrize(
    "options, message",
    [
        (["--feature=right=second:image", "--image_encoding=raw"], "--image_encoding=raw: "),
        (["--feature=right=third:image"], "'third' (--label or --feature)"),
        (["--feature=image=second:image"], "--label or --feature=image:"),
        (["--feature=right=second,label:image"], "several columns"),
    ],
)
def test_invalid_prepare_options_are_rejected(tmp_path, capsys, options, message):
    table = write_pairs(tmp_path / "in")
    assert main(["prepare", "--input", str(table), "--output", str(tmp_path / "out"), *options]) == 2
    assert message in capsys.readouterr().err


# Training


@pytest.mark.slow(4)
def test_stereo_model_is_trained_and_served(tmp_path):
    """The right-hand image of class `near` is shifted. Augmentation must crop both images equally to keep the shift."""
    keras.utils.set_random_seed(1)
    files, rows = {}, []
    for index in range(48):
        scene, shift = picture(index, (40, 60)), 6 * (index % 2)
        files |= {f"l{index}.png": encode(scene[:, 6:54], "PNG"), f"r{index}.png": encode(scene[:, 6 + shift : 54 + shift], "PNG")}
        rows.append({"file_name": f"l{index}.png", "right": f"r{index}.png", "label": ["far", "near"][index % 2]})
    table = write_table(tmp_path / "in", rows, files)
    data = tf_input.open(prepare(table, tmp_path / "out", "--feature=right:image", "--splits=train=0.75,test=0.25"))
    options = {"batch_size": 4, "inputs": BOTH, "image_size": (32, 40)}
    train = data.batches("train", augment=Augmentation(min_area=0.5, flip=False, brightness=0.2), seed=0, **options)
    inputs = {name: keras.Input((32, 40, 3), dtype="uint8", name=name) for name in BOTH}
    tower = keras.layers.Rescaling(1 / 25)
    disparity = keras.layers.GlobalAveragePooling2D()(keras.ops.abs(tower(inputs["image"]) - tower(inputs["right"])))
    model = keras.Model(inputs, keras.layers.Dense(1, activation="sigmoid")(disparity))
    model.compile(keras.optimizers.Adam(0.2), "binary_crossentropy", metrics=["accuracy"], jit_compile=False)
    model.fit(train, epochs=5, verbose=0)
    assert model.evaluate(data.batches("test", **options), verbose=0, return_dict=True)["accuracy"] > 0.9
    tf_input.export_serving(model, train, tmp_path / "served")
    serve = tf.saved_model.load(str(tmp_path / "served")).signatures["serving_default"]
    actual = serve(image=tf.constant([files["l0.png"], files["l1.png"]]), right=tf.constant([files["r0.png"], files["r1.png"]]))
    assert [name.decode() for name in actual["label"].numpy()] == ["far", "near"]


@pytest.mark.slow(3)
def test_analysis_normalizes_each_image_separately(pairs, tmp_path):
    directory = shutil.copytree(pairs.directory, tmp_path / "out")
    assert main(["analyze", str(directory), "--image_size=16", "--splits=train"]) == 0
    data = tf_input.open(directory)
    assert "right/height" not in data.transform.schema
    x, _ = next(iter(data.batches("train", batch_size=data.num_examples("train"), transform=True, inputs=BOTH)))
    for name in BOTH:
        assert x[name].dtype == tf.float32 and x[name].shape[1:] == (16, 16, 3)
        np.testing.assert_allclose(tf.reduce_mean(x[name], (0, 1, 2)), 0, atol=1e-3)
        np.testing.assert_allclose(tf.math.reduce_std(x[name], (0, 1, 2)), 1, atol=1e-3)


@pytest.mark.slow
def test_arrays_may_have_several_images(tmp_path, capsys):
    """The test reads grayscale and color arrays of several sizes, with channels first or last."""
    left, right = make_pixels(7, 6, 8, 3), make_pixels(7, 3, 5, 4, seed=1)
    (tmp_path / "in").mkdir()
    np.savez_compressed(tmp_path / "in/a.npz", left=left[:4], right=right[:4].transpose(0, 3, 1, 2), y=[1, 2, 1, 2])
    np.savez(tmp_path / "in/b.npz", left=left[4:], right=right[4:, :2], y=[1, 2, 1], floats=np.zeros((3, 2, 2), np.float32))
    options = ("--image_column=left", "--feature=right:image", "--label=y", "--splits=train=1")
    data = tf_input.open(prepare(tmp_path / "in", tmp_path / "out", *options))
    actual = {item["key"]: item for item in data["train"]}
    for index in range(7):
        key, rows = (f"a.npz/left#{index:06d}", slice(None)) if index < 4 else (f"b.npz/left#{index - 4:06d}", slice(2))
        np.testing.assert_array_equal(actual[key]["image"], left[index])
        np.testing.assert_array_equal(actual[key]["right"], right[index, rows, :, :3])
        assert actual[key]["right/height"] == (3 if index < 4 else 2)
    (x, _), *_ = data.batches("train", batch_size=7, inputs=BOTH, image_size={"image": 6, "right": (2, 5)})
    assert x["image"].shape == (7, 6, 6, 3) and x["right"].shape == (7, 2, 5, 3)
    records = np.zeros(7, [("label", "u1"), ("left", "u1", (6, 8, 3)), ("grey", ">u1", (4, 4))])
    records["left"], records["grey"] = left, make_pixels(7, 4, 4)
    (tmp_path / "all.bin").write_bytes(records.tobytes())
    layout = ["--source=fixed_length", "--record_layout=label:uint8,left:uint8[6,8,3],grey:uint8[4,4]", "--splits=train=1"]
    features = ["--image_column=left", "--feature=grey:image", "--image_size=exact=4x4", "--image_encoding=raw"]
    raw = tf_input.open(prepare(tmp_path / "all.bin", tmp_path / "raw", *layout, *features))
    assert raw.features["grey"].kind == "pixels" and main(["verify", str(tmp_path / "raw")]) == 0
    for entry in raw["train"]:
        grey = records["grey"][int(entry["key"].rpartition("#")[2])]
        np.testing.assert_array_equal(entry["grey"], np.repeat(grey[..., np.newaxis], 3, axis=2))
        assert entry["image"].shape == (4, 4, 3)
    capsys.readouterr()
    command = ["prepare", "--output", str(tmp_path / "no"), "--input"]
    assert main([*command, str(tmp_path / "in/b.npz"), *options[:1], "--feature=floats:image", "--label=y"]) == 2
    assert "floats:array[2,2]" in capsys.readouterr().err
    assert main([*command, str(tmp_path / "in/b.npz"), *options[:1], "--feature=y:image", "--label=none"]) == 2
    assert "images of shape []" in capsys.readouterr().err


@pytest.mark.slow(2)
def test_records_of_other_programs_may_have_several_images(tmp_path):
    """The test reads images, a mask and tensors from compressed and uncompressed records in two ways."""

    def record(index: int) -> dict[str, Any]:
        rng = np.random.default_rng(index)
        flow, right = rng.normal(size=(2, 3)).astype(np.float32), picture(index + 100, (9 + index, 7))
        mask = rng.integers(0, 3, (20 + index, 30), np.uint8)
        made = {"l": encode(picture(index, mask.shape), "PNG"), "r": encode(right, "PNG"), "m": encode(mask, "PNG")}
        return {**made, "d": rng.integers(0, 2**16, (4, 5), np.uint16).tobytes(), "size": [4, 5], "f": flow.tobytes()}

    layout = "image=l,right=r:image,depth=d:uint16,shape=size,flow=f:float32[2,3],mask=m"
    written = {}
    for compression in ("", "ZLIB"):
        path = write_records(tmp_path / f"in{compression}/a.tfrecord", [example(record(index)) for index in range(5)], compression)
        data = tf_input.open(prepare(path, tmp_path / f"out{compression}", f"--layout={layout}", "--splits=train=1"))
        written[compression] = {path.name: path.read_bytes() for path in tmp_path.glob(f"out{compression}/*.tfrecord-*")}
    assert written[""] == written["ZLIB"] and written[""]
    files = tf_input.open_tfrecords(path, layout)  # the compression is detected
    assert files.features["right"].kind == "image" and set(files.features) < set(data.features)
    sizes = {"image": 16, "right": (6, 4)}
    (x, y), *_ = files.batches(batch_size=5, inputs=(*BOTH, "depth", "flow"), image_size=sizes, fit="stretch", shuffle=False)
    assert y.shape == (5, 16, 16, 1)
    np.testing.assert_array_equal(x["right"], decode_images(tf.constant([record(index)["r"] for index in range(5)]), (6, 4), "stretch"))
    for item in data["train"]:
        location = int(item["key"].rpartition("#")[2])
        np.testing.assert_array_equal(x["depth"][location], item["depth"])
        np.testing.assert_array_equal(x["flow"][location], item["flow"])
        assert item["right"].shape == (9 + location, 7, 3) and item["mask"].shape == (20 + location, 30, 1)
    alone, *_ = files.batches(batch_size=5, inputs="right", image_size={"right": 8}, targets=())
    assert alone.shape == (5, 8, 8, 3)
    for wrong, expected in {
        "image=l:image": "right=l:image",
        "image=l,right=r:picture": "type 'picture'",
        "image=l,right=f:image": "bytes × 1 in f, 24 bytes",
        "image=l,right=size:image": "int64 × 2 in size",
    }.items():
        with pytest.raises(ValueError) as caught:
            tf_input.open_tfrecords(path, wrong)
        assert expected in str(caught.value), wrong
