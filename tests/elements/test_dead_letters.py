"""Tests that dead letters of several workers can be merged in any order, and that the suggested limit suffices."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from beam_pipelines.__main__ import main
from beam_pipelines.elements.dead_letters import (
    NUM_SHOWN,
    NUM_THUMBNAILS,
    DeadLetter,
    DeadLetterCount,
    max_dead_letters,
    sufficient_fraction,
    to_json_lines,
)
from made_images import jpeg, write_files

LETTERS = st.builds(
    DeadLetter, st.text("abc", min_size=1, max_size=4), st.just("check"), st.sampled_from(["bad_box", "bad_image"]), st.just("m"), st.sampled_from(["", "t"])
)


@given(st.lists(LETTERS, unique_by=lambda letter: letter.path, max_size=60), st.lists(st.integers(0, 3), min_size=60, max_size=60))
def test_first_dead_letters_do_not_depend_on_the_distribution(letters, parts):
    total = DeadLetterCount()
    for part in range(4):
        count = DeadLetterCount()
        count.add([letter for letter, assigned in zip(letters, parts) if assigned == part])
        total.merge(count)
    assert total.num == len(letters)
    assert total.first == [letter._replace(thumbnail="") for letter in sorted(letters)[:NUM_SHOWN]]
    for reason in ("bad_box", "bad_image"):
        seen = sorted(letter for letter in letters if letter.reason == reason and letter.thumbnail)
        assert [letter for letter in total.seen if letter.reason == reason] == seen[:NUM_THUMBNAILS]


@pytest.mark.parametrize("num, num_inputs", [(3, 200), (29, 100), (7, 100), (1, 3), (11, 10**9), (10**9 - 1, 10**9), (5, 5)])
def test_sufficient_fraction_is_small_and_allows_the_dead_letters(num, num_inputs):
    assert num <= max_dead_letters(float(sufficient_fraction(num, num_inputs)), num_inputs) <= 1.1 * num


def test_thumbnails_are_only_in_the_internal_lines():
    letter = DeadLetter("p", "check", "bad_image", "m", "abc")
    assert "abc" not in to_json_lines([letter]) and '"thumbnail": "abc"' in to_json_lines([letter], with_thumbnails=True)


ADVICE = {  # stage -> number of inputs, number of invalid inputs, and options
    "listing": (40, 3, ()),
    "hashing": (40, 3, ("--duplicates=keep",)),
    "end": (40, 3, ()),
}


@pytest.mark.slow(1)
@pytest.mark.parametrize("stage", ADVICE)
def test_advised_fraction_suffices_at_each_stage(stage, tmp_path, capsys):
    num, num_invalid, options = ADVICE[stage]
    has_bad_labels = stage == "listing"
    labels = ["" if has_bad_labels and index < num_invalid else "ab"[index % 2] for index in range(num)]
    rows = [f"{index}.jpg,{label}\n" for index, label in enumerate(labels)]
    num_corrupt = 0 if has_bad_labels else num_invalid
    images = {f"{index}.jpg": b"no image" if index < num_corrupt else jpeg(0) for index in range(num)}
    write_files(tmp_path, images | {"rows.csv": f"image,label\n{''.join(rows)}".encode()})
    paths = [f"--input={tmp_path}/rows.csv", f"--output={tmp_path}/out"]
    command = ["prepare", *paths, "--splits=train=1", "--no_report", *options]
    assert main(command) == 2
    error = capsys.readouterr().err
    advised = re.findall(r"--resume(?= --max)|--max_bad_fraction=[\d.]*\d", error.replace("=0.01 allows", ""))
    assert ("--resume" in advised) == (stage == "end"), error
    assert main([*command, *advised]) == 0
