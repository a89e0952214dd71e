"""Tests the derived values of `ReadConfig`, and errors that name an invalid option."""

import fractions
import json
import pickle
import types

import numpy as np
import pytest

import tf_input
from prepared import prepare_images
from tf_input.dataset_format import is_training_split, main_split, training_split
from tf_input.read_config import Augmentation, ReadConfig


def test_error_names_the_invalid_option_and_value():
    cases = {
        "batch_size=0": {"batch_size": 0},
        "batch_size=-1": {"batch_size": -1},
        "batch_size=2.5": {"batch_size": 2.5},
        "batch_size=True": {"batch_size": True},
        "batch_size='8'": {"batch_size": "8"},
        "image_size=0": {"image_size": 0},
        "image_size=(224,)": {"image_size": (224,)},
        "image_size=(224, 224, 3)": {"image_size": (224, 224, 3)},
        "image_size=(224, 0)": {"image_size": (224, 0)},
        "image_size='224'": {"image_size": "224"},
        "image_size=224.0": {"image_size": 224.0},
        "augment='flip'": {"augment": "flip"},
        "shuffle='yes'": {"shuffle": "yes"},
        "seed=1.5": {"seed": 1.5},
        f"seed={2**63}": {"seed": 2**63},
        "drop_remainder=3": {"drop_remainder": 3},
        "fit='zoom'": {"fit": "zoom"},
        "interpolation='nearest'": {"interpolation": "nearest"},
        "interpolation=True": {"interpolation": True},
        "fit='pad'": {"fit": "pad", "augment": True},
        "inputs=()": {"inputs": ()},
        "inputs=('image', 'image')": {"inputs": ("image", "image")},
        "inputs=3": {"inputs": 3},
        "targets=('label', 1)": {"targets": ("label", 1)},
        "padding={'objects': 0}": {"padding": {"objects": 0}},
        "padding=0": {"padding": 0},
        "padding='pad'": {"padding": "pad"},
        "cache_in_memory=-1": {"cache_in_memory": -1},
        "cache_in_memory=1.5": {"cache_in_memory": 1.5},
        "cache_in_memory=nan": {"cache_in_memory": float("nan")},
        "read_buffer=inf": {"read_buffer": float("inf")},
        "read_buffer=0.0": {"read_buffer": 0.0},
        "seed=True": {"seed": True},
        "skip_corrupt='ignore'": {"skip_corrupt": "ignore"},
        "hosts=(2, 2)": {"hosts": (2, 2)},
        "hosts=4": {"hosts": 4},
        "drop_remainder=array([ True, False])": {"drop_remainder": np.array([True, False])},
        "drop_remainder=[True]": {"drop_remainder": [True]},
        "class_weight=array([1., 1.])": {"class_weight": np.ones(2)},
        "shuffle=array([1., 1.])": {"shuffle": np.ones(2)},
        "fit=array([1., 1.])": {"fit": np.ones(2)},
        "one_hot=''": {"one_hot": ""},
        "with_keys=1": {"with_keys": 1},
        "select=''": {"select": ""},
        "select=3": {"select": 3},
        "select=b'label'": {"select": b"label"},
        "select=()": {"select": ()},
        "select=[1, 'a']": {"select": [1, "a"]},
        "select=[-1]": {"select": [-1]},
        "select=True": {"select": [True]},
        "balance='over'": {"balance": "over"},
        "balance={'cat': 0.4}": {"balance": {"cat": 0.4}},
        "balance={'cat': 1.5, 'dog': -0.5}": {"balance": {"cat": 1.5, "dog": -0.5}},
        "balance={0: 1}": {"balance": {0: 1}},
        f"balance={{'cat': {10**400}, 'dog': 0.5}}": {"balance": {"cat": 10**400, "dog": 0.5}},
        "map_example='f'": {"map_example": "f"},
        "map_batch=1": {"map_batch": 1},
        "drop_remainder=True can't be combined with skip_corrupt=True": {"drop_remainder": True, "skip_corrupt": True},
    }
    for message, options in cases.items():
        with pytest.raises(ValueError) as caught:
            ReadConfig(**{"batch_size": 8, **options})
        assert str(caught.value).startswith(message)


def test_byte_counts_can_be_floats():
    config = ReadConfig(8, cache_in_memory=1e9, read_buffer=np.float32(1 << 20))
    assert [(type(value), value) for value in (config.cache_in_memory, config.read_buffer)] == [
        (int, 10**9),
        (int, 1 << 20),
    ]


def test_rejects_invalid_augmentations():
    for min_area in (0, -0.1, 1.1, "0.3", None, True, float("nan")):
        with pytest.raises(ValueError, match=f"min_area={min_area!r}"):
            Augmentation(min_area=min_area)
    for option in ("flip", "crop"):
        with pytest.raises(ValueError, match=f"{option}=2"):
            Augmentation(**{option: 2})
    for option, maximum in {"brightness": 1.0, "contrast": 1.0, "saturation": 1.0, "hue": 0.5}.items():
        for value in (-0.1, maximum + 0.1, True, "much", float("nan")):
            with pytest.raises(ValueError, match=f"{option}={value!r}"):
                Augmentation(**{option: value})


def test_jitters_is_true_if_colors_vary():
    assert not Augmentation().jitters
    assert all(Augmentation(**{option: 0.1}).jitters for option in ("brightness", "contrast", "saturation", "hue"))


def test_numpy_integers_and_lists_are_converted():
    config = ReadConfig(batch_size=np.int64(8), image_size=[np.int32(20), 30], seed=np.int64(-1), hosts=[np.int8(100), np.uint8(99)])
    assert config.height_and_width == (20, 30) and config.hosts == (100, 99) and type(config.hosts[0]) is int
    sizes = {
        "integer": (np.uint8(200), 200),
        "pair": ((np.int16(200), np.uint8(100)), (200, 100)),
        "mapping": (types.MappingProxyType({"image": np.int16(64), "right": [np.uint8(200), 100]}), {"image": 64, "right": (200, 100)}),
        "largest": ("largest", "largest"),
    }
    for case, (given, expected) in sizes.items():
        actual = ReadConfig(8, given).image_size
        assert (actual, repr(actual)) == (expected, repr(expected)), case


def test_numpy_booleans_are_converted():
    config = ReadConfig(8, drop_remainder=np.True_)
    assert config.drop_remainder is True


def test_height_and_width_of_image_size():
    cases = {None: None, 224: (224, 224), (20, 30): (20, 30)}
    for image_size, expected in cases.items():
        assert ReadConfig(8, image_size).height_and_width == expected, image_size


def test_order_depends_on_split_augment_and_shuffle():
    augmentation = Augmentation(flip=False)
    cases = [
        # split, augment, shuffle, expected
        ("train", False, None, "window"),
        ("train", False, False, None),
        ("train", True, False, None),
        ("train", True, "exact", "exact"),
        ("validation", False, None, None),
        ("validation", False, True, "window"),
        ("validation", False, "exact", "exact"),
        ("validation", True, None, "window"),
        ("validation", augmentation, None, "window"),
    ]
    for split, augment, shuffle, expected in cases:
        assert ReadConfig(8, augment=augment, shuffle=shuffle).order(split) == expected, (split, augment, shuffle)


def test_augment_option_is_converted_to_augmentation():
    augmentation = Augmentation(0.5)
    assert [ReadConfig(8, augment=augment).augmentation for augment in (False, True, augmentation)] == [
        None, Augmentation(), augmentation,
    ]


def test_names_can_be_a_string_or_a_sequence():
    assert ReadConfig(8).input_names == ("image",)
    assert ReadConfig(8, inputs="age").input_names == ("age",)
    assert ReadConfig(8, inputs=["image", "age"]).input_names == ("image", "age")
    cases = {None: ("label",), "mask": ("mask",), ("a", "b"): ("a", "b"), (): ()}
    for targets, expected in cases.items():
        assert ReadConfig(8, targets=targets).target_names(("label",)) == expected, targets


def test_pad_allows_flips_without_crops():
    assert ReadConfig(8, fit="pad", augment=Augmentation(crop=False)).augmentation.flip


def test_num_batches_depends_on_drop_remainder():
    cases = [(1, 8, False, 1), (8, 8, False, 1), (9, 8, False, 2), (9, 8, True, 1), (16, 8, True, 2), (8, 1, True, 8)]
    for num_examples, batch_size, drop_remainder, expected in cases:
        config = ReadConfig(batch_size, drop_remainder=drop_remainder)
        assert config.num_batches("train", num_examples) == expected, (num_examples, batch_size, drop_remainder)


def test_rejects_splits_without_a_complete_batch():
    with pytest.raises(ValueError, match="drop_remainder.* 8.* 7 examples"):
        ReadConfig(8, drop_remainder=True).num_batches("train", 7)
    with pytest.raises(ValueError, match="train .*no readable"):
        ReadConfig(8).num_batches("train", 0)


def test_integers_of_any_type_are_equal():
    options = {"batch_size": 8, "seed": 3, "cache_in_memory": 9}
    config = ReadConfig(**{name: np.uint8(value) for name, value in options.items()})
    assert config == ReadConfig(**options)
    assert all(type(getattr(config, name)) is int for name in options)


def test_numbers_of_any_type_are_equal():
    shares = {"min_area": 0.25, "brightness": 0.5, "contrast": 1, "saturation": 0.75, "hue": 0.125}
    for kind in (np.float16, np.float32, np.float64, fractions.Fraction):
        augmentation = Augmentation(**{name: kind(value) for name, value in shares.items()})
        assert augmentation == Augmentation(**shares) and repr(augmentation) == repr(Augmentation(**shares)), kind
        assert all(type(getattr(augmentation, name)) is float for name in shares), kind


CLASS_WEIGHTS = {
    "NumPy labels": {np.int64(0): 2.0, np.uint8(1): 0.5},
    "NumPy weights": {0: np.float32(2.0), 1: np.float16(0.5)},
    "integers": {0: 2, 1: fractions.Fraction(1, 2)},
    "read-only mapping": types.MappingProxyType({0: 2.0, 1: 0.5}),
}


@pytest.mark.parametrize("case", CLASS_WEIGHTS)
@pytest.mark.parametrize("target", [None, "label"])
def test_class_weights_are_converted_to_plain_dictionaries(case, target):
    given, expected = (
        weights if target is None else types.MappingProxyType({target: weights})
        for weights in (CLASS_WEIGHTS[case], {0: 2.0, 1: 0.5})
    )
    actual = ReadConfig(8, class_weight=given).class_weight
    assert actual == expected and json.loads(json.dumps(actual)) == json.loads(json.dumps(ReadConfig(8, class_weight=expected).class_weight))
    assert pickle.loads(pickle.dumps(actual)) == actual


def test_split_names_determine_shuffling():
    cases = {
        "train training Training trn TRAIN train_extra train-2017 train2017 trainval my_train": "window",
        "validation val valid dev Dev test testing test2017 eval holdout hold_out": None,
        "a fold_1 train_val trainer": None,
    }
    for names, order in cases.items():
        for name in names.split():
            assert ReadConfig(8).order(name) == order, name
            assert ReadConfig(8, shuffle=False).order(name) is None
    expected = {"train": True, "test": False, "fold_1": None, "train_val": None}
    assert {name: is_training_split(name) for name in expected} == expected
    assert training_split(["train", "training"]) == "train" and training_split(["test", "Training"]) == "Training"
    for names in (["trn", "training"], ["fold_1", "test"]):
        with pytest.raises(ValueError, match=f"one of {', '.join(names)}"):
            training_split(names)
    cases = [
        ({"seg_test": 9, "seg_train": 1}, "seg_train"),
        ({"train": 1, "trn": 9, "test": 99}, "train"),
        ({"trn": 1, "training": 9, "val2017": 99}, "training"),
        ({"fold_0": 8, "fold_1": 9, "test": 99}, "fold_1"),
        ({"fold_0": 9, "fold_1": 9}, "fold_0"),
        ({"segtest": 9, "segtrain": 1}, "segtrain"),
        ({"segtest": 9, "other": 1}, "other"),
        ({"valid": 9, "test": 10}, "test"),
    ]
    for num_examples, split in cases:
        assert main_split(num_examples) == split, num_examples


@pytest.mark.slow
def test_unknown_split_name_is_warned_about_once(tmp_path, caplog):
    data = tf_input.open(prepare_images(tmp_path, "--splits", "training=0.7,val=0.2,fold_1=0.1"))
    batches = {name: data.batches(name, batch_size=8, image_size=8, seed=0) for name in data.splits for _ in range(2)}
    assert {name: split.iterator_state.fingerprint["shuffle"] for name, split in batches.items()} == {"training": "window", "val": None, "fold_1": None}
    (message,) = [record.getMessage() for record in caplog.records if "antialias" not in record.getMessage()]
    assert message.startswith("fold_1 ")
    assert data.batches("fold_1", batch_size=8, image_size=8, seed=0, shuffle=True).iterator_state.fingerprint["shuffle"] == "window"
    assert data.class_weight() == data.class_weight("training") and data.example_spec(batch_size=8, image_size=8)
