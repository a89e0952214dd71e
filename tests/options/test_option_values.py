"""Tests how option values are parsed, and the error messages for invalid values."""

from fractions import Fraction

import pytest

from beam_pipelines.config.option import all_declarations
from beam_pipelines.config.prepare_options import PrepareOptions
from beam_pipelines.errors import UserError
from beam_pipelines.options.arguments import make_parser, read


def parse(*options: str) -> PrepareOptions:
    command = ["prepare", "--input=in", "--output=out", *options]
    arguments, _ = make_parser(command).parse_known_args(command)
    return read(PrepareOptions, arguments)


def test_values_are_parsed():
    cases = {
        # The sums of these floats are 0.9999999999999999 and 1.0000000000000002.
        "--splits=train=0.1,validation=0.2,test=0.7": ("splits", {"train": Fraction(1, 10), "validation": Fraction(1, 5), "test": Fraction(7, 10)}),
        "--splits=a=0.7,b=0.1,c=0.1,d=0.1": ("splits", {"a": Fraction(7, 10), **dict.fromkeys("bcd", Fraction(1, 10))}),
        "--splits=b=1/3, a=2/3": ("splits", {"b": Fraction(1, 3), "a": Fraction(2, 3)}),
        "--num_shards= 16 ": ("num_shards", 16),
        "--num_shards=a = 1 , b = 2": ("num_shards", {"a": 1, "b": 2}),
        "--shard_size=1": ("shard_bytes", 1),
        "--shard_size=512B": ("shard_bytes", 512),
        "--shard_size=128mib": ("shard_bytes", 128 << 20),
        "--shard_size= 1.5 GiB ": ("shard_bytes", 3 << 29),
        "--shard_size=0.1GB": ("shard_bytes", 100_000_000),
        "--shard_size=4KB": ("shard_bytes", 4_000),
        "--shard_size=4KiB": ("shard_bytes", 4_096),
        "--output=out/my-data 1/": ("output", "out/my-data 1"),
        "--no_report": ("has_report", False),
        "--stratify": ("stratify", ("label",)),
        "--split_folders=no": ("split_folders", False),
    }
    for text, (field, expected) in cases.items():
        actual = getattr(parse(text) if "--output" not in text else read_output(text), field)
        assert actual == expected and (not isinstance(expected, dict) or list(actual) == list(expected)), text


def read_output(option: str) -> PrepareOptions:
    command = ["prepare", "--input=in", option]
    config = read(PrepareOptions, make_parser(command).parse_args(command))
    assert config.name == "my_data_1"
    return config


INVALID = {
    "splits": ("", "train", "train=", "=1", "train=x", "train=nan", "train=inf", "train=1/0", "a=0.5,a=0.5", "train=1,"),
    "num_shards": ("", "x", "1.5", "-1", "16MiB", "train=", "train=x", "train=1.5", "train=1,train=2", "1,2", "²", "4" * 5000, "0"),
    "shard_size": ("", "MiB", "12 M", "12MiBs", "-1MiB", "1e3", "1,5GB", "1.GB", "0x10", "0", "0.4B", "9" * 5000),
    "seed": ("", "x", "1.5", "1_000", "-1", str(2**64), "9" * 5000),
    "max_bad_fraction": ("", "x", "nan", "-0.1", "5"),
    "name": ("", "2flowers", "my-flowers", "../flowers", "blümchen"),
    "stratify": ("label,label", "label,"),
    "pixel_shape": ("4", "4,4,2", "0,4", "a,b"),
    "mask_values": ("1", "1=2,1=3", "1=70000"),
    "output": ("",),
    "image_format": ("gif", "png:90", "jpeg:", "jpeg:0", "jpeg:101"),
    "image_size": ("256", "short=", "exact=224", "exact=0x9"),
    "delimiter": ("ab", "a"),
    "ignore": ("",),
}


@pytest.mark.parametrize("option", INVALID)
def test_error_names_option_value_and_valid_values(option):
    for text in INVALID[option]:
        with pytest.raises(UserError) as caught:
            parse(f"--{option}={text}") if option != "output" else read_output(f"--output={text}")
        assert str(caught.value).startswith(f"--{option}=") and "Give " in str(caught.value) and "\n" not in str(caught.value), text


def test_options_are_declared_completely():
    for name, declared in all_declarations(PrepareOptions).items():
        assert declared.field and name == name.lower(), name
        assert not declared.check or declared.expected, f"{name}: the message needs the valid values"
        for other in (declared.excludes, declared.needs.partition("=")[0]):
            assert not other or other in all_declarations(PrepareOptions), name
