"""Tests that `prepare --resume` keeps finished shards and writes the same bytes as an uninterrupted run."""

import contextlib
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
from beam_pipelines.config.image_config import ImageConfig
from beam_pipelines.config.option import find_differences
from beam_pipelines.config.prepare_options import PrepareOptions
from beam_pipelines.config.source_config import SourceConfig
from beam_pipelines.elements import plain_json
from beam_pipelines.elements.plan import WrittenShard
from beam_pipelines.elements.plan_files import with_checksum, check_and_strip_checksum
from beam_pipelines.parallel import progress
from beam_pipelines.publish import write_metadata
from beam_pipelines.storage.working_directory import MARKER, MARKER_TEXT
from engines import digest
from forked_runs import ForkedRun
from made_images import encode, jpeg, noise, write_class_folders, write_files
from object_stores import StoreServer, connected_to, shared_server

pytestmark = pytest.mark.slow

NUM_SHARDS = 12
# The tests with many runs or with a store use few shards. The test servers are slow.
FEW_SHARDS = 4
KEPT = rf"\d+ of {NUM_SHARDS} shards are complete\. .*--resume.*"
STARTED_OVER = "recordmill: --resume: no run to resume, so this run starts from the beginning\n"


def command(source: pathlib.Path | str, output: pathlib.Path | str, *options: str, num_shards: int = NUM_SHARDS) -> list[str]:
    return ["prepare", f"--input={source}", "--source=image_folder", f"--output={output}", "--name=made", f"--num_shards={num_shards}", *options]


def command_few(source: pathlib.Path, output: pathlib.Path | str, *options: str) -> list[str]:
    return command(source, output, "--no_report", *options, num_shards=FEW_SHARDS)  # The report would read the shards.


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> pathlib.Path:
    """Returns class folders with one corrupt image, which does not exceed the limit of 1 % dead letters."""
    folder = write_class_folders(tmp_path_factory.mktemp("source"), {"ant": 40, "bee": 30, "cow": 50})
    return write_files(folder, {"cow/page.jpg": b"<!DOCTYPE html>"})


@pytest.fixture(scope="module")
def uninterrupted(source, tmp_path_factory) -> dict[str, str]:
    """Returns the digests of all files that an uninterrupted run writes."""
    output = tmp_path_factory.mktemp("unbroken") / "out"
    assert main(command(source, output)) == 0
    return digest(output)


@pytest.fixture(scope="module")
def uninterrupted_few(source, tmp_path_factory) -> dict[str, str]:
    output = tmp_path_factory.mktemp("unbroken") / "out"
    assert main(command_few(source, output)) == 0
    return digest(output)


@pytest.fixture(scope="module")
def killed_run(source, tmp_path_factory) -> pathlib.Path:
    """Kills a run while it finishes its fourth shard, and returns the folder that contains its working directory."""
    folder = tmp_path_factory.mktemp("killed")
    kill_at(command(source, folder / "out"), "beam_pipelines.shards.shard_files:write_done:4")
    return folder


@pytest.fixture
def interrupted(killed_run, tmp_path) -> pathlib.Path:
    """Returns the output path of a copy of the interrupted run, which a test can resume."""
    shutil.copytree(killed_run, tmp_path, dirs_exist_ok=True)
    return tmp_path / "out"


def kill_at(command: list[str], location: str) -> None:
    run = ForkedRun(*command, signalled=f"{signal.SIGKILL.value}:{location}")
    assert run.wait() == -signal.SIGKILL, run.reported()


def finished_files(output: pathlib.Path) -> dict[str, tuple[int, int]]:
    """Returns a mapping from the file names of all finished shards to their inodes and modification times."""
    files = {}
    for path in output.with_name(f"{output.name}.incomplete").glob("*/done/*.json"):
        try:
            info = plain_json.loads(unsealed_done(path), WrittenShard).info
            actual = {name: os.stat(path.parents[1] / name) for name, *_ in info.files()}
        except FileNotFoundError:  # The run is just ending.
            continue
        files |= {name: (stat.st_ino, stat.st_mtime_ns) for name, stat in actual.items()}
    return files


def unsealed_done(path: pathlib.Path) -> bytes:
    """Returns the content of the JSON file that describes a finished shard, without the checksum line."""
    return path.read_bytes().rpartition(b"\n")[0]


def run_directory(output: pathlib.Path) -> pathlib.Path:
    """Returns the directory of the only run in the working directory."""
    (directory,) = (path for path in output.with_name(f"{output.name}.incomplete").iterdir() if path.is_dir())
    return directory


def check_resumed(output: pathlib.Path, uninterrupted: dict[str, str], kept: dict[str, tuple[int, int]]) -> None:
    """Checks that a resumed run wrote the expected bytes, kept all finished files and left no additional files."""
    assert digest(output) == uninterrupted
    now = {name: os.stat(output / name) for name in kept}
    assert {name: (stat.st_ino, stat.st_mtime_ns) for name, stat in now.items()} == kept
    assert [path.name for path in output.parent.iterdir() if path.name.startswith("out")] == ["out"]


# Kills


def test_forked_run_may_print_more_than_a_pipe_holds():
    run = ForkedRun(*command(f"/{'x' * 100_000}", "out"))
    assert run.wait(60) == 2 and len(run.reported()) > 100_000


@pytest.mark.slow(15)
def test_bytes_are_equal_after_many_kills(source, uninterrupted_few, tmp_path):
    """Runs are killed 40 times in total, at random times or while they write shards, and resumed after each kill."""
    randomness, num_kills, num_while_writing, chain, seconds = random.Random(15), 0, 0, 0, None
    while num_kills < 40 or num_while_writing < 15:
        assert chain < 60, f"{num_kills} kills, {num_while_writing} of them amid the writing"
        output = tmp_path / f"{chain}" / "out"
        output.parent.mkdir()
        chain += 1
        kept: dict[str, tuple[int, int]] = {}
        for _ in range(randomness.randint(4, 9)):
            run, began = ForkedRun(*command_few(source, output, "--resume"), num_workers=randomness.randint(1, 2)), time.monotonic()
            if seconds is None:  # The first run measures the duration.
                assert run.wait() == 0, run.reported()
                seconds = time.monotonic() - began
                break
            by_time = randomness.random() < 0.5
            num_done = min(len(kept) // 3 + randomness.randint(0, 2), FEW_SHARDS)
            wait_until(run, output, seconds * randomness.random() if by_time else None, num_done)
            run.kill()
            if run.wait() == 0:  # The run ended before the kill, because the machine has become faster.
                seconds = min(seconds, time.monotonic() - began)
                break
            num_kills += 1
            if output.exists():
                break  # The run was killed just before its end.
            kept |= {name: state for name, state in finished_files(output).items() if name not in kept}
            num_while_writing += bool(kept)
        if not output.exists() or output.with_name("out.incomplete").exists():
            assert main(command_few(source, output, "--resume")) == 0
        check_resumed(output, uninterrupted_few, kept)


def wait_until(run: ForkedRun, output: pathlib.Path, seconds: float | None, num_done: int) -> None:
    """Waits until a run has ended, has run for the given time, or has finished `num_done` shards."""
    incomplete, began = output.with_name("out.incomplete"), time.monotonic()
    while run.poll() is None:
        if seconds is not None and time.monotonic() - began > seconds:
            return
        with contextlib.suppress(FileNotFoundError):  # The run is just ending.
            if seconds is None and any(incomplete.glob("*/plan/plan.json")) and len([*incomplete.glob("*/done/*.json")]) >= num_done:
                return
        time.sleep(0.001)


DONE = "recordmill: --resume: the dataset is complete, so there is nothing to do\n"

# Name -> (call at which a run is killed, message of the next run with --resume).
KILLED_AT = {
    "while the plan is completed": ("beam_pipelines.shuffle.global_shuffle:write_plan:1", STARTED_OVER),
    "before the first shard is finished": ("beam_pipelines.shards.shard_files:write_done:1", ""),
    "when all shards are finished": ("beam_pipelines.publish.write_metadata:check_sums:1", ""),
    "before the manifest": ("beam_pipelines.publish.publishing:publish:1", ""),
    "after the manifest": ("beam_pipelines.publish.publishing:move_to_output:1", ""),
    "before the last rename": ("beam_pipelines.publish.publishing:publish_directory:1", ""),
    "after the last rename": ("beam_pipelines.publish.publishing:remove_directory:1", DONE),
}


@pytest.mark.parametrize("case", KILLED_AT)
def test_resume_keeps_finished_files_after_kill_at_any_stage(source, uninterrupted, tmp_path, capsys, case):
    location, message = KILLED_AT[case]
    output = tmp_path / "out"
    kill_at(command(source, output), location)
    kept = finished_files(output)
    if "last rename" in case:  # Only the dataset exists by then.
        directory = run_directory(output) if "before" in case else output
        files = (path for path in directory.rglob("*") if path.is_file())
        kept = {str(path.relative_to(directory)): (os.stat(path).st_ino, os.stat(path).st_mtime_ns) for path in files}
    if not message:
        assert main(command(source, output)) == 2
        reported = capsys.readouterr().err
        assert re.fullmatch(rf"recordmill: --output={output}: .* shards are complete\. .*--resume .*--restart .*\n", reported), reported
    assert main(command(source, output, "--resume")) == 0
    assert capsys.readouterr().err == message
    check_resumed(output, uninterrupted, kept)


# Messages and rejected commands


def test_command_without_resume_reports_finished_shards_and_changes_nothing(source, interrupted, capsys):
    before = finished_files(interrupted)
    for options in ((), ("--overwrite",), ("--seed=5",)):
        assert main(command(source, interrupted, *options)) == 2
        reported = f"3 of {NUM_SHARDS} shards are complete. "
        assert capsys.readouterr().err.startswith(f"recordmill: --output={interrupted}: {reported}"), options
    assert finished_files(interrupted) == before and len(before) == 9
    assert not interrupted.exists()


def test_resume_writes_missing_shards_and_counts_all_examples(source, interrupted, uninterrupted, monkeypatch, capsys):
    kept, counts = finished_files(interrupted), []
    publish = write_metadata.publish_files
    monkeypatch.setattr(write_metadata, "publish_files", lambda run, *arguments, **options: (
        counts.append(progress.read_counts(run.progress_directory)), publish(run, *arguments, **options)
    ))  # fmt: skip
    write_files(run_directory(interrupted), {".made-train.tfrecord-00007-of-00011.0.tmp": b"half", "progress/1-a": b"\1" + bytes(39)})
    assert main(command(source, interrupted, "--resume")) == 0
    (count,) = counts
    assert (count.listed, count.written, count.dead_letters) == (121, 121, 1), "existing shards count as written"
    assert capsys.readouterr().err == ""
    check_resumed(interrupted, uninterrupted, kept)


def test_resume_rewrites_corrupt_shard(source, interrupted, uninterrupted):
    kept = finished_files(interrupted)
    path = run_directory(interrupted) / next(name for name in kept if ".tfrecord-" in name)
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    assert main(command(source, interrupted, "--resume")) == 0
    split, location = re.fullmatch(r"made-(.*)\.tfrecord-(.*)", path.name).groups()
    check_resumed(interrupted, uninterrupted, {name: state for name, state in kept.items() if not (location in name and split in name)})


def test_resume_rewrites_shard_whose_record_has_changed(source, interrupted, uninterrupted):
    """A changed number in the JSON file of a finished shard must not appear in the published dataset."""
    kept = finished_files(interrupted)
    done = sorted((run_directory(interrupted) / "done").glob("*.json"))
    changed = re.sub(rb'"mean": |"num_bytes": (\d)', lambda result: result[0][:-1] + b"%d" % (9 - int(result[1])) if result[1] else result[0], done[0].read_bytes())
    assert changed != done[0].read_bytes()
    done[0].write_bytes(changed)
    assert main(command(source, interrupted, "--resume")) == 0
    check_resumed(interrupted, uninterrupted, {name: state for name, state in kept.items() if done[0].stem.partition("-")[2] not in name})


def test_resume_rewrites_changed_dead_letters_of_finished_shard(source, uninterrupted, tmp_path):
    kill_at(command(source, tmp_path / "out"), "beam_pipelines.publish.write_metadata:check_sums:1")
    (letters,) = (run_directory(tmp_path / "out") / "done").glob("*.dead_letters.jsonl")
    letters.write_text(letters.read_text().replace('"decode"', '"encode"').replace('"read"', '"reed"'))
    assert main(command(source, tmp_path / "out", "--resume")) == 0 and digest(tmp_path / "out") == uninterrupted


def test_resume_rejects_metadata_changed_before_last_rename(source, tmp_path, capsys):
    output = tmp_path / "out"
    kill_at(command(source, output), "beam_pipelines.publish.publishing:publish_directory:1")
    path = run_directory(output) / "statistics.json"
    path.write_text(path.read_text().replace('"variance"', '"varianze"'))
    assert main(command(source, output, "--resume")) == 1
    assert "statistics.json has " in capsys.readouterr().err and not output.exists()


def test_restart_rewrites_every_shard(source, interrupted, uninterrupted, capsys):
    before = finished_files(interrupted)
    assert main(command(source, interrupted, "--restart")) == 0
    assert digest(interrupted) == uninterrupted and os.listdir(interrupted.parent) == ["out"]
    assert not {name for name, (_, time_ns) in before.items() if os.stat(interrupted / name).st_mtime_ns == time_ns}


def test_starts_over_if_no_plan_is_complete(source, killed_run, uninterrupted, tmp_path, capsys):
    for case, options in {"no output": ["--resume"], "incomplete plan": ["--resume"], "the same command": []}.items():
        if case != "no output":
            shutil.copytree(killed_run, tmp_path, dirs_exist_ok=True)
            (run_directory(tmp_path / "out") / "plan/plan.json").unlink()
        assert main(command(source, tmp_path / "out", *options)) == 0, case
        assert capsys.readouterr().err == (STARTED_OVER if options else ""), case
        assert digest(tmp_path / "out") == uninterrupted and os.listdir(tmp_path) == ["out"], case
        shutil.rmtree(tmp_path / "out")


def test_resume_can_be_repeated_after_the_run_has_finished(source, interrupted, capsys):
    assert main(command(source, interrupted, "--resume")) == 0
    capsys.readouterr()
    before = os.stat(interrupted / "manifest.json")
    assert main(command(source, interrupted, "--resume")) == 0
    assert capsys.readouterr().err == DONE
    assert os.path.samestat(os.stat(interrupted / "manifest.json"), before)
    assert main(command(source, interrupted, "--resume", "--seed=5")) == 2
    reported = f"--output={interrupted} exists with other options: --seed=5, but the earlier run has no --seed. "
    assert capsys.readouterr().err.startswith(f"recordmill: {reported}")
    assert main(command(source, interrupted)) == 2
    assert capsys.readouterr().err.startswith(f"recordmill: --output={interrupted} exists. ")
    assert main(command(source, interrupted, "--resume", "--restart")) == 2
    assert "--resume and --restart cannot be used together" in capsys.readouterr().err
    (interrupted / "run.json").write_text("{")
    assert main(command(source, interrupted, "--resume")) == 2
    assert f"--output={interrupted}: run.json is corrupt" in capsys.readouterr().err
    assert main(command(source, interrupted, "--overwrite")) == 0
    assert os.listdir(interrupted.parent) == ["out"] and main(command(source, interrupted, "--resume")) == 0


def test_resume_continues_replacing_a_dataset(source, interrupted, uninterrupted):
    assert main(command(source, interrupted.with_name("other"), "--seed=5")) == 0
    os.rename(interrupted.with_name("other"), interrupted)
    kept = finished_files(interrupted)
    assert main(command(source, interrupted, "--resume")) == 2, "--overwrite is missing"
    assert main(command(source, interrupted, "--resume", "--overwrite")) == 0
    check_resumed(interrupted, uninterrupted, kept)


def test_transform_rejects_output_of_interrupted_prepare(interrupted, tmp_path_factory, capsys):
    complete = analysed_images(tmp_path_factory)
    capsys.readouterr()
    before = finished_files(interrupted)
    assert main(["transform", str(complete), str(interrupted)]) == 2
    reported = capsys.readouterr().err
    assert f"OUT2={interrupted}: " in reported and f"`recordmill prepare` left files in {interrupted}.incomplete" in reported
    assert finished_files(interrupted) == before


# Options of a run -> (options that are omitted with --resume, additional options, start of the message).
OTHER_OPTIONS = {
    (): {
        "other value": ((), ("--seed=5",), "--seed=5, but the earlier run has no --seed"),
        "two options": ((), ("--seed=5", "--ignore=*.x"), "--seed=5, but the earlier run has no --seed; --ignore=*.x, but the earlier run has no --ignore"),
        "folders": ((), ("--split_folders=no",), "--split_folders=no, but the earlier run has no --split_folders"),
    },
    ("--check=none", "--splits=train=1"): {
        "omitted option": (("--check=none",), (), "--check is not given, but the earlier run has --check=none"),
        "splits": (("--splits=train=1",), (), "--splits is not given, but the earlier run has --splits=train=1"),
    },
    ("--image_size=short=8", "--image_format=jpeg:90", "--splits=a=1/2,b=1/2"): {
        "option of the images": (
            ("--image_size=short=8",), ("--image_size=exact=8x9",), "--image_size=exact=8x9, but the earlier run has --image_size=short=8"
        ),
        "format": (
            ("--image_format=jpeg:90",), ("--image_format=jpeg:91",), "--image_format=jpeg:91, but the earlier run has --image_format=jpeg:90"
        ),
        "order of splits": (
            ("--splits=a=1/2,b=1/2",), ("--splits=b=1/2,a=1/2",), "--splits=b=1/2,a=1/2, but the earlier run has --splits=a=1/2,b=1/2"
        ),
    },
}  # fmt: skip


@pytest.mark.parametrize("options", OTHER_OPTIONS, ids=lambda options: " ".join(options) or "none")
def test_resume_rejects_changed_options_by_name(source, killed_run, tmp_path, capsys, options):
    output = tmp_path / "out"
    if options:
        kill_at(command(source, output, *options), "beam_pipelines.shards.shard_files:write_done:2")
    else:
        shutil.copytree(killed_run, tmp_path, dirs_exist_ok=True)
    before = finished_files(output)
    assert before
    for case, (unused_fields, others, reported) in OTHER_OPTIONS[options].items():
        given = [option for option in options if option not in unused_fields]
        assert main(command(source, output, *given, *others, "--resume")) == 2, case
        error = capsys.readouterr().err
        assert error.startswith(f"recordmill: --resume of --output={output}: {reported}"), error
        assert error.count("\n") == 1 and finished_files(output) == before
    if "short" in str(options):
        assert main(command(source, output, *options, "--resume", "--max_bad_fraction=0.5", "--direct_num_workers=1")) == 0, "these options may differ"


def test_differences_between_runs_are_reported_by_option():
    config = PrepareOptions("in", "out", "made", seed=5, images=ImageConfig(format="jpeg", quality=90))
    other = PrepareOptions("in", "elsewhere", "made", max_bad_fraction=0.5, has_report=False, source=SourceConfig(labels=(), has_masks=True))
    assert find_differences(PrepareOptions, config.texts, config.texts) == []
    expected = [
        "--seed is not given, but the earlier run has --seed=5",
        "--label=none, but the earlier run has no --label",
        "--masks=yes, but the earlier run has no --masks",
        "--image_format is not given, but the earlier run has --image_format=jpeg:90",
    ]
    assert find_differences(PrepareOptions, config.texts, other.texts) == expected


def test_resume_rejects_plan_that_is_corrupt_or_from_another_version(source, interrupted, capsys):
    plan = run_directory(interrupted) / "plan/plan.json"
    complete = plan.read_bytes()
    version = re.search(rb'"version": "(recordmill .*?, format \d+)"', complete)[1]
    cases = {
        "another version": (
            with_checksum(check_and_strip_checksum(complete).replace(version, b"recordmill 0.0.1, format 1")),
            "the interrupted run is from recordmill 0.0.1, format 1, but this is ",
        ),
        "unknown field": (
            with_checksum(check_and_strip_checksum(complete).replace(b'"version"', b'"another": 1, "version"')),
            "the plan of the interrupted run is corrupt",
        ),
        "changed number": (re.sub(rb'"num_inputs": (\d)', rb'"num_inputs": 1\1', complete), "the plan of the interrupted run is corrupt"),
        "truncated plan": (complete[: len(complete) // 2], "the plan of the interrupted run is corrupt"),
    }  # fmt: skip
    for case, (data, reported) in cases.items():
        plan.write_bytes(data)
        before = finished_files(interrupted)
        assert main(command(source, interrupted, "--resume")) == 2, case
        error = capsys.readouterr().err
        assert error.startswith(f"recordmill: --output={interrupted}: {reported}") and "--restart" in error, error
        assert main(command(source, interrupted)) == 2, case
        error = capsys.readouterr().err
        assert "--resume" in error and "--restart" in error, error
        assert finished_files(interrupted) == before, case
        assert main(["status", str(interrupted)]) == 0
        reported = capsys.readouterr().out
        assert "next:" in reported and "--restart" in reported and "--resume" not in reported, reported
    assert main(command(source, interrupted, "--restart")) == 0


# Failures and interrupts


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signal_keeps_finished_shards_only_if_plan_is_complete(source, uninterrupted, tmp_path, number):
    output = tmp_path / "out"
    run = ForkedRun(*command(source, output), signalled=f"{number.value}:beam_pipelines.shuffle.global_shuffle:write_plan:1")
    assert (run.wait(), run.reported()) == (128 + number, "recordmill: Interrupted. Nothing was written.\n")
    assert os.listdir(tmp_path) == []
    run = ForkedRun(*command(source, output), signalled=f"{number.value}:beam_pipelines.shards.shard_files:write_done:4")
    assert run.wait() == 128 + number and re.fullmatch(rf"recordmill: Interrupted\. {KEPT}\n", run.reported()), run.reported()
    assert not [*tmp_path.rglob(".*.tmp")]
    kept = finished_files(output)
    assert main(command(source, output, "--resume")) == 0
    check_resumed(output, uninterrupted, kept)


def test_resume_after_too_many_dead_letters_with_larger_fraction(source, tmp_path, capsys):
    write_files(tmp_path / "in", {f"{label}/{index}.jpg": jpeg(index) for label in "ab" for index in range(100)})
    write_files(tmp_path / "in", {"a/0.jpg": b"no image", "b/1.jpg": b"no image", "b/2.jpg": b"no image"})
    output = tmp_path / "out"
    assert main(command(tmp_path / "in", output)) == 2
    error = capsys.readouterr().err
    assert "3 of 200 inputs" in error and "--max_bad_fraction=0.01" in error
    advised = re.search(r"--restart, .*(--resume) (--max_bad_fraction=[\d.]+\d)", error)
    # The last line does not advise --resume alone, which would fail again.
    assert error.endswith(f"\n{NUM_SHARDS} of {NUM_SHARDS} shards are complete.\n") and error.count("--resume") == 1, error
    assert main(command(tmp_path / "in", output, "--resume")) == 2
    kept, corrected = finished_files(output), tmp_path / "corrected"
    shutil.copytree(tmp_path / "in", corrected / "in")
    shutil.copytree(output.with_name("out.incomplete"), corrected / "out.incomplete")
    assert main(command(tmp_path / "in", output, *advised.groups())) == 0
    assert main(command(tmp_path / "in", tmp_path / "expected", advised[2])) == 0
    check_resumed(output, digest(tmp_path / "expected"), kept)
    write_files(tmp_path / "in", {"a/0.jpg": jpeg(1), "b/1.jpg": jpeg(1), "b/2.jpg": jpeg(1)})
    shutil.rmtree(output)
    (corrected / "out.incomplete").rename(output.with_name("out.incomplete"))
    assert main(command(tmp_path / "in", output)) == 2
    assert main(command(tmp_path / "in", output, "--restart")) == 0
    assert not (output / "dead_letters.jsonl").read_text()


def test_leaves_nothing_if_no_image_is_readable(tmp_path, capsys):
    write_files(tmp_path / "in", {"a/1.jpg": b"no image", "b/1.jpg": b"no image"})
    assert main(command(tmp_path / "in", tmp_path / "out", "--max_bad_fraction=1")) == 2
    assert "no input " in capsys.readouterr().err
    assert os.listdir(tmp_path) == ["in"]


@pytest.fixture
def small_disk(tmp_path) -> Iterator[pathlib.Path]:
    """Mounts a file system of 3 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "none", str(folder)], capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_full_disk_keeps_finished_shards_for_resume(small_disk, tmp_path, capfd):
    pictures = {f"{label}/{index}.png": encode(noise(index, 150, 150), "PNG") for label in "ab" for index in range(40)}
    source, output = write_files(tmp_path / "in", pictures), small_disk / "out"  # 5 MB
    assert main(command(source, output)) == 1
    reported = capfd.readouterr().err
    assert re.fullmatch(rf"recordmill: .* could not be written: No space left on device\. {KEPT}\n", reported), reported
    kept = finished_files(output)
    assert kept and not [*small_disk.rglob(".*.tmp")]
    subprocess.run(["mount", "-o", "remount,size=30m", str(small_disk)], check=True)
    assert main(command(source, output, "--resume")) == 0
    assert main(command(source, tmp_path / "expected")) == 0
    check_resumed(output, digest(tmp_path / "expected"), kept)


# Object stores


@pytest.fixture(scope="module", params=["s3", "gs"])
def server(request) -> Iterator[StoreServer]:
    with connected_to(shared_server(request.param)) as server:
        yield server


@pytest.fixture(scope="module")
def old(source, tmp_path_factory) -> dict[str, bytes]:
    """Returns the files of an older dataset, which the tests replace."""
    output = tmp_path_factory.mktemp("old") / "out"
    assert main(command_few(source, output, "--seed=5")) == 0
    return {str(path.relative_to(output)): path.read_bytes() for path in output.rglob("*") if path.is_file()}


@pytest.mark.parametrize("server, replaces", [("s3", False), ("gs", True)], indirect=["server"])
def test_resume_in_object_store_keeps_finished_shards(source, uninterrupted_few, old, server, capsys, replaces):
    out = f"{server.make_bucket()}/out"
    options = [*server.flags, *(["--overwrite"] if replaces else [])]
    if replaces:
        write_objects(server, out, old)
    kill_at(command_few(source, out, *options), "beam_pipelines.shards.shard_files:write_done:3")
    assert main(command_few(source, out, *options)) == 2
    reported = f"2 of {FEW_SHARDS} shards are complete. "
    assert capsys.readouterr().err.startswith(f"recordmill: --output={out}: {reported}")
    name, data = next((name, data) for name, data in objects(server, f"{out}.incomplete").items() if "/done/" in name)
    working = f"{out}.incomplete/{name.partition('/')[0]}/dataset" if replaces else out
    done = plain_json.loads(data.rpartition(b"\n")[0], WrittenShard)
    # These bytes have the size of the finished shard, so that writing it again would be noticed.
    marked_bytes = bytes(done.info.num_bytes)
    open_store(server, out).write(f"{working}/{done.info.name}", marked_bytes)
    assert main(command_few(source, out, *options, "--resume")) == 0
    actual = objects(server, out)
    assert actual[done.info.name] == marked_bytes
    assert {**digest_of_objects(actual), done.info.name: uninterrupted_few[done.info.name]} == uninterrupted_few
    assert not objects(server, f"{out}.incomplete")


@pytest.mark.parametrize("server, replaces", [("s3", True), ("gs", False)], indirect=["server"])
def test_resume_in_object_store_after_kill_during_publishing(source, uninterrupted_few, old, server, replaces):
    out = f"{server.make_bucket()}/out"
    options = [*server.flags, *(["--overwrite"] if replaces else [])]
    # The first call of write_file writes the manifest, the second the marker on the replaced dataset.
    for location in ("publishing:publish:1", "publishing:write_file:2") if replaces else ("publishing:write_file:1",):
        if replaces:
            write_objects(server, out, old)
        kill_at(command_few(source, out, *options, "--overwrite"), f"beam_pipelines.publish.{location}")
        assert main(command_few(source, out, "--overwrite", *server.flags)) == 2
        assert main(command_few(source, out, *options, "--resume")) == 0
        assert digest_of_objects(objects(server, out)) == uninterrupted_few and not objects(server, f"{out}.incomplete")
        open_store(server, out).remove_all(out)


@pytest.mark.parametrize("server", ["s3"], indirect=True)
def test_repeated_resume_in_object_store_removes_leftovers(source, server, capsys):
    out = f"{server.make_bucket()}/out"
    assert main(command_few(source, out, *server.flags)) == 0
    write_objects(server, f"{out}.incomplete", {MARKER: MARKER_TEXT, "0f/done/made-train-00003.json": b"{}"})
    complete = objects(server, out)
    assert main(command_few(source, out, *server.flags, "--resume")) == 0
    assert capsys.readouterr().err.endswith(DONE)
    assert objects(server, out) == complete and not objects(server, f"{out}.incomplete")
