"""Tests that TFRecords that Recordmill did not write can be read without `recordmill prepare`."""

import json
import os
import pathlib

import numpy as np
import pytest
import tensorflow as tf

import tf_input
from made_images import encode, noise, write_files
from made_records import encode_mask, example, write_records
from prepared import prepare_images

SIZE = (6, 8)
COUNT = 5
IMAGES = [noise(seed, *SIZE) for seed in range(COUNT)]
OBJECT = "image/object"


def encoded(index: int) -> bytes:
    return encode(IMAGES[index], "PNG")


def slim(index: int) -> dict:
    return {"image/encoded": encoded(index), "image/format": b"png", "image/class/label": index, "image/filename": f"{index}.png"}


def detection(index: int) -> dict:
    count = index % 3
    sides = {"ymin": 0.0, "xmin": 0.25, "ymax": 0.5, "xmax": 1.0}
    boxes = {f"{OBJECT}/bbox/{side}": np.full(count, value, np.float32) for side, value in sides.items()}
    labels = {f"{OBJECT}/class/label": [index + 1] * count, f"{OBJECT}/class/text": [b"x"] * count}
    return {"image/encoded": encoded(index), "image/source_id": str(index), **boxes, **labels, f"{OBJECT}/is_crowd": [0] * count}


def raw(index: int) -> dict:
    height, width = SIZE
    return {"image_raw": IMAGES[index].tobytes(), "height": height, "width": width, "depth": 3, "label": index}


def name_shape_data(index: int) -> dict:
    return {"name": f"n{index}", "shape": [*SIZE, 3], "data": IMAGES[index].tobytes()}


def feature_shape_label(index: int) -> dict:
    return {"feature": IMAGES[index].tobytes(), "shape": np.array([*SIZE, 3], "<i8").tobytes(), "label": index}


LAYOUTS = {
    "slim": (slim, "label"),
    "detection": (detection, "objects"),
    "raw": (raw, "label"),
    "name_shape_data": (name_shape_data, None),
    "feature_shape_label": (feature_shape_label, "label"),
    "image_label": (lambda index: {"image": encoded(index), "label": index}, "label"),
}


def write(path: pathlib.Path, make, compression: str = "", count: int = COUNT) -> str:
    return str(write_records(path, [example(make(index)) for index in range(count)], compression))


def read_all(files: tf_input.RecordFiles, **options) -> list:
    options = {"batch_size": 2, "image_size": SIZE, "shuffle": False, **options}
    return [tf.nest.map_structure(lambda tensor: tensor.numpy(), batch) for batch in files.batches(**options)]


@pytest.mark.slow(0.8)
@pytest.mark.parametrize("name", LAYOUTS)
def test_each_layout_is_detected_and_read(tmp_path, name):
    make, target = LAYOUTS[name]
    path = write(tmp_path / "a.tfrecord", make)
    files = tf_input.open_tfrecords(path)
    assert (files.layout.name, files.compression, files.splits) == (name, "", ("train",))
    assert files.targets == ((target,) if target else ())
    read = read_all(files)
    images = np.concatenate([batch[0] if target else batch for batch in read])
    np.testing.assert_array_equal(images, IMAGES)
    if target == "label":
        assert np.concatenate([batch[1] for batch in read]).tolist() == list(range(COUNT))
    assert tf_input.open_tfrecords(path, name).features == files.features


def test_reads_records_that_contain_only_numbers(tmp_path):
    path = write(tmp_path / "a.tfrecord", lambda index: {"feat1": index, "feat2": [index, -index], "score": index / 2, "label": index % 2})
    for files in (tf_input.open_tfrecords(path), tf_input.open_tfrecords(path, "feat1=feat1,feat2=feat2,score=score,label=label")):
        (x, y), *_ = read_all(files, batch_size=COUNT, image_size=None)
        assert (files.targets, files.image_size) == (("label",), None) and y.tolist() == [index % 2 for index in range(COUNT)]
        assert x["feat1"].tolist() == [*range(COUNT)] and x["feat2"].tolist() == [[index, -index] for index in range(COUNT)]
        assert x["score"].tolist() == [index / 2 for index in range(COUNT)] and set(x) == {"feat1", "feat2", "score"}


@pytest.mark.slow(1)
@pytest.mark.parametrize("compression", ["GZIP", "ZLIB"])
def test_compression_is_detected(tmp_path, compression):
    path = write(tmp_path / "a.tfrecord", slim, compression)
    for files in (tf_input.open_tfrecords(path), tf_input.open_tfrecords(path, compression=compression)):
        assert files.compression == compression
        assert np.concatenate(read_all(files, inputs="key", targets="label")[0][1:]).tolist() == [0, 1]


@pytest.mark.slow
def test_example_spec_equals_element_spec_of_batches(tmp_path):
    files = tf_input.open_tfrecords(write(tmp_path / "a.tfrecord", detection))
    options = {"batch_size": 2, "image_size": 8, "padding": {"objects": 4}, "drop_remainder": True}
    spec = files.example_spec(**options)
    assert spec == files.batches(**options).element_spec
    assert spec[1]["bbox"] == tf.TensorSpec((2, 4, 4), tf.float32)


def test_reads_objects_of_detection_layout(tmp_path):
    files = tf_input.open_tfrecords(write(tmp_path / "a.record", detection))
    assert set(files.features) == {"image", "key", "objects/bbox", "objects/label", "objects/is_crowd"}
    objects = read_all(files, batch_size=COUNT, inputs="key")[0][1]
    assert objects["valid"].sum(axis=1).tolist() == [0, 1, 2, 0, 1]
    assert objects["label"].tolist() == [[-1, -1], [2, -1], [3, 3], [-1, -1], [5, -1]]
    assert objects["bbox"][2].tolist() == [[0, 0.25, 0.5, 1]] * 2
    assert objects["is_crowd"].shape == (COUNT, 2)


def text_boxes(index: int) -> dict:
    """Returns the features of a PixelLink record. All boxes have the same class. The image is not stored as raw pixels,
    even though the record has the feature `image/shape`."""
    other_features = {name: value for name, value in detection(index).items() if "class" not in name}
    return {**other_features, f"{OBJECT}/bbox/label": [1] * (index % 3), "image/shape": [*SIZE, 3]}


@pytest.mark.slow
def test_reads_boxes_of_text_boxes_layout(tmp_path):
    path = write(tmp_path / "a.tfrecord", text_boxes)
    files = tf_input.open_tfrecords(path)
    assert (files.layout.name, files.targets) == ("text_boxes", ("objects",))
    assert read_all(files, batch_size=COUNT)[0][1]["label"].tolist() == [[-1, -1], [1, -1], [1, 1], [-1, -1], [1, -1]]


@pytest.mark.slow(1.1)
@pytest.mark.parametrize(
    "case, image_mapping, stored, expected",
    [
        ("encoded image", {}, {"shape": [6, 8, 3], "height": 1.5, "depth": b"deep"}, {"shape", "height", "depth"}),
        ("text as shape", {}, {"shape": b"round"}, {"shape"}),
        ("raw pixels with sizes", {"height": "h", "width": "w", "depth": "d"}, {"shape": b"round"}, {"shape"}),
        ("raw pixels with a shape", {"shape": "s"}, {"height": 1.5}, {"height"}),
    ],
)
def test_shape_and_size_names_are_ordinary_features_if_not_image_sizes(tmp_path, case, image_mapping, stored, expected):
    sizes = {"s": [*SIZE, 3], "h": SIZE[0], "w": SIZE[1], "d": 3}

    def make(index: int) -> dict:
        return {"image": IMAGES[index].tobytes() if image_mapping else encoded(index), **sizes, **stored}

    files = tf_input.open_tfrecords(write(tmp_path / "a.tfrecord", make), {"image": "image", **image_mapping, **{name: name for name in stored}})
    assert set(files.features) == {"image"} | expected, case
    (x, *_), *_ = [batch if isinstance(batch, tuple) else (batch,) for batch in read_all(files, inputs=("image", *expected))]
    np.testing.assert_array_equal(x["image"], IMAGES[:2])
    for name in expected:
        assert np.asarray(x[name]).tolist()[0] == stored[name], (case, name)


def test_rejects_boxes_whose_sides_differ_in_number(tmp_path):
    sides = {f"{OBJECT}/bbox/xmin": np.zeros(3, np.float32)}
    path = write(tmp_path / "a.tfrecord", lambda index: {**detection(index), **(sides if index == 4 else {})})
    with pytest.raises(tf.errors.InvalidArgumentError, match="sides of boxes"):
        read_all(tf_input.open_tfrecords(path), batch_size=COUNT, inputs="key")


@pytest.mark.slow
def test_mapping_assigns_features(tmp_path):
    def make(index: int) -> dict:
        boxes = np.tile(np.float32([0, 0.5, 1, 1]), index)
        picture = {"picture": encoded(index), "seg": encode_mask(np.full(SIZE, index, np.uint8))}
        return {**picture, "cls": [b"dog", b"cat"][index % 2], "w": index / 2, "boxes": boxes, "ids": [1] * index, "age": [1, 2]}

    path = write(tmp_path / "a.tfrecord", make)
    mapping = {"image": "picture", "label": "cls", "weight": "w", "mask": "seg"}
    more = {"objects/bbox": "boxes", "objects/label": "ids", "years": "age"}
    files = tf_input.open_tfrecords(path, mapping | more, label_names=("cat", "dog"))
    assert (files.layout.name, files.class_names, files.targets) == ("mapping", ("cat", "dog"), ("label",))
    x, y, weight = read_all(files, inputs=("image", "years"), targets=("label", "mask", "objects"), batch_size=COUNT)[0]
    np.testing.assert_array_equal(x["image"], IMAGES)
    assert x["years"].tolist() == [[1, 2]] * COUNT
    assert y["label"].tolist() == [1, 0, 1, 0, 1] and weight["label"].tolist() == [0, 0.5, 1, 1.5, 2]
    assert y["mask"].dtype == np.int32 and [set(mask.flat) for mask in y["mask"]] == [{index} for index in range(COUNT)]
    assert y["objects"]["valid"].sum(axis=1).tolist() == list(range(COUNT))
    assert y["objects"]["bbox"][4].tolist() == [[0, 0.5, 1, 1]] * 4

    unknown = tf_input.open_tfrecords(path, mapping, label_names=("cow", "dog"))
    with pytest.raises(tf.errors.InvalidArgumentError, match="label_names"):
        read_all(unknown)


def test_class_weight_and_one_hot_need_class_names(tmp_path):
    path = write(tmp_path / "a.tfrecord", raw)
    unknown = "number of classes"
    cases = [
        ({"class_weight": {0: 2.0}}, "class_weight={0: 2.0}: "),
        ({"class_weight": {"label": {0: 2.0}}}, "class_weight={'label': {0: 2.0}}: "),
        ({"one_hot": True}, "one_hot=True: "),
    ]
    with pytest.raises(ValueError, match="class_weight .*'lable'"):
        tf_input.open_tfrecords(path).batches(batch_size=COUNT, class_weight={"lable": {0: 2.0}})
    for options, message in cases:
        with pytest.raises(ValueError) as caught:
            tf_input.open_tfrecords(path).batches(batch_size=COUNT, **options)
        assert str(caught.value).startswith(message) and unknown in str(caught.value)
    names = [f"n{index}" for index in range(COUNT)]
    ((_, labels, weights),) = read_all(tf_input.open_tfrecords(path, label_names=names), batch_size=COUNT, class_weight={"n1": 2.0})
    np.testing.assert_array_equal(weights, np.where(labels == 1, 2.0, 1.0))


def test_rejects_invalid_label_names(tmp_path):
    path = write(tmp_path / "a.tfrecord", raw)
    for names in ("abc", ["a", "b", "a"], ["a", 1], {"a", "b"}, 3, b"ab", [None]):
        with pytest.raises(ValueError) as caught:
            tf_input.open_tfrecords(path, label_names=names)
        assert str(caught.value).startswith(f"label_names={names!r} ")
    for names in (["a", "b"], ("a", "b"), np.array(["a", "b"]), {"a": 0, "b": 1}):
        assert tf_input.open_tfrecords(path, label_names=names).class_names == ("a", "b")


def test_varying_number_of_labels_needs_label_names(tmp_path):
    path = write(tmp_path / "a.tfrecord", lambda index: {"image": encoded(index), "label": [0, 2][: index % 3]})
    (_, y), *_ = read_all(tf_input.open_tfrecords(path, label_names=tuple("abc")), batch_size=COUNT)
    assert y.tolist() == [[0, 0, 0], [1, 0, 0], [1, 0, 1], [0, 0, 0], [1, 0, 0]]
    with pytest.raises(ValueError, match="targets='label': .*label_names="):
        read_all(tf_input.open_tfrecords(path))


@pytest.mark.parametrize("order", [(0, 1, 2), (1, 0, 2), (2, 1, 0)])
def test_number_of_values_is_detected_from_several_records(tmp_path, order):
    values = [([1], [b"a"]), ([0, 2], [b"a", b"b"]), ([], [])]

    def make(index: int) -> dict:
        labels, tags = values[order[index]]
        return {"image": encoded(index), "label": labels, "tags": tags, **({"ids": [7]} if index else {})}

    path = write(tmp_path / "a.tfrecord", make, count=3)
    mapping = {name: name for name in ("image", "label", "tags", "ids")}
    files = tf_input.open_tfrecords(path, mapping, label_names=tuple("abc"))
    assert {files.features[name].shape for name in ("label", "tags", "ids")} == {(None,)}
    ((x, y),) = read_all(files, inputs=("tags", "ids"), batch_size=3, padding=False)
    expected = [[float(label in values[index][0]) for label in range(3)] for index in order]
    assert y.tolist() == expected and [row.tolist() for row in x["tags"]] == [values[index][1] for index in order]
    assert [row.tolist() for row in x["ids"]] == [[], [7], [7]]


def test_layout_detection_reads_several_short_files(tmp_path):
    for index, labels in enumerate([[1], [0, 2], []]):
        write(tmp_path / f"{index}.tfrecord", lambda _: {"image": encoded(0), "label": labels}, count=1)  # noqa: B023
    ((_, y),) = read_all(tf_input.open_tfrecords(tmp_path / "*.tfrecord", label_names=tuple("abc")), batch_size=3)
    assert y.tolist() == [[0, 1, 0], [1, 0, 1], [0, 0, 0]]


def test_list_in_mapping_allows_any_number_of_values(tmp_path):
    late = 70  # after the records that are inspected
    path = write(
        tmp_path / "a.tfrecord",
        lambda index: {"image": encoded(0), "label": [0, 2] if index == late else [1], "age": [3] * (1 + index // late)},
        count=late + 1,
    )
    mapping = {"image": "image", "label": "label", "age": "age"}
    options = {"label_names": tuple("abc")}
    for name in ("age", "label"):
        message = rf"{name} must .*{name}={name}\[\]"
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            read_all(tf_input.open_tfrecords(path, mapping, **options), inputs=name, targets=())
    files = tf_input.open_tfrecords(path, {**mapping, "label": ["label"], "age": ["age"]}, **options)
    assert files.features["label"].shape == files.features["age"].shape == (None,)
    x, y = read_all(files, inputs="age", batch_size=late + 1, padding=False)[0]
    assert x[late - 1].tolist() == [3] and x[late].tolist() == [3, 3]
    assert y[late - 1].tolist() == [0, 1, 0] and y[late].tolist() == [1, 0, 1]


@pytest.mark.slow
def test_named_layout_needs_no_objects_in_the_first_records(tmp_path):
    bare = {name: value for name, value in detection(0).items() if not name.startswith(OBJECT)}
    for count, layout in ((2, None), (71, "detection")):
        path = write(tmp_path / f"{count}", lambda index: detection(2) if index == count - 1 else bare, count=count)  # noqa: B023
        files = tf_input.open_tfrecords(path, layout)
        assert files.targets == ("objects",), count
        objects = read_all(files, batch_size=count, inputs="key")[0][1]
        assert objects["valid"].sum(axis=1).tolist() == [0] * (count - 1) + [2], count
        assert objects["label"][-1].tolist() == [3, 3], count
    with pytest.raises(ValueError, match="image/source_id.* layout"):
        tf_input.open_tfrecords(path)


def test_rejects_records_with_different_types(tmp_path):
    path = write(tmp_path / "a.tfrecord", lambda index: {"image": encoded(index), "label": index if index else b"ant"})
    with pytest.raises(ValueError, match="label .*bytes and int64 × 1 in label"):
        tf_input.open_tfrecords(path)
    lacking = write(tmp_path / "b.tfrecord", lambda index: {"label": index, **({} if index else {"image": encoded(index)})})
    with pytest.raises(ValueError, match="image .*bytes × 0..1 in image"):
        tf_input.open_tfrecords(lacking)


@pytest.mark.slow(1.5)
@pytest.mark.parametrize("labels", [[0, 3, 1], [0, -1, 1], [[0, 1], [3], []]])
def test_label_without_a_name_raises_an_error(tmp_path, labels):
    path = write(tmp_path / "a.tfrecord", lambda index: {"image": encoded(index), "label": labels[index]}, count=3)
    with pytest.raises(tf.errors.InvalidArgumentError, match="label_names .* 0 to 2"):
        read_all(tf_input.open_tfrecords(path, label_names=tuple("abc")))
    assert len(read_all(tf_input.open_tfrecords(path, label_names=tuple("abc")), targets=(), batch_size=3)) == 1


@pytest.mark.slow
def test_label_names_apply_to_objects_only_without_a_label_feature(tmp_path):
    path = write(tmp_path / "a.tfrecord", lambda index: {**detection(index), "label": 0})
    with pytest.raises(tf.errors.InvalidArgumentError, match="label_names"):
        read_all(tf_input.open_tfrecords(path, label_names=tuple("abc")))
    sides = tuple(f"{OBJECT}/bbox/{side}" for side in ("ymin", "xmin", "ymax", "xmax"))
    mapping = {"image": "image/encoded", "label": "label", "objects/bbox": sides, "objects/label": f"{OBJECT}/class/label"}
    read = read_all(tf_input.open_tfrecords(path, mapping, label_names=tuple("abc")), targets=("label", "objects"))
    assert max(y["objects"]["label"].max() for _, y in read) == COUNT


def test_raw_layout_can_contain_encoded_images(tmp_path):
    files = tf_input.open_tfrecords(write(tmp_path / "a.tfrecord", lambda index: {**raw(index), "image_raw": encoded(index)}))
    assert (files.layout.name, files.features["image"].kind) == ("raw", "image")
    np.testing.assert_array_equal(np.concatenate([x for x, _ in read_all(files)]), IMAGES)


@pytest.mark.slow
def test_shape_of_raw_pixels_can_be_stored_in_several_ways(tmp_path):
    grey = [image[..., 0] for image in IMAGES]
    cases = {
        "integers": [*SIZE, 1],
        "height and width": [*SIZE],
        "int32": np.array([*SIZE, 1], "<i4").tobytes(),
        "int64": np.array(SIZE, "<i8").tobytes(),
    }
    for case, shape in cases.items():
        path = write(tmp_path / case, lambda index: {"name": "x", "shape": shape, "data": grey[index].tobytes()})  # noqa: B023
        files = tf_input.open_tfrecords(path)
        assert files.image_size == SIZE and files.features["image"].shape == (*SIZE, 1), case
        np.testing.assert_array_equal(np.concatenate(read_all(files, image_size=None))[..., 0], grey, err_msg=case)


@pytest.mark.slow
def test_raw_pixels_of_different_shapes_are_resized(tmp_path):
    def make(index: int, late: int = 3) -> dict:
        height, width = SIZE if index < late else SIZE[::-1]
        pixels = np.full((height, width, 3), index, np.uint8)
        return {**raw(0), "label": index, "height": height, "width": width, "image_raw": pixels.tobytes()}

    files = tf_input.open_tfrecords(write(tmp_path / "a", make))
    assert files.features["image"].kind == "image" and files.image_size is None
    images = np.concatenate([x for x, _ in read_all(files, image_size=(5, 5), fit="stretch")])
    np.testing.assert_array_equal(images, np.tile(np.arange(COUNT, dtype=np.uint8).reshape(-1, 1, 1, 1), (1, 5, 5, 3)))
    path = write(tmp_path / "b", lambda index: make(index, late=70), count=71)
    message = r"image_raw .*\(6, 8, 3\).*image_raw:uint8\[\]"
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        read_all(tf_input.open_tfrecords(path))
    listed = tf_input.open_tfrecords(path, "image=image_raw:uint8[],height=height,width=width,depth=depth,label=label")
    assert sum(len(y) for _, y in read_all(listed, image_size=(5, 5))) == 71


@pytest.mark.slow
def test_error_for_unreadable_records_lists_their_features(tmp_path):
    floats = IMAGES[0].astype(np.float32).tobytes()
    image = {"image": "image/encoded"}
    cases = [
        # a record, layout, message
        ({"x": 1, "y": [b"a", b"b"]}, None, "records have x (int64 × 1), y (bytes × 2)"),
        ({}, None, "no features"),
        (slim(0), "raw", "raw needs image_raw, height, width, label"),
        (slim(0), "voc", "layout=voc"),
        (slim(0), {}, "layout={}"),
        (slim(0), {"image": "photo"}, "mapping needs photo"),
        (raw(0) | {"image_raw": floats}, None, "image_raw:float32"),
        (raw(0) | {"height": 10**15}, None, "'height' has 1 values, [1000000000000000]"),
        (raw(0) | {"depth": 7}, None, "6x8x7 of uint8"),
        (raw(0) | {"width": -8}, None, "'width' has 1 values, [-8]"),
        (slim(0) | {"image/encoded": b"none"}, None, "image must be a JPEG, PNG, GIF, BMP or WebP"),
        (slim(0) | {"image/encoded": 3}, None, "int64 × 1 in image/encoded"),
        (slim(0) | {"image/class/label": b"dog"}, None, "label_names="),
        (slim(0) | {"w": 2}, {**image, "weight": "w"}, "int64 × 1"),
        (slim(0) | {"b": 2}, {**image, "objects/bbox": "b"}, "objects/bbox"),
        (slim(0), {"image": ("image/encoded", "image/format")}, "['image/encoded', 'image/format']"),
        (slim(0), {**image, "label": "a|b"}, "mapping needs a or b"),
        (raw(0), {"image": "image_raw:float32[6,8]"}, "6x8x1 of float32"),
        (raw(0), {"image": "image_raw:float32"}, "image_raw:float32[28,28,1]"),
    ]
    for index, (record, layout, message) in enumerate(cases):
        path = write_records(tmp_path / f"{index}.tfrecord", [example(record)])
        with pytest.raises(ValueError) as caught:
            tf_input.open_tfrecords(str(path), layout)
        assert message in str(caught.value)
        assert str(path) in str(caught.value)


def test_rejects_unreadable_files(tmp_path):
    write_files(tmp_path, {"text": b"no records at all, " * 9, "empty": b"", "folder/a": b"", "folder/manifest.json": b"{}"})
    write_records(tmp_path / "no_example", [b"no example"])
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "endless").symlink_to("/dev/zero")
    cases = [
        ("pipe", ValueError, "pipe is a pipe"),
        ("endless", ValueError, "endless is a pipe"),
        ("missing*", FileNotFoundError, "missing*: "),
        ("text", ValueError, "text is not a TFRecord file"),
        ("empty", ValueError, "no records in"),
        ("folder", ValueError, "folder is a directory"),
        ("no_example", ValueError, "no_example: "),
    ]
    for name, error, message in cases:
        with pytest.raises(error) as caught:
            tf_input.open_tfrecords(tmp_path / name)
        assert message in str(caught.value), name
    plain = write(tmp_path / "plain", slim)
    with pytest.raises(ValueError, match="plain .*'GZIP'"):
        tf_input.open_tfrecords(plain, compression="GZIP")
    with pytest.raises(ValueError, match="compression='gzip'"):
        tf_input.open_tfrecords(plain, compression="gzip")


def test_rejects_prepared_datasets(tmp_path):
    prepared = prepare_images(tmp_path, num_images={"ant": 3, "bee": 3})
    shard = next(prepared.glob("*.tfrecord-*"))
    for pattern in (prepared, f"{prepared}/", f"{prepared}/*.tfrecord-*", [shard]):
        with pytest.raises(ValueError, match="made/? .*tf_input.open"):
            tf_input.open_tfrecords(pattern)


def test_ignores_manifest_of_other_programs(tmp_path, monkeypatch):
    write(tmp_path / "a.tfrecord", slim)
    (tmp_path / "manifest.json").write_text('{"name": "an app"}')
    monkeypatch.chdir(tmp_path)
    assert tf_input.open_tfrecords("*.tfrecord").layout.name == "slim"


def test_rejects_files_with_different_compression(tmp_path):
    for first, second in (("", "GZIP"), ("GZIP", ""), ("", "ZLIB"), ("ZLIB", "GZIP")):
        folder = tmp_path / f"{first}-{second}"
        write(folder / "a.tfrecord", slim, first, count=COUNT)
        write(folder / "b.tfrecord", slim, second)
        write(folder / "c.tfrecord", slim, first, count=0)
        with pytest.raises(ValueError, match=f"b.tfrecord .*'{first}'"):
            tf_input.open_tfrecords(folder / "*")


@pytest.mark.parametrize("length", [0x8B1F, 0x0178])
def test_record_length_is_not_mistaken_for_a_compression_header(tmp_path, length):
    path = tmp_path / "b.tfrecord"
    for padding in range(length):
        record = example({**slim(0), "x": bytes(padding)}) if padding > length - 1200 else b""
        if len(record) == length:
            break
    else:
        pytest.fail("no record of that length")
    write(tmp_path / "a.tfrecord", slim)
    write_records(path, [record])
    assert len(tf_input.open_tfrecords(tmp_path / "*.tfrecord").paths["train"]) == 2


def test_rejects_empty_list_of_files():
    with pytest.raises(ValueError, match=r"pattern=\[\]"):
        tf_input.open_tfrecords([])


def test_corrupt_record_among_the_first_raises_an_error(tmp_path):
    path = pathlib.Path(write(tmp_path / "a.tfrecord", slim))
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(ValueError, match="a.tfrecord: .* first 64 records"):
        tf_input.open_tfrecords(path)


@pytest.mark.slow
def test_several_files_are_read_as_one_split(tmp_path):
    for index in range(3):
        write(tmp_path / f"train-{index}.tfrecord", slim, count=index)  # the first file is empty
    files = tf_input.open_tfrecords(tmp_path / "train-*.tfrecord")
    assert files.paths["train"] == [str(tmp_path / f"train-{index}.tfrecord") for index in range(3)]
    assert sum(len(y) for _, y in read_all(files, inputs="key")) == 3
    listed = tf_input.open_tfrecords([tmp_path / "train-2.tfrecord", str(tmp_path / "train-1.tfrecord")])
    assert sum(len(y) for _, y in read_all(listed, inputs="key")) == 3
    with pytest.raises(ValueError, match="split='test'"):
        files.batches("test", batch_size=2, image_size=8)
    with pytest.raises(ValueError, match="image_size=None: "):
        files.batches(batch_size=2)


def test_counts_examples_if_requested(tmp_path):
    path = write(tmp_path / "a.tfrecord", slim, "GZIP")
    unknown, known = tf_input.open_tfrecords(path), tf_input.open_tfrecords(path, count=True)
    assert (unknown.num_examples(), known.num_examples()) == (None, COUNT)
    options = {"batch_size": 2, "image_size": SIZE}
    assert int(unknown.batches(**options).cardinality()) == tf.data.UNKNOWN_CARDINALITY
    assert len(known.batches(**options)) == 3


@pytest.mark.slow
def test_training_batches_are_shuffled_and_augmented(tmp_path):
    files = tf_input.open_tfrecords(write(tmp_path / "a.tfrecord", slim))
    options = {"batch_size": COUNT, "image_size": 4, "augment": True}
    epochs = [[y.numpy().tolist() for _, y in files.batches(**options, seed=seed)] for seed in range(2)]
    assert all(sorted(labels) == list(range(COUNT)) for (labels,) in epochs) and len({str(epoch) for epoch in epochs}) > 1


def test_rejects_options_that_need_an_index(tmp_path):
    write(tmp_path / "a", slim)
    files = tf_input.open_tfrecords(tmp_path / "a")
    cases = {
        "hosts=(2, 0)": {"hosts": (2, 0)},
        "cache_in_memory=0": {"cache_in_memory": 0},
        "shuffle='exact'": {"shuffle": "exact"},
    }
    for message, options in cases.items():
        for call in (files.batches, files.example_spec):
            with pytest.raises(ValueError) as caught:
                call(batch_size=2, image_size=8, **options)
            assert str(caught.value).startswith(f"{message} ")


@pytest.mark.slow
def test_reads_a_directory_of_tensorflow_datasets(tmp_path):
    tfds = pytest.importorskip("tensorflow_datasets", reason="tensorflow_datasets is not installed")
    features = tfds.features
    schema = {
        "image": features.Image(shape=(None, None, 3)),
        "label": features.ClassLabel(names=["ant", "bee"]),
        "key": features.Text(),
        "score": np.float32,
        "tags": features.Sequence(features.ClassLabel(num_classes=3)),
        "zipped": features.Tensor(shape=(2,), dtype=np.uint8, encoding="zlib"),
        "objects": features.Sequence({"bbox": features.BBoxFeature(), "label": features.ClassLabel(names=["x", "y"])}),
        "segmentation_mask": features.LabeledImage(labels=3, shape=(None, None, 1)),
        "trimap": features.Image(shape=(None, None, 1), use_colormap=True),
        "depth": features.Image(shape=(None, None, 1), dtype=np.uint16),
        "flow": features.Image(shape=(None, None, 1), dtype=np.float32),
    }

    def make(index: int) -> dict:
        box = features.BBox(ymin=0.0, xmin=0.25, ymax=0.5, xmax=1.0)
        return {
            **{"image": IMAGES[index], "label": index % 2, "key": f"k{index}", "score": index / 2},
            **{"tags": [0, 2][: index % 3], "objects": [{"bbox": box, "label": 1}] * (index % 3)},
            "zipped": np.zeros(2, np.uint8),
            "segmentation_mask": np.full((*SIZE, 1), index % 3, np.uint8),
            "trimap": np.full((*SIZE, 1), index % 3 + 1, np.uint8),
            "depth": np.full((*SIZE, 1), 1000 * index, np.uint16),
            "flow": np.full((*SIZE, 1), index, np.float32),
        }

    class Toy(tfds.core.GeneratorBasedBuilder):
        VERSION = tfds.core.Version("1.0.0")
        pkg_dir_path = tmp_path

        def _info(self):
            return self.dataset_info_from_configs(features=features.FeaturesDict(schema), supervised_keys=("image", "label"))

        def _split_generators(self, _):
            return {"train": self._generate_examples(range(COUNT)), "test": self._generate_examples(range(2))}

        def _generate_examples(self, indices):
            for index in indices:
                yield index, make(index)

    builder = Toy(data_dir=tmp_path)
    builder.download_and_prepare()
    toy = tf_input.open_tfrecords(builder.data_path)
    assert (toy.layout.name, toy.splits, toy.targets) == ("tfds", ("train", "test"), ("label",))
    assert (toy.num_examples("train"), toy.num_examples("test")) == (COUNT, 2)
    assert toy.class_names == ("ant", "bee") and toy.features["objects/label"].label_names == ("x", "y")
    masks = ("segmentation_mask", "trimap", "depth")
    assert set(toy.features) == {"image", "label", "key", "score", "tags", "objects/bbox", "objects/label", *masks}
    assert {toy.features[name].kind for name in masks} == {"mask"}
    targets = ("label", "tags", "objects", *masks)
    options = {"inputs": ("image", "key", "score"), "targets": targets}
    (batch,) = toy.batches("train", batch_size=COUNT, image_size=SIZE, **options)
    x, y = tf.nest.map_structure(lambda tensor: tensor.numpy(), batch)
    expected = {f"k{index}".encode(): make(index) for index in range(COUNT)}
    assert sorted(x["key"]) == sorted(expected)
    for row, key in enumerate(x["key"]):
        item = expected[key]
        np.testing.assert_array_equal(x["image"][row], item["image"])
        assert (x["score"][row], y["label"][row]) == (item["score"], item["label"])
        assert np.flatnonzero(y["tags"][row]).tolist() == item["tags"]
        assert y["objects"]["valid"][row].sum() == len(item["objects"])
        for name in masks:
            np.testing.assert_array_equal(y[name][row], item[name], err_msg=name)
    with pytest.raises(ValueError, match="layout='slim'.*TensorFlow Datasets"):
        tf_input.open_tfrecords(builder.data_path, "slim")
    for option in ({"label_names": ("a", "b")}, {"compression": "GZIP"}):
        with pytest.raises(ValueError, match="label_names and compression"):
            tf_input.open_tfrecords(builder.data_path, **option)


def test_single_image_feature_of_tensorflow_datasets_is_not_a_mask(tmp_path):
    info = b'{"name": "a", "splits": [{"name": "train", "shardLengths": ["1"], "filepathTemplate": "a"}]}'
    grey, mapped = ({"shape": {"dimensions": ["-1", "-1", "1"]}, **more} for more in ({}, {"useColormap": True}))
    cases = [
        ({"image": grey}, {"image": "image"}),
        ({"left": grey, "right": grey}, {"image": "image", "right": "image"}),
        ({"image": mapped}, {"image": "image"}),
        ({"image": grey, "seg": mapped}, {"image": "image", "seg": "mask"}),
        ({"image": grey, "colour": {"shape": {"dimensions": ["8", "8", "3"]}}}, {"image": "image", "colour": "image"}),
        ({"image": {}, "scan": {**grey, "encodingFormat": "jpeg"}}, {"image": "image", "scan": "image"}),
    ]
    for index, (images, kinds) in enumerate(cases):
        fields = {"featuresDict": {"features": {name: {"image": image} for name, image in images.items()}}}
        files = {"dataset_info.json": info, "features.json": json.dumps(fields).encode()}
        folder = write_files(tmp_path / str(index), files)
        write(folder / "a", lambda _, names=tuple(images): dict.fromkeys(names, encoded(0)), count=1)
        actual = tf_input.open_tfrecords(folder).features
        assert {name: feature.kind for name, feature in actual.items()} == kinds, images


def test_rejects_corrupt_directory_of_tensorflow_datasets(tmp_path):
    info = '{"name": "a", "splits": [{"name": "train", "shardLengths": ["1"], "filepathTemplate": "%s"}]}'
    image = '{"featuresDict": {"features": {"photo": {"image": {}}}}}'
    cases = [
        # dataset_info.json, features.json, message
        ("{", image, "dataset_info.json: "),
        ("[1]", image, "dataset_info.json: "),
        ("{}", image, "dataset_info.json: KeyError: 'splits'"),
        ('{"fileFormat": "riegeli", "splits": []}', image, "format 'riegeli'"),
        (info % "../{SPLIT}", image, "outside the directory"),
        (info % "{NOTHING}", image, "dataset_info.json: KeyError"),
        (info % "a", '{"featuresDict": 3}', "features.json: "),
        (info % "a", '{"featuresDict": {"features": {"x": {"text": {}}}}}', "features.json"),
    ]
    for index, (dataset_info, features, message) in enumerate(cases):
        files = {"dataset_info.json": dataset_info.encode(), "features.json": features.encode()}
        folder = write_files(tmp_path / str(index), files)
        write(folder / "a", slim, count=1)
        with pytest.raises(ValueError) as caught:
            tf_input.open_tfrecords(folder)
        assert message in str(caught.value)
