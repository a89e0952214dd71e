"""The output of a run: whose it is, what a failed run leaves, and how a data set gets to its place."""

import os
import pathlib

import pytest

from beam_pipelines import publish
from beam_pipelines.config import PrepareConfig
from beam_pipelines.errors import UserError
from beam_pipelines.output_directory import working_directory
from beam_pipelines.publish import move_into_place


def make_config(output: pathlib.Path) -> PrepareConfig:
    return PrepareConfig(input=".", output=str(output), name="made")


def names(directory: pathlib.Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_a_run_that_fails_leaves_nothing_not_even_the_folders_on_the_way(tmp_path):
    with pytest.raises(ZeroDivisionError), working_directory(make_config(tmp_path / "a" / "b" / "out")):
        (tmp_path / "a" / "b" / "out.incomplete" / "half").write_text("")
        1 / 0
    assert names(tmp_path) == []


def test_what_a_killed_run_left_is_removed(tmp_path):
    (tmp_path / "out.incomplete" / "spool").mkdir(parents=True)
    (tmp_path / "out.incomplete" / "spool" / "1").write_text("")
    with working_directory(make_config(tmp_path / "out")):
        assert names(tmp_path / "out.incomplete") == []


def test_two_runs_do_not_write_to_one_output(tmp_path):
    with working_directory(make_config(tmp_path / "out")):
        (tmp_path / "out.incomplete" / "half").write_text("")
        with pytest.raises(UserError, match="another run is writing"), working_directory(make_config(tmp_path / "out")):
            pass
        assert names(tmp_path / "out.incomplete") == ["half"]


def test_a_run_that_is_done_does_not_remove_what_the_next_one_has_begun(tmp_path):
    with working_directory(make_config(tmp_path / "out")):
        os.replace(tmp_path / "out.incomplete", tmp_path / "out")
        (tmp_path / "out.incomplete").mkdir()  # by another run, with --overwrite
        (tmp_path / "out.incomplete" / "half").write_text("")
    assert names(tmp_path / "out.incomplete") == ["half"]


def make_directories(folder: pathlib.Path) -> tuple[pathlib.Path, pathlib.Path]:
    """A finished working directory, and an older output."""
    new, output = folder / "out.incomplete", folder / "out"
    for directory, text in ((new, "new"), (output, "old")):
        directory.mkdir()
        (directory / "data").write_text(text)
    return new, output


def test_a_data_set_takes_the_place_of_the_old_one(tmp_path):
    new, output = make_directories(tmp_path)
    (tmp_path / "out.replaced").mkdir()  # as a killed run may leave it
    (tmp_path / "out.replaced" / "data").write_text("older")
    move_into_place(new, output)
    assert (names(tmp_path), (output / "data").read_text()) == (["out"], "new")


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_the_old_data_set_steps_back_where_the_new_one_cannot_be_moved(tmp_path, monkeypatch, error):
    new, output = make_directories(tmp_path)
    replace = os.replace

    def refuse_the_new_one(source: pathlib.Path, target: pathlib.Path) -> None:
        if source == new:
            raise error
        replace(source, target)

    monkeypatch.setattr(publish.os, "replace", refuse_the_new_one)
    with pytest.raises(error):
        move_into_place(new, output)
    assert (output / "data").read_text() == "old" and names(tmp_path) == ["out", "out.incomplete"]
