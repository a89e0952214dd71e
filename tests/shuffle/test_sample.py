"""The sample: always the same inputs, looked at before anything is written. It says how many shards there will be, and what is a wrong folder."""

import dataclasses
import pathlib
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from beam_pipelines.__main__ import main
from beam_pipelines.config.image_config import ImageConfig
from beam_pipelines.config.prepare_job import PrepareJob
from beam_pipelines.elements.input_record import InputRecord
from beam_pipelines.elements.listing import Listing
from beam_pipelines.elements.reference_runs import write_run
from beam_pipelines.elements.references import References
from beam_pipelines.elements.shuffle_keys import shuffle_key
from beam_pipelines.errors import RunError, UserError
from beam_pipelines.runners import local
from beam_pipelines.shards.measure import measure_inputs
from beam_pipelines.shuffle import sample
from beam_pipelines.shuffle.sample import MAX_SAMPLE, MIN_SAMPLE, check_sample, sample_size, smallest_of_run, take_sample
from listings import make_listing
from made_images import encode, jpeg, noise, write_class_folders, write_files
from made_references import count_keys, list_input, make_config, make_references
from tf_input.dataset_format import read_manifest


def take(batches: list[References], listing: Listing, config: PrepareJob) -> References:
    """The sample of runs, which come in whatever order."""
    parts = [part for batch in batches for part in smallest_of_run(write_run([batch], config.spool_directory), listing, config)]
    random.Random(len(parts)).shuffle(parts)
    return take_sample(parts).slice(0, sample_size(listing, config))


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(num=st.integers(1, 1500), seed=st.integers(0, 2**64 - 1), size=st.integers(1, 700), random=st.randoms(use_true_random=False))
def test_it_is_the_inputs_with_the_smallest_keys_whatever_the_runs(tmp_path_factory, num, seed, size, random):
    keys = [f"c/{index}.jpg" for index in range(num)]
    expected = sorted(keys, key=lambda key: shuffle_key(seed, key.encode()))
    random.shuffle(keys)
    config = make_config(tmp_path_factory.mktemp("run"), seed=seed)
    images = [InputRecord(key, key, "c", None) for key in keys]
    batches = [make_references(images[start : start + size], config) for start in range(0, num, size)]
    listing = make_listing("c", num_inputs=num)
    actual = [key.decode() for key in take(batches, listing, config).keys]
    assert actual == expected[: max(MIN_SAMPLE, min(num // 50, MAX_SAMPLE))]


def test_a_run_of_many_hands_on_few_references(tmp_path):
    config = make_config(tmp_path)
    images = [InputRecord(f"{index}", f"{index}", "c", None) for index in range(5000)]
    run = write_run([make_references(images, config)], config.spool_directory)
    for num_inputs, at_most in ((5000, MAX_SAMPLE), (5_000_000, 8), (10**9, 4)):
        (packed,) = smallest_of_run(run, make_listing("c", num_inputs=num_inputs), config)
        assert len(References.unpack(packed)) <= at_most, num_inputs


@pytest.mark.parametrize(
    "num_inputs, num_bytes, options, expected",
    [
        (10, 0, {}, MIN_SAMPLE),
        (50 * 40, 0, {}, 40),  # two of a hundred
        (10**9, 0, {}, MAX_SAMPLE),
        (50 * 40, 10**9, {}, MIN_SAMPLE),  # the listing knows the sizes
        (50 * 40, 10**9, {"images": ImageConfig(("short", 64))}, 40),  # but not those of what is stored
        (50 * 40, 10**9, {"images": ImageConfig(("exact", 8, 8), encoding="raw")}, 40),
    ],
)
def test_no_more_inputs_are_looked_at_than_it_takes(tmp_path, num_inputs, num_bytes, options, expected):
    listing = make_listing("c", num_inputs=num_inputs, num_bytes=num_bytes)
    assert sample_size(listing, make_config(tmp_path, **options)) == expected


# What it says


class Input:
    """A folder of inputs that is listed."""

    def __init__(self, directory: pathlib.Path, files: dict[str, bytes], **options: object) -> None:
        root = write_files(directory / "in", files)
        self.config = make_config(directory, input=str(root), **{"splits": {"train": 1}, **options})
        self.batches, _, self.listing = list_input(self.config)

    def check(self) -> dict[str, int]:
        looked_at = take(self.batches, self.listing, self.config)
        return check_sample(looked_at, self.listing, count_keys(self.batches), self.config, measure_inputs)


def mixed(num: int, num_bad: int) -> dict[str, bytes]:
    """Class folders in which some files are no images, spread by their names alone."""
    bad = set(random.Random(0).sample(range(num), num_bad))
    return {f"c/{index:04d}.jpg": b"<!DOCTYPE html>" if index in bad else jpeg(index % 7) for index in range(num)}


def test_the_number_of_shards_comes_from_what_the_sample_is_stored_as(tmp_path):
    picture = encode(noise(1, 200, 300), "PNG")
    files = {f"c/{index:02d}.png": picture for index in range(60)}
    cases = [
        ("as they are", {}, len(picture)),
        ("as pixels of a size", {"images": ImageConfig(("exact", 100, 90), encoding="raw")}, 100 * 90 * 3),
    ]
    for case, options, num_bytes in cases:
        for shard_bytes in (num_bytes * 10, num_bytes * 7):
            actual = Input(tmp_path / f"{case} {shard_bytes}", files, shard_bytes=shard_bytes, **options).check()
            assert actual == {"train": -(-60 * num_bytes // shard_bytes)}, case


def test_the_number_of_shards_comes_from_the_listing_where_that_knows_the_sizes(tmp_path):
    some = Input(tmp_path, mixed(40, 0), shard_bytes=1000)
    some.listing = dataclasses.replace(some.listing, num_bytes=40_000)
    assert some.check() == {"train": 40}


def test_a_number_of_shards_that_is_given_is_taken(tmp_path):
    assert Input(tmp_path, mixed(40, 0), num_shards=7, splits=None).check() == {"train": 6, "validation": 1}


def test_the_sample_is_checked_in_light_processes_as_in_one(tmp_path):
    numbers = [Input(tmp_path / f"{num}", mixed(60, 3), shard_bytes=5000, num_processes=num, max_bad_fraction=0.3).check() for num in (0, 2)]
    assert numbers[0] == numbers[1] and numbers[0]["train"] > 5


def test_a_split_that_no_input_falls_into_is_refused(tmp_path):
    with pytest.raises(UserError, match="split 'validation' would be empty: none of 3 examples"):
        Input(tmp_path, mixed(3, 0), splits=None).check()


# Bad inputs


@pytest.mark.parametrize(
    "num, num_bad, max_bad_fraction, error, message",
    [
        (5, 5, 0.01, UserError, "no input has a readable image. The dead letters include:\n  - c/0000.jpg: "),
        (2000, 2000, 0.01, UserError, "none of the first 40 inputs has a readable image. The dead letters include:\n  - "),
        (2000, 1500, 0.01, RunError, "of the first 40 inputs are dead letters, so the total will exceed --max_bad_fraction=0.01"),
        (2000, 1500, 0, RunError, "--max_bad_fraction=0."),
    ],
)
def test_an_input_that_cannot_end_well_is_told_of_at_once(tmp_path, num, num_bad, max_bad_fraction, error, message):
    with pytest.raises(error) as caught:
        Input(tmp_path, mixed(num, num_bad), max_bad_fraction=max_bad_fraction).check()
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "num, num_bad, max_bad_fraction",
    [
        (2000, 40, 0.01),  # twice as many as may be, which no sample can tell from as many
        (10, 9, 0.01),  # all were looked at: the end tells of them together
        (2000, 1500, 0.8),
        (2000, 2000, 1.0),
    ],
)
def test_a_few_bad_inputs_are_no_reason_to_end_a_run(tmp_path, num, num_bad, max_bad_fraction):
    assert Input(tmp_path, mixed(num, num_bad), max_bad_fraction=max_bad_fraction).check()["train"] >= 1


def test_chances_are_those_of_the_binomial_distribution():
    for bad, num, fraction in [(0, 16, 0.01), (1, 16, 0.01), (5, 16, 0.01), (16, 16, 0.01), (30, 64, 0.3), (1, 16, 0.0), (3, 16, 1.0)]:
        assert sample._tail(bad, num, fraction) == pytest.approx(stats.binom.sf(bad - 1, num, fraction), rel=1e-9), (bad, num, fraction)


@pytest.mark.parametrize("num", [5, 1000])
def test_a_wrong_folder_ends_the_command_before_anything_is_written(tmp_path, monkeypatch, capsys, num):
    def begin(*unused: object) -> None:
        raise AssertionError("a shard was begun")

    monkeypatch.setattr("beam_pipelines.shards.write_shards.finished", begin)
    monkeypatch.setattr(local, "num_cores", lambda: 0)
    write_files(tmp_path / "in", mixed(num, num))
    assert main(["prepare", "--input", str(tmp_path / "in"), "--output", str(tmp_path / "out")]) == 2
    message = capsys.readouterr().err
    assert "has a readable image. The dead letters include:\n  - c/" in message and "HTML" in message and "Traceback" not in message
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_the_sample_is_not_written_twice_nor_left_out(tmp_path):
    write_class_folders(tmp_path / "in", {"a": 20, "b": 20})
    assert main(["prepare", "--input", str(tmp_path / "in"), "--output", str(tmp_path / "out"), "--splits=train=1"]) == 0
    assert read_manifest(str(tmp_path / "out")).num_examples("train") == 40
