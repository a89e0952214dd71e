"""Tests the sample of inputs that is read first to choose the number of shards and to detect invalid inputs early."""

import dataclasses
import functools
import pathlib
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from beam_pipelines.__main__ import main
from beam_pipelines.config.image_config import ImageConfig
from beam_pipelines.elements.input_record import InputRecord
from beam_pipelines.elements.listing import Listing
from beam_pipelines.elements.reference_runs import write_run
from beam_pipelines.elements.references import References
from beam_pipelines.elements.shuffle_keys import shuffle_key
from beam_pipelines.errors import RunError, UserError
from beam_pipelines.runners import local
from beam_pipelines.shards.measure import measure_inputs
from beam_pipelines.shards.write_context import WriteSpec
from beam_pipelines.shuffle.ranks import ShuffleSpec
from beam_pipelines.shuffle import sample
from beam_pipelines.shuffle.sample import MAX_SAMPLE, MIN_SAMPLE, check_sample, sample_size, smallest_of_run, take_sample
from listings import make_listing
from made_images import encode, jpeg, noise, write_class_folders, write_files
from made_references import MadeRun, count_keys, list_input, make_run, make_references
from tf_input.dataset_format import read_manifest


def take_from_runs(batches: list[References], listing: Listing, made: MadeRun) -> References:
    """Writes each batch to a sorted file and returns the sample of inputs that is selected from these files."""
    parts = [part for batch in batches for part in smallest_of_run(write_run([batch], made.run.spool_directory), listing, made.spec(ShuffleSpec))]
    random.Random(len(parts)).shuffle(parts)
    return take_sample(parts).slice(0, sample_size(listing, made.spec(ShuffleSpec)))


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(num=st.integers(1, 1500), seed=st.integers(0, 2**64 - 1), size=st.integers(1, 700), random=st.randoms(use_true_random=False))
def test_sample_has_the_inputs_with_the_smallest_keys(tmp_path_factory, num, seed, size, random):
    keys = [f"c/{index}.jpg" for index in range(num)]
    expected = sorted(keys, key=lambda key: shuffle_key(seed, key.encode()))
    random.shuffle(keys)
    made = make_run(tmp_path_factory.mktemp("run"), seed=seed)
    images = [InputRecord(key, key, "c", None) for key in keys]
    batches = [make_references(images[start : start + size], made) for start in range(0, num, size)]
    listing = make_listing("c", num_inputs=num)
    actual = [key.decode() for key in take_from_runs(batches, listing, made).keys]
    assert actual == expected[: max(MIN_SAMPLE, min(num // 50, MAX_SAMPLE))]


def test_run_passes_on_few_references(tmp_path):
    made = make_run(tmp_path)
    images = [InputRecord(f"{index}", f"{index}", "c", None) for index in range(5000)]
    run = write_run([make_references(images, made)], made.run.spool_directory)
    for num_inputs, at_most in ((5000, MAX_SAMPLE), (5_000_000, 8), (10**9, 4)):
        (packed,) = smallest_of_run(run, make_listing("c", num_inputs=num_inputs), made.spec(ShuffleSpec))
        assert len(References.unpack(packed)) <= at_most, num_inputs


@pytest.mark.parametrize(
    "num_inputs, num_bytes, options, expected",
    [
        (10, 0, {}, MIN_SAMPLE),
        (50 * 40, 0, {}, 40),  # two percent
        (10**9, 0, {}, MAX_SAMPLE),
        (50 * 40, 10**9, {}, MIN_SAMPLE),  # the listing has the file sizes
        (50 * 40, 10**9, {"images": ImageConfig(("short", 64))}, 40),  # the stored sizes differ from the file sizes
        (50 * 40, 10**9, {"images": ImageConfig(("exact", 8, 8), encoding="raw")}, 40),
    ],
)
def test_sample_is_as_small_as_possible(tmp_path, num_inputs, num_bytes, options, expected):
    listing = make_listing("c", num_inputs=num_inputs, num_bytes=num_bytes)
    assert sample_size(listing, make_run(tmp_path, **options).spec(ShuffleSpec)) == expected


# Results of the sample


class ListedInput:
    """A folder of inputs and its listing."""

    def __init__(self, directory: pathlib.Path, files: dict[str, bytes], **options: object) -> None:
        root = write_files(directory / "in", files)
        self.made = make_run(directory, input=str(root), **{"splits": {"train": 1}, **options})
        self.batches, _, self.listing = list_input(self.made)

    def check(self) -> dict[str, int]:
        sampled = take_from_runs(self.batches, self.listing, self.made)
        measure = functools.partial(measure_inputs, spec=self.made.spec(WriteSpec))
        return check_sample(sampled, self.listing, count_keys(self.batches), self.made.spec(ShuffleSpec), measure)


def class_folder(num: int, num_bad: int) -> dict[str, bytes]:
    """Returns the files of a class folder in which `num_bad` images at random positions are invalid."""
    bad = set(random.Random(0).sample(range(num), num_bad))
    return {f"c/{index:04d}.jpg": b"<!DOCTYPE html>" if index in bad else jpeg(index % 7) for index in range(num)}


def test_number_of_shards_follows_the_stored_size_of_the_sample(tmp_path):
    picture = encode(noise(1, 200, 300), "PNG")
    files = {f"c/{index:02d}.png": picture for index in range(60)}
    cases = [
        ("unchanged", {}, len(picture)),
        ("raw pixels of a fixed size", {"images": ImageConfig(("exact", 100, 90), encoding="raw")}, 100 * 90 * 3),
    ]
    for case, options, num_bytes in cases:
        for shard_bytes in (num_bytes * 10, num_bytes * 7):
            actual = ListedInput(tmp_path / f"{case} {shard_bytes}", files, shard_bytes=shard_bytes, **options).check()
            assert actual == {"train": -(-60 * num_bytes // shard_bytes)}, case


def test_number_of_shards_follows_the_sizes_in_the_listing(tmp_path):
    some = ListedInput(tmp_path, class_folder(40, 0), shard_bytes=1000)
    some.listing = dataclasses.replace(some.listing, num_bytes=40_000)
    assert some.check() == {"train": 40}


def test_given_number_of_shards_is_used(tmp_path):
    assert ListedInput(tmp_path, class_folder(40, 0), num_shards=7, splits=None).check() == {"train": 6, "validation": 1}


def test_worker_processes_check_the_sample_with_the_same_result(tmp_path):
    numbers = [ListedInput(tmp_path / f"{num}", class_folder(60, 3), shard_bytes=5000, num_processes=num, max_bad_fraction=0.3).check() for num in (0, 2)]
    assert numbers[0] == numbers[1] and numbers[0]["train"] > 5


def test_empty_split_is_rejected(tmp_path):
    with pytest.raises(UserError, match="'validation' .* 3 examples"):
        ListedInput(tmp_path, class_folder(3, 0), splits=None).check()


# Bad inputs


@pytest.mark.parametrize(
    "num, num_bad, max_bad_fraction, error, message",
    [
        (5, 5, 0.01, UserError, "c/0000.jpg: "),
        (2000, 2000, 0.01, UserError, "first 40 inputs"),
        (2000, 1500, 0.01, RunError, "--max_bad_fraction=0.01"),
        (2000, 1500, 0, RunError, "--max_bad_fraction=0."),
    ],
)
def test_run_with_too_many_bad_inputs_fails_at_once(tmp_path, num, num_bad, max_bad_fraction, error, message):
    with pytest.raises(error) as caught:
        ListedInput(tmp_path, class_folder(num, num_bad), max_bad_fraction=max_bad_fraction).check()
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "num, num_bad, max_bad_fraction",
    [
        (2000, 40, 0.01),  # twice the limit, which a sample cannot distinguish from the limit
        (10, 9, 0.01),  # all inputs are in the sample, and the end of the run reports them
        (2000, 1500, 0.8),
        (2000, 2000, 1.0),
    ],
)
def test_few_bad_inputs_do_not_fail_the_run_early(tmp_path, num, num_bad, max_bad_fraction):
    assert ListedInput(tmp_path, class_folder(num, num_bad), max_bad_fraction=max_bad_fraction).check()["train"] >= 1


def test_probabilities_match_the_binomial_distribution():
    for bad, num, fraction in [(0, 16, 0.01), (1, 16, 0.01), (5, 16, 0.01), (16, 16, 0.01), (30, 64, 0.3), (1, 16, 0.0), (3, 16, 1.0)]:
        assert sample._tail(bad, num, fraction) == pytest.approx(stats.binom.sf(bad - 1, num, fraction), rel=1e-9), (bad, num, fraction)


@pytest.mark.parametrize("num", [5, 1000])
def test_wrong_folder_fails_the_command_before_writing(tmp_path, monkeypatch, capsys, num):
    def begin(*unused: object) -> None:
        raise AssertionError("a shard was started")

    monkeypatch.setattr("beam_pipelines.shards.write_shards.finished", begin)
    monkeypatch.setattr(local, "num_cores", lambda: 0)
    write_files(tmp_path / "in", class_folder(num, num))
    assert main(["prepare", "--input", str(tmp_path / "in"), "--output", str(tmp_path / "out")]) == 2
    message = capsys.readouterr().err
    assert "  - c/" in message and "HTML" in message and "Traceback" not in message
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_sampled_inputs_are_written_once(tmp_path):
    write_class_folders(tmp_path / "in", {"a": 20, "b": 20})
    assert main(["prepare", "--input", str(tmp_path / "in"), "--output", str(tmp_path / "out"), "--splits=train=1"]) == 0
    assert read_manifest(str(tmp_path / "out")).num_examples("train") == 40
