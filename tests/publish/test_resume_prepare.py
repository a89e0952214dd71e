"""A run that was killed, stopped or out of room is gone on from: what is finished stays, and the bytes are those of a run that was never stopped."""

import contextlib
import dataclasses
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import time
from typing import Iterator

import pytest
from test_prepare_objects import digest as digest_of_objects
from test_prepare_objects import objects, open_store, write_objects

from analysed import analysed_images
from beam_pipelines.__main__ import main
from beam_pipelines.config.run_options import FREE, find_differences, plain_options
from beam_pipelines.elements import plain_json
from beam_pipelines.elements.plan import WrittenShard
from beam_pipelines.elements.plan_files import sealed, unsealed
from beam_pipelines.options.arguments import make_parser
from beam_pipelines.options.prepare_arguments import make_config
from beam_pipelines.parallel import progress
from beam_pipelines.publish import write_metadata
from beam_pipelines.storage.marked_directory import MARKER, MARKER_TEXT
from engines import digest
from forked_runs import ForkedRun
from made_images import encode, jpeg, noise, write_class_folders, write_files
from object_stores import StoreServer, reached, shared_server

pytestmark = pytest.mark.slow

NUM_SHARDS = 12
FEW_SHARDS = 4  # where there are many runs, or a store: servers answer some hundred requests a second, and each shard is a dozen
KEPT = rf"\d+ of {NUM_SHARDS} shards are complete\. .*--resume.*"
BEGUN_ANEW = "recordmill: --resume: no run to resume, so this run starts from the beginning\n"


def call(source: pathlib.Path | str, output: pathlib.Path | str, *options: str, num_shards: int = NUM_SHARDS) -> list[str]:
    return ["prepare", f"--input={source}", f"--output={output}", "--name=made", f"--num_shards={num_shards}", *options]


def call_few(source: pathlib.Path, output: pathlib.Path | str, *options: str) -> list[str]:
    return call(source, output, "--no_report", *options, num_shards=FEW_SHARDS)  # which looks into shards


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> pathlib.Path:
    """With one dead letter, which is less than the 1 % that are allowed."""
    folder = write_class_folders(tmp_path_factory.mktemp("source"), {"ant": 40, "bee": 30, "cow": 50})
    return write_files(folder, {"cow/page.jpg": b"<!DOCTYPE html>"})


@pytest.fixture(scope="module")
def unbroken(source, tmp_path_factory) -> dict[str, str]:
    """Of a run that was never stopped."""
    output = tmp_path_factory.mktemp("unbroken") / "out"
    assert main(call(source, output)) == 0
    return digest(output)


@pytest.fixture(scope="module")
def unbroken_few(source, tmp_path_factory) -> dict[str, str]:
    output = tmp_path_factory.mktemp("unbroken") / "out"
    assert main(call_few(source, output)) == 0
    return digest(output)


@pytest.fixture(scope="module")
def killed(source, tmp_path_factory) -> pathlib.Path:
    """A folder with nothing but the OUT.incomplete of a run that was killed as it finished its fourth shard."""
    folder = tmp_path_factory.mktemp("killed")
    kill_at(call(source, folder / "out"), "beam_pipelines.shards.shard_files:write_done:4")
    return folder


@pytest.fixture
def left(killed, tmp_path) -> pathlib.Path:
    """Its copy: the output of a run that can be gone on from."""
    shutil.copytree(killed, tmp_path, dirs_exist_ok=True)
    return tmp_path / "out"


def kill_at(command: list[str], location: str) -> None:
    run = ForkedRun(*command, signalled=f"{signal.SIGKILL.value}:{location}")
    assert run.wait() == -signal.SIGKILL, run.told()


def finished_files(output: pathlib.Path) -> dict[str, tuple[int, int]]:
    """Inode and time of the files of every finished shard, below OUT.incomplete, by their names."""
    files = {}
    for path in output.with_name(f"{output.name}.incomplete").glob("*/done/*.json"):
        try:
            info = plain_json.loads(unsealed_done(path), WrittenShard).info
            actual = {name: os.stat(path.parents[1] / name) for name, *_ in info.files()}
        except FileNotFoundError:  # the run has just come to its end
            continue
        files |= {name: (stat.st_ino, stat.st_mtime_ns) for name, stat in actual.items()}
    return files


def unsealed_done(path: pathlib.Path) -> bytes:
    """The facts in the file of a finished shard, which ends with a checksum line."""
    return path.read_bytes().rpartition(b"\n")[0]


def run_directory(output: pathlib.Path) -> pathlib.Path:
    """Of what a run has left."""
    (directory,) = (path for path in output.with_name(f"{output.name}.incomplete").iterdir() if path.is_dir())
    return directory


def check_resumed(output: pathlib.Path, unbroken: dict[str, str], kept: dict[str, tuple[int, int]]) -> None:
    """The same bytes, nothing finished was written again, and nothing is left beside them."""
    assert digest(output) == unbroken
    now = {name: os.stat(output / name) for name in kept}
    assert {name: (stat.st_ino, stat.st_mtime_ns) for name, stat in now.items()} == kept
    assert [path.name for path in output.parent.iterdir() if path.name.startswith("out")] == ["out"]


# Kills


def test_a_run_that_is_waited_for_may_say_more_than_a_pipe_holds():
    run = ForkedRun(*call(f"/{'x' * 100_000}", "out"))
    assert run.wait(60) == 2 and len(run.told()) > 100_000


@pytest.mark.slow(15)
def test_killed_again_and_again_it_comes_to_the_same_bytes(source, unbroken_few, tmp_path):
    """40 kills or more, in chains: each run of a chain but the last is killed, and the next one goes on.

    Half of them at a random time of a run's life, the others within its writing: when some shards more are finished. One light process or
    two are at work.
    """
    randomness, num_kills, num_while_writing, chain, seconds = random.Random(15), 0, 0, 0, None
    while num_kills < 40 or num_while_writing < 15:
        assert chain < 60, f"{num_kills} kills, {num_while_writing} of them amid the writing"
        output = tmp_path / f"{chain}" / "out"
        output.parent.mkdir()
        chain += 1
        kept: dict[str, tuple[int, int]] = {}
        for _ in range(randomness.randint(4, 9)):
            run, began = ForkedRun(*call_few(source, output, "--resume"), num_light=randomness.randint(1, 2)), time.monotonic()
            if seconds is None:  # the first, which measures a run's life
                assert run.wait() == 0, run.told()
                seconds = time.monotonic() - began
                break
            by_time = randomness.random() < 0.5
            num_done = min(len(kept) // 3 + randomness.randint(0, 2), FEW_SHARDS)
            wait_until(run, output, seconds * randomness.random() if by_time else None, num_done)
            run.kill()
            if run.wait() == 0:  # it was over before that: the machine is faster than it was
                seconds = min(seconds, time.monotonic() - began)
                break
            num_kills += 1
            if output.exists():
                break  # all but its last breath
            kept |= {name: state for name, state in finished_files(output).items() if name not in kept}
            num_while_writing += bool(kept)
        if not output.exists() or output.with_name("out.incomplete").exists():
            assert main(call_few(source, output, "--resume")) == 0
        check_resumed(output, unbroken_few, kept)


def wait_until(run: ForkedRun, output: pathlib.Path, seconds: float | None, num_done: int) -> None:
    """Until a run is some time old, or has its plan and so many finished shards, or is over."""
    left, began = output.with_name("out.incomplete"), time.monotonic()
    while run.poll() is None:
        if seconds is not None and time.monotonic() - began > seconds:
            return
        with contextlib.suppress(FileNotFoundError):  # the run is just coming to its end
            if seconds is None and any(left.glob("*/plan/plan.json")) and len([*left.glob("*/done/*.json")]) >= num_done:
                return
        time.sleep(0.001)


DONE = "recordmill: --resume: the dataset is complete, so there is nothing to do\n"

# Where a run is killed -> what another one says that is to go on.
KILLED_AT = {
    "as the plan becomes whole": ("beam_pipelines.shuffle.global_shuffle:write_plan:1", BEGUN_ANEW),
    "before the first shard is finished": ("beam_pipelines.shards.shard_files:write_done:1", ""),
    "when all shards are finished": ("beam_pipelines.publish.write_metadata:check_sums:1", ""),
    "before the manifest": ("beam_pipelines.publish.publishing:publish:1", ""),
    "after the manifest": ("beam_pipelines.publish.publishing:_finish_folder:1", ""),
    "before the last rename": ("beam_pipelines.publish.publishing:move_into_place:1", ""),
    "after the last rename": ("beam_pipelines.publish.publishing:remove_directory:1", DONE),
}


@pytest.mark.parametrize("case", KILLED_AT)
def test_wherever_it_is_killed_nothing_finished_is_written_again(source, unbroken, tmp_path, capsys, case):
    location, told_at_last = KILLED_AT[case]
    output = tmp_path / "out"
    kill_at(call(source, output), location)
    kept = finished_files(output)
    if "last rename" in case:  # by then only the dataset is there
        directory = run_directory(output) if "before" in case else output
        files = (path for path in directory.rglob("*") if path.is_file())
        kept = {str(path.relative_to(directory)): (os.stat(path).st_ino, os.stat(path).st_mtime_ns) for path in files}
    if not told_at_last:
        assert main(call(source, output)) == 2
        reported = capsys.readouterr().err
        assert re.fullmatch(rf"recordmill: --output={output}: .* shards are complete\. .*--resume .*--restart .*\n", reported), reported
    assert main(call(source, output, "--resume")) == 0
    assert capsys.readouterr().err == told_at_last
    check_resumed(output, unbroken, kept)


# What is said, and refused


def test_the_same_command_says_what_is_there_and_changes_nothing(source, left, capsys):
    before = finished_files(left)
    for options in ((), ("--overwrite",), ("--seed=5",)):
        assert main(call(source, left, *options)) == 2
        reported = f"3 of {NUM_SHARDS} shards are complete. "
        assert capsys.readouterr().err.startswith(f"recordmill: --output={left}: {reported}"), options
    assert finished_files(left) == before and len(before) == 9
    assert not left.exists()


def test_resume_writes_what_is_missing_and_shows_how_far_it_is(source, left, unbroken, monkeypatch, capsys):
    kept, counts = finished_files(left), []
    publish = write_metadata.publish_files
    monkeypatch.setattr(write_metadata, "publish_files", lambda config, *arguments, **options: (
        counts.append(progress.read_counts(config.progress_directory)), publish(config, *arguments, **options)
    ))  # fmt: skip
    write_files(run_directory(left), {".made-train.tfrecord-00007-of-00011.0.tmp": b"half", "progress/1-a": b"\1" + bytes(39)})
    assert main(call(source, left, "--resume")) == 0
    (count,) = counts
    assert (count.listed, count.written, count.dead_letters) == (121, 121, 1), "what was there counts as written"
    assert capsys.readouterr().err == ""
    check_resumed(left, unbroken, kept)


def test_a_finished_shard_that_is_damaged_is_written_again(source, left, unbroken):
    kept = finished_files(left)
    path = run_directory(left) / next(name for name in kept if ".tfrecord-" in name)
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    assert main(call(source, left, "--resume")) == 0
    split, location = re.fullmatch(r"made-(.*)\.tfrecord-(.*)", path.name).groups()
    check_resumed(left, unbroken, {name: state for name, state in kept.items() if not (location in name and split in name)})


def test_a_finished_shard_whose_facts_have_changed_is_written_again(source, left, unbroken):
    """A figure that changes before `--resume` would be published."""
    kept = finished_files(left)
    done = sorted((run_directory(left) / "done").glob("*.json"))
    changed = re.sub(rb'"mean": |"num_bytes": (\d)', lambda result: result[0][:-1] + b"%d" % (9 - int(result[1])) if result[1] else result[0], done[0].read_bytes())
    assert changed != done[0].read_bytes()
    done[0].write_bytes(changed)
    assert main(call(source, left, "--resume")) == 0
    check_resumed(left, unbroken, {name: state for name, state in kept.items() if done[0].stem.partition("-")[2] not in name})


def test_dead_letters_of_a_finished_shard_that_have_changed_are_written_again(source, unbroken, tmp_path):
    kill_at(call(source, tmp_path / "out"), "beam_pipelines.publish.write_metadata:check_sums:1")
    (letters,) = (run_directory(tmp_path / "out") / "done").glob("*.dead_letters.jsonl")
    letters.write_text(letters.read_text().replace('"decode"', '"encode"').replace('"read"', '"reed"'))
    assert main(call(source, tmp_path / "out", "--resume")) == 0 and digest(tmp_path / "out") == unbroken


def test_metadata_that_change_before_the_last_rename_are_not_published(source, tmp_path, capsys):
    output = tmp_path / "out"
    kill_at(call(source, output), "beam_pipelines.publish.publishing:move_into_place:1")
    path = run_directory(output) / "statistics.json"
    path.write_text(path.read_text().replace('"variance"', '"varianze"'))
    assert main(call(source, output, "--resume")) == 1
    assert "statistics.json has " in capsys.readouterr().err and not output.exists()


def test_restart_begins_anew(source, left, unbroken, capsys):
    before = finished_files(left)
    assert main(call(source, left, "--restart")) == 0
    assert digest(left) == unbroken and os.listdir(left.parent) == ["out"]
    assert not {name for name, (_, time_ns) in before.items() if os.stat(left / name).st_mtime_ns == time_ns}


def test_where_no_plan_is_whole_the_command_begins_anew(source, killed, unbroken, tmp_path, capsys):
    for case, options in {"nothing is there": ["--resume"], "half a plan": ["--resume"], "the same command": []}.items():
        if case != "nothing is there":
            shutil.copytree(killed, tmp_path, dirs_exist_ok=True)
            (run_directory(tmp_path / "out") / "plan/plan.json").unlink()
        assert main(call(source, tmp_path / "out", *options)) == 0, case
        assert capsys.readouterr().err == (BEGUN_ANEW if options else ""), case
        assert digest(tmp_path / "out") == unbroken and os.listdir(tmp_path) == ["out"], case
        shutil.rmtree(tmp_path / "out")


def test_with_resume_the_same_command_again_is_always_right(source, left, capsys):
    assert main(call(source, left, "--resume")) == 0
    capsys.readouterr()
    before = os.stat(left / "manifest.json")
    assert main(call(source, left, "--resume")) == 0
    assert capsys.readouterr().err == DONE
    assert os.path.samestat(os.stat(left / "manifest.json"), before)
    assert main(call(source, left, "--resume", "--seed=5")) == 2
    reported = f"--output={left} exists with other options: --seed=5, but the earlier run has --seed=0. "
    assert capsys.readouterr().err.startswith(f"recordmill: {reported}")
    assert main(call(source, left)) == 2
    assert capsys.readouterr().err.startswith(f"recordmill: --output={left} exists. ")
    assert main(call(source, left, "--resume", "--restart")) == 2
    assert "--restart: not allowed with argument --resume" in capsys.readouterr().err
    (left / "run.json").write_text("{")
    assert main(call(source, left, "--resume")) == 2
    assert f"--output={left}: run.json is corrupt" in capsys.readouterr().err
    assert main(call(source, left, "--overwrite")) == 0
    assert os.listdir(left.parent) == ["out"] and main(call(source, left, "--resume")) == 0


def test_what_is_to_replace_a_dataset_is_gone_on_from_too(source, left, unbroken):
    assert main(call(source, left.with_name("other"), "--seed=5")) == 0
    os.rename(left.with_name("other"), left)
    kept = finished_files(left)
    assert main(call(source, left, "--resume")) == 2, "it was not said that it may be replaced"
    assert main(call(source, left, "--resume", "--overwrite")) == 0
    check_resumed(left, unbroken, kept)


def test_another_command_does_not_empty_it(left, tmp_path_factory, capsys):
    complete = analysed_images(tmp_path_factory)
    capsys.readouterr()
    before = finished_files(left)
    assert main(["transform", str(complete), str(left)]) == 2
    assert f"OUT2={left}: an interrupted run of `recordmill prepare` left files in {left}.incomplete. " in capsys.readouterr().err
    assert finished_files(left) == before


# options of a run -> those of them that are not given with --resume, others that are, and how the refusal begins
OTHER_OPTIONS = {
    (): {
        "another value": ((), ("--seed=5",), "--seed=5, but the earlier run has --seed=0"),
        "two": ((), ("--seed=5", "--ignore=*.x"), "--seed=5, but the earlier run has --seed=0; --ignore=*.x, but the earlier run has no --ignore"),
        "folders": ((), ("--split_folders=no",), "--split_folders=no, but the earlier run has no --split_folders"),
    },
    ("--check=none", "--splits=train=1"): {
        "one that is not given": (("--check=none",), (), "--check=strict, but the earlier run has --check=none"),
        "splits": (("--splits=train=1",), (), "--splits is not given, but the earlier run has --splits=train=1"),
    },
    ("--image_size=short=8", "--image_format=jpeg:90", "--splits=a=1/2,b=1/2"): {
        "by its own name": (
            ("--image_size=short=8",), ("--image_size=exact=8x9",), "--image_size=exact=8x9, but the earlier run has --image_size=short=8"
        ),
        "a format": (
            ("--image_format=jpeg:90",), ("--image_format=jpeg:91",), "--image_format=jpeg:91, but the earlier run has --image_format=jpeg:90"
        ),
        "their order": (
            ("--splits=a=1/2,b=1/2",), ("--splits=b=1/2,a=1/2",), "--splits=b=1/2,a=1/2, but the earlier run has --splits=a=1/2,b=1/2"
        ),
    },
}  # fmt: skip


@pytest.mark.parametrize("options", OTHER_OPTIONS, ids=lambda options: " ".join(options) or "none")
def test_other_options_are_refused_by_name(source, killed, tmp_path, capsys, options):
    output = tmp_path / "out"
    if options:
        kill_at(call(source, output, *options), "beam_pipelines.shards.shard_files:write_done:2")
    else:
        shutil.copytree(killed, tmp_path, dirs_exist_ok=True)
    before = finished_files(output)
    assert before
    for case, (unused_fields, others, reported) in OTHER_OPTIONS[options].items():
        given = [option for option in options if option not in unused_fields]
        assert main(call(source, output, *given, *others, "--resume")) == 2, case
        error = capsys.readouterr().err
        assert error.startswith(f"recordmill: --resume of --output={output}: {reported}"), error
        assert error.count("\n") == 1 and finished_files(output) == before
    if "short" in str(options):
        assert main(call(source, output, *options, "--resume", "--max_bad_fraction=0.5", "--direct_num_workers=1")) == 0, "these may differ"


def test_every_option_of_a_run_is_compared_by_a_name_that_the_command_has():
    parser = make_parser()
    config = make_config(parser.parse_args(call("in", "out")))
    fields = [(config, field.name) for field in dataclasses.fields(config) if field.name not in (*FREE, "source", "images")]
    fields += [(part, field.name) for part in (config.source, config.images) for field in dataclasses.fields(part)]
    (commands,) = (action for action in parser._actions if action.dest == "command")
    options = {option for action in commands.choices["prepare"]._actions for option in action.option_strings}
    existing = plain_options(config)
    for part, name in fields:
        here = plain_options(config)
        (here if part is config else here["source" if part is config.source else "images"])[name] = "another"
        if name == "quality":  # is part of the format's text, where that has one
            here["images"]["format"] = "jpeg"
        (reported,) = find_differences(existing, here)
        assert reported.partition("=")[0] in options, reported


def test_what_another_version_has_left_or_what_is_damaged_is_refused(source, left, capsys):
    plan = run_directory(left) / "plan/plan.json"
    complete = plan.read_bytes()
    version = re.search(rb'"version": "(recordmill .*?, format \d+)"', complete)[1]
    cases = {
        "another version": (sealed(unsealed(complete).replace(version, b"recordmill 0.0.1, format 1")), "the interrupted run is from recordmill 0.0.1, format 1, but this is "),
        "a field more": (sealed(unsealed(complete).replace(b'"version"', b'"another": 1, "version"')), "the plan of the interrupted run is corrupt"),
        "another figure": (re.sub(rb'"num_inputs": (\d)', rb'"num_inputs": 1\1', complete), "the plan of the interrupted run is corrupt"),
        "half of it": (complete[: len(complete) // 2], "the plan of the interrupted run is corrupt"),
    }  # fmt: skip
    for case, (data, reported) in cases.items():
        plan.write_bytes(data)
        before = finished_files(left)
        assert main(call(source, left, "--resume")) == 2, case
        error = capsys.readouterr().err
        assert error.startswith(f"recordmill: --output={left}: {reported}") and "--restart" in error, error
        assert main(call(source, left)) == 2, case
        error = capsys.readouterr().err
        assert "--resume" in error and "--restart" in error, error
        assert finished_files(left) == before, case
        assert main(["status", str(left)]) == 0
        reported = capsys.readouterr().out
        assert "next:" in reported and "--restart" in reported and "--resume" not in reported, reported
    assert main(call(source, left, "--restart")) == 0


# Failures and interrupts


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupt_leaves_nothing_before_the_plan_and_all_that_is_finished_after_it(source, unbroken, tmp_path, number):
    output = tmp_path / "out"
    run = ForkedRun(*call(source, output), signalled=f"{number.value}:beam_pipelines.shuffle.global_shuffle:write_plan:1")
    assert (run.wait(), run.told()) == (128 + number, "recordmill: Interrupted. Nothing was written.\n")
    assert os.listdir(tmp_path) == []
    run = ForkedRun(*call(source, output), signalled=f"{number.value}:beam_pipelines.shards.shard_files:write_done:4")
    assert run.wait() == 128 + number and re.fullmatch(rf"recordmill: Interrupted\. {KEPT}\n", run.told()), run.told()
    assert not [*tmp_path.rglob(".*.tmp")]
    kept = finished_files(output)
    assert main(call(source, output, "--resume")) == 0
    check_resumed(output, unbroken, kept)


def test_too_many_dead_letters_leave_what_a_larger_fraction_goes_on_from(source, tmp_path, capsys):
    write_files(tmp_path / "in", {f"{label}/{index}.jpg": jpeg(index) for label in "ab" for index in range(100)})
    write_files(tmp_path / "in", {"a/0.jpg": b"no image", "b/1.jpg": b"no image", "b/2.jpg": b"no image"})
    output = tmp_path / "out"
    assert main(call(tmp_path / "in", output)) == 2
    error = capsys.readouterr().err
    assert "3 of 200 inputs" in error and "--max_bad_fraction=0.01" in error and "--resume" in error
    assert f"\n{NUM_SHARDS} of {NUM_SHARDS} shards are complete. " in error, error
    kept = finished_files(output)
    assert main(call(tmp_path / "in", output, "--resume", "--max_bad_fraction=0.02")) == 0
    assert main(call(tmp_path / "in", tmp_path / "whole", "--max_bad_fraction=0.02")) == 0
    check_resumed(output, digest(tmp_path / "whole"), kept)


def test_an_input_that_makes_no_dataset_leaves_nothing(tmp_path, capsys):
    write_files(tmp_path / "in", {"a/1.jpg": b"no image", "b/1.jpg": b"no image"})
    assert main(call(tmp_path / "in", tmp_path / "out", "--max_bad_fraction=1")) == 2
    assert "no input has a readable image" in capsys.readouterr().err
    assert os.listdir(tmp_path) == ["in"]


@pytest.fixture
def small_disk(tmp_path) -> Iterator[pathlib.Path]:
    """A file system of its own, of 3 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "none", str(folder)], capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_leaves_what_was_finished(small_disk, tmp_path, capfd):
    pictures = {f"{label}/{index}.png": encode(noise(index, 150, 150), "PNG") for label in "ab" for index in range(40)}
    source, output = write_files(tmp_path / "in", pictures), small_disk / "out"  # 5 MB
    assert main(call(source, output)) == 1
    reported = capfd.readouterr().err
    assert re.fullmatch(rf"recordmill: .* could not be written: No space left on device\. {KEPT}\n", reported), reported
    kept = finished_files(output)
    assert kept and not [*small_disk.rglob(".*.tmp")]
    subprocess.run(["mount", "-o", "remount,size=30m", str(small_disk)], check=True)
    assert main(call(source, output, "--resume")) == 0
    assert main(call(source, tmp_path / "whole")) == 0
    check_resumed(output, digest(tmp_path / "whole"), kept)


# Object stores


@pytest.fixture(scope="module", params=["s3", "gs"])
def server(request) -> Iterator[StoreServer]:
    with reached(shared_server(request.param)) as server:
        yield server


@pytest.fixture(scope="module")
def old(source, tmp_path_factory) -> dict[str, bytes]:
    """The files of another dataset, which are to be replaced."""
    output = tmp_path_factory.mktemp("old") / "out"
    assert main(call_few(source, output, "--seed=5")) == 0
    return {str(path.relative_to(output)): path.read_bytes() for path in output.rglob("*") if path.is_file()}


@pytest.mark.parametrize("server, replaces", [("s3", False), ("gs", True)], indirect=["server"])
def test_in_an_object_store_too(source, unbroken_few, old, server, capsys, replaces):
    out = f"{server.make_bucket()}/out"
    options = [*server.flags, *(["--overwrite"] if replaces else [])]
    if replaces:
        write_objects(server, out, old)
    kill_at(call_few(source, out, *options), "beam_pipelines.shards.shard_files:write_done:3")
    assert main(call_few(source, out, *options)) == 2
    reported = f"2 of {FEW_SHARDS} shards are complete. "
    assert capsys.readouterr().err.startswith(f"recordmill: --output={out}: {reported}")
    name, data = next((name, data) for name, data in objects(server, f"{out}.incomplete").items() if "/done/" in name)
    working = f"{out}.incomplete/{name.partition('/')[0]}/dataset" if replaces else out
    done = plain_json.loads(data.rpartition(b"\n")[0], WrittenShard)
    traced = bytes(done.info.num_bytes)  # in the place of a finished shard, and of the right size, so that its writing would be seen
    open_store(server, out).write(f"{working}/{done.info.name}", traced)
    assert main(call_few(source, out, *options, "--resume")) == 0
    actual = objects(server, out)
    assert actual[done.info.name] == traced
    assert {**digest_of_objects(actual), done.info.name: unbroken_few[done.info.name]} == unbroken_few
    assert not objects(server, f"{out}.incomplete")


@pytest.mark.parametrize("server, replaces", [("s3", True), ("gs", False)], indirect=["server"])
def test_in_an_object_store_a_run_that_was_killed_as_it_published_is_gone_on_from(source, unbroken_few, old, server, replaces):
    out = f"{server.make_bucket()}/out"
    options = [*server.flags, *(["--overwrite"] if replaces else [])]
    # The first call of write_file writes the manifest, the second the marker on the dataset that is replaced.
    for location in ("publish:1", "write_file:2") if replaces else ("write_file:1",):
        if replaces:
            write_objects(server, out, old)
        kill_at(call_few(source, out, *options, "--overwrite"), f"beam_pipelines.publish.publishing:{location}")
        assert main(call_few(source, out, "--overwrite", *server.flags)) == 2
        assert main(call_few(source, out, *options, "--resume")) == 0
        assert digest_of_objects(objects(server, out)) == unbroken_few and not objects(server, f"{out}.incomplete")
        open_store(server, out).remove_all(out)


@pytest.mark.parametrize("server", ["s3"], indirect=True)
def test_in_an_object_store_the_same_command_again_removes_what_a_run_left_that_was_killed_at_its_very_end(source, server, capsys):
    out = f"{server.make_bucket()}/out"
    assert main(call_few(source, out, *server.flags)) == 0
    write_objects(server, f"{out}.incomplete", {MARKER: MARKER_TEXT, "0f/done/made-train-00003.json": b"{}"})
    complete = objects(server, out)
    assert main(call_few(source, out, *server.flags, "--resume")) == 0
    assert capsys.readouterr().err.endswith(DONE)
    assert objects(server, out) == complete and not objects(server, f"{out}.incomplete")
