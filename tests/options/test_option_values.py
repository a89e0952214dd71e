"""Tests how option values are parsed, and the error messages for invalid values."""

from fractions import Fraction

import pytest

from beam_pipelines.config.prepare_config import PrepareConfig
from beam_pipelines.errors import UserError
from beam_pipelines.options.option_values import parse_num_shards, parse_size, parse_splits


def make_config(**options: object) -> PrepareConfig:
    return PrepareConfig(**{"input": "in", "output": "out", "name": "flowers", **options})


def test_splits_are_parsed_as_exact_fractions_in_the_given_order():
    cases = [
        # the sums of these floats are 0.9999999999999999 and 1.0000000000000002
        ("train=0.1,validation=0.2,test=0.7", [("train", "1/10"), ("validation", "1/5"), ("test", "7/10")]),
        ("a=0.7,b=0.1,c=0.1,d=0.1", [("a", "7/10"), ("b", "1/10"), ("c", "1/10"), ("d", "1/10")]),
        ("b=1/3, a=2/3", [("b", "1/3"), ("a", "2/3")]),
        ("train=1", [("train", "1")]),
    ]
    for text, expected in cases:
        parsed = parse_splits(text)
        assert list(parsed.items()) == [(split, Fraction(fraction)) for split, fraction in expected], text
        assert sum(parsed.values()) == 1, text
        assert make_config(splits=parsed).splits == parsed, text


def test_invalid_splits_are_rejected():
    texts = ("", "train", "train=", "=1", "train=x", "train=nan", "train=inf", "train=1/0", "a=0.5,a=0.5", "train=1,")
    for text in texts:
        with pytest.raises(UserError) as caught:
            make_config(splits=parse_splits(text))
        for part in ("--splits=", "Give "):
            assert part in str(caught.value), text


def test_num_shards_is_parsed():
    cases = {"16": 16, " 16 ": 16, "train=14,validation=2": {"train": 14, "validation": 2}, "a = 1 , b = 2": {"a": 1, "b": 2}}
    for text, expected in cases.items():
        assert parse_num_shards(text) == expected, text


def test_invalid_num_shards_is_rejected():
    for text in ("", "x", "1.5", "-1", "16MiB", "train=", "train=x", "train=1.5", "train=1,train=2", "1,2", "²", "4" * 5000):
        with pytest.raises(UserError) as caught:
            make_config(num_shards=parse_num_shards(text))
        for part in (f"--num_shards={text}", "a number"):
            assert part in str(caught.value), text


def test_sizes_are_parsed():
    cases = {
        "1": 1,
        "512B": 512,
        "128MiB": 128 << 20,
        "128mib": 128 << 20,
        " 1.5 GiB ": 3 << 29,
        "100MB": 100_000_000,
        "0.1GB": 100_000_000,
        "4KB": 4_000,
        "4KiB": 4_096,
        "2GB": 2_000_000_000,
    }
    for text, expected in cases.items():
        assert parse_size(text) == expected, text


def test_invalid_sizes_are_rejected():
    for text in ("", "MiB", "12 M", "12MiBs", "-1MiB", "1e3", "1,5GB", "1.GB", "0x10", "0", "0.4B"):
        with pytest.raises(UserError) as caught:
            make_config(shard_bytes=parse_size(text))
        for part in ("--shard_size=", "128MiB"):
            assert part in str(caught.value), text
