"""Stores the plan and the list of completed shards, so that `--resume` can continue an interrupted run.

Files end with a checksum line, so that a resumed run detects corrupt files.

    OUT.incomplete/RUN_ID/
      plan/train-00000-of-00016      references to the inputs of a shard in shuffled order; see `References.chunks`
      plan/plan.json                 options, listing and shards; written last
      done/train-00000-of-00016.json checksums and statistics of a completed shard; written after its other files
      done/train-00000-of-00016.dead_letters.jsonl    sorted dead letters, if any; the checksum covers them too
      spool/                         bytes that a source cannot read twice, large values, dead letters of the listing
"""

import zlib
from typing import Sequence

import google_crc32c

from beam_pipelines.config.run_paths import RunPaths
from beam_pipelines.elements import plain_json
from beam_pipelines.elements.dead_letters import DeadLetter, to_json_lines
from beam_pipelines.elements.plan import Plan, PlannedShard, ShardAddress, WrittenShard
from beam_pipelines.elements.references import References, unpack_some
from beam_pipelines.errors import RunError, StorageError
from beam_pipelines.storage.files import files_at, is_remote, make_folder, open_file, write_file
from tf_input.dataset_format import ShardInfo

_BLOCK_BYTES = 4 << 20


def write_planned_shard(run: RunPaths, shard: PlannedShard, chunks: bytes) -> PlannedShard:
    """Writes the plan file of a shard, which contains the references to the shard's inputs."""
    make_folder(run.plan_directory)
    write_file(f"{run.plan_directory}/{shard.address}", chunks)
    return shard


def write_plan(run: RunPaths, plan: Plan) -> None:
    """Writes the plan's summary file, after the inputs of all shards. From then on, the run can be resumed."""
    make_folder(run.done_directory)
    write_file(run.plan_path, with_checksum(plain_json.dumps(plan)))


def is_planned(run: RunPaths) -> bool:
    """Returns whether an earlier run completed its plan."""
    return files_at(run.plan_path).exists(run.plan_path)


def read_plan(run: RunPaths) -> Plan | None:
    """Reads the plan of an earlier run. Returns None if that run did not complete its plan.

    Raises:
        ValueError: The plan is corrupt, or was written by another version.
    """
    path = run.plan_path
    return plain_json.loads(check_and_strip_checksum(files_at(path).read(path)), Plan) if is_planned(run) else None


def read_planned_shard(run: RunPaths, shard: PlannedShard, start: int = 0, stop: int | None = None) -> References:
    """Reads the references to a shard's inputs from the plan, optionally only those from `start` to `stop`.

    Raises:
        RunError: The references are missing or corrupt.
    """
    path = f"{run.plan_directory}/{shard.address}"
    try:
        return unpack_some(files_at(path).read(path), start, stop, shard.num_inputs)
    except OSError as error:
        raise StorageError(f"the plan of shard {shard.address} could not be read: {error.strerror or error}") from error
    except ValueError as error:
        raise RunError(
            f"the plan of shard {shard.address} is corrupt: {error}. Rerun with --restart to start over."
        ) from error


def write_done(run: RunPaths, shard: WrittenShard, dead_letters: Sequence[DeadLetter]) -> None:
    """Marks a shard as completed after all its files have been written."""
    letters = to_json_lines(dead_letters).encode() if dead_letters else b""
    if letters:
        write_file(dead_letters_path(run, shard.address), letters)
    write_file(f"{run.done_directory}/{shard.address}.json", with_checksum(plain_json.dumps(shard), letters))


def dead_letters_path(run: RunPaths, address: ShardAddress) -> str:
    """Returns the path of the file with a completed shard's dead letters. It exists only if there are dead letters."""
    return f"{run.done_directory}/{address}.dead_letters.jsonl"


def read_done(run: RunPaths, address: ShardAddress) -> WrittenShard | None:
    """Reads the `done` file of a completed shard. Returns None if the file is missing or corrupt."""
    path = f"{run.done_directory}/{address}.json"
    files = files_at(path)
    if not files.exists(path):
        return None
    data = files.read(path)
    try:
        done = plain_json.loads(data.rpartition(b"\n")[0], WrittenShard)
        letters = files.read(dead_letters_path(run, address)) if done.statistics.dead_letters.num else b""
        check_and_strip_checksum(data, letters)
    except (ValueError, FileNotFoundError):  # For example, a truncated file after a machine crash.
        return None
    return done


def with_checksum(data: bytes, others: bytes = b"") -> bytes:
    """Appends a checksum line to `data`."""
    return data + f"\n{zlib.crc32(data, zlib.crc32(others)):08x}".encode()


def check_and_strip_checksum(data: bytes, others: bytes = b"") -> bytes:
    """Returns the contents of a file without its checksum line. Raises `ValueError` if the checksum is wrong."""
    contents, _, _ = data.rpartition(b"\n")
    if data != with_checksum(contents, others):
        raise ValueError("its checksum does not match")
    return contents


def num_done(run: RunPaths) -> int:
    """Returns the number of completed shards."""
    directory = run.done_directory
    return sum(name.endswith(".json") for name, _ in files_at(directory).list(directory))


def find_problems(directory: str, info: ShardInfo) -> dict[str, str]:
    """Describes the problem of each missing or corrupt file of a shard. In object stores, only sizes are checked."""
    problems = {}
    for name, num_bytes, crc32c in info.files():
        path = f"{directory}/{name}"
        try:
            if not files_at(path).exists(path):
                problems[name] = "is missing"
            elif (size := files_at(path).size(path)) != num_bytes:
                problems[name] = f"has {size} bytes instead of {num_bytes}"
            elif not is_remote(path) and _file_crc32c(path) != crc32c:
                problems[name] = "has a wrong checksum"
        except OSError as error:
            if is_remote(path):  # The store is busy, or denies access.
                raise
            problems[name] = f"cannot be read: {error.strerror or error}"
    return problems


def _file_crc32c(path: str) -> int:
    crc = 0
    with open_file(path) as file:
        while data := file.read(_BLOCK_BYTES):
            crc = google_crc32c.extend(crc, data)
    return crc
