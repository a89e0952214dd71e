"""The plan of a run on disk, and its finished shards, from which `--resume` continues.

`plan.json` and the files of finished shards end with a checksum line, so that a changed figure is never published.

    OUT.incomplete/RUN_ID/
      plan/train-00000-of-00016      a shard's references in rank order: see `References.pieces`
      plan/plan.json                 written last: options, listing, shards
      done/train-00000-of-00016.json a finished shard: sums, statistics; written after its other files
      done/train-00000-of-00016.dead_letters.jsonl    its dead letters, sorted, if it has any; covered by the same checksum
      spool/                         what a source cannot give twice, large values, dead letters of the listing
"""

import os
import zlib
from typing import Sequence

import google_crc32c

from beam_pipelines.config.output_paths import OutputPaths
from beam_pipelines.config.prepare_job import PrepareJob
from beam_pipelines.elements import plain_json
from beam_pipelines.elements.dead_letters import DeadLetter, to_json_lines
from beam_pipelines.elements.plan import Plan, PlannedShard, ShardAddress, WrittenShard
from beam_pipelines.elements.references import References, unpack_some
from beam_pipelines.errors import RunError, StorageError
from beam_pipelines.storage.files import files_at, is_remote, make_folder, open_file, write_file
from tf_input.dataset_format import ShardInfo

_BLOCK_BYTES = 4 << 20


def write_planned_shard(config: PrepareJob, shard: PlannedShard, pieces: bytes) -> PlannedShard:
    """Puts a shard's references into the plan."""
    make_folder(config.plan_directory)
    write_file(f"{config.plan_directory}/{shard.address}", pieces)
    return shard


def write_plan(plan: Plan) -> None:
    """Writes the plan, once every shard is planned: from now on the run can be resumed."""
    make_folder(plan.config.done_directory)
    write_file(plan.config.plan_path, sealed(plain_json.dumps(plan)))


def is_planned(config: OutputPaths) -> bool:
    """Whether an earlier run has come to the end of its plan."""
    return files_at(config.plan_path).exists(config.plan_path)


def read_plan(config: OutputPaths) -> Plan | None:
    """Reads the plan of an earlier run; None if the run did not complete its plan.

    Raises:
        ValueError: The plan is corrupt, or of another version.
    """
    path = config.plan_path
    return plain_json.loads(unsealed(files_at(path).read(path)), Plan) if is_planned(config) else None


def read_planned_shard(config: PrepareJob, shard: PlannedShard, start: int = 0, stop: int | None = None) -> References:
    """Reads a shard's references, all or those from rank `start` to `stop` within it.

    Raises:
        RunError: The references are not what was planned.
    """
    path = f"{config.plan_directory}/{shard.address}"
    try:
        return unpack_some(files_at(path).read(path), start, stop, shard.num_inputs)
    except OSError as error:
        raise StorageError(f"the plan of shard {shard.address} could not be read: {error.strerror or error}") from error
    except ValueError as error:
        raise RunError(f"the plan of shard {shard.address} is damaged: {error}") from error


def write_done(config: PrepareJob, shard: WrittenShard, dead_letters: Sequence[DeadLetter]) -> None:
    """Marks a shard as finished, after its other files were written."""
    letters = to_json_lines(dead_letters).encode() if dead_letters else b""
    if letters:
        write_file(dead_letters_path(config, shard.address), letters)
    write_file(f"{config.done_directory}/{shard.address}.json", sealed(plain_json.dumps(shard), letters))


def dead_letters_path(config: PrepareJob, address: ShardAddress) -> str:
    """The path of the dead letters of a finished shard, sorted, a line each; there is no such file where there are none."""
    return f"{config.done_directory}/{address}.dead_letters.jsonl"


def read_done(config: PrepareJob, address: ShardAddress) -> WrittenShard | None:
    """Reads the facts about a finished shard; None if the shard is not finished, or the facts or its dead letters have changed since.

    The files of the shard are not looked at.
    """
    path = f"{config.done_directory}/{address}.json"
    files = files_at(path)
    if not files.exists(path):
        return None
    data = files.read(path)
    try:
        done = plain_json.loads(data.rpartition(b"\n")[0], WrittenShard)
        letters = files.read(dead_letters_path(config, address)) if done.statistics.dead_letters.num else b""
        unsealed(data, letters)
    except (ValueError, FileNotFoundError):  # such as half of a file, after a crash of the machine
        return None
    return done


def sealed(data: bytes, others: bytes = b"") -> bytes:
    """Appends a line with the checksum of a file, and of the bytes of another file that belongs to it."""
    return data + f"\n{zlib.crc32(data, zlib.crc32(others)):08x}".encode()


def unsealed(data: bytes, others: bytes = b"") -> bytes:
    """Returns the contents of a sealed file; raises ValueError if they have changed."""
    contents, _, _ = data.rpartition(b"\n")
    if data != sealed(contents, others):
        raise ValueError("its checksum is of other contents")
    return contents


def num_done(config: OutputPaths) -> int:
    """The number of shards that are finished."""
    directory = config.done_directory
    if is_remote(directory):
        names = [name for name, _ in files_at(directory).list(directory)]
    else:
        names = os.listdir(directory) if os.path.isdir(directory) else []
    return sum(name.endswith(".json") for name in names)


def damage(directory: str, info: ShardInfo) -> dict[str, str]:
    """Finds which of a shard's files are not as they were written, and how: file name -> what is wrong.

    In an object store, which has sums of its own, only the sizes are compared.
    """
    found = {}
    for name, num_bytes, crc32c in info.files():
        path = f"{directory}/{name}"
        try:
            if not files_at(path).exists(path):
                found[name] = "is gone"
            elif (size := files_at(path).size(path)) != num_bytes:
                found[name] = f"has {size} bytes; expected {num_bytes}"
            elif not is_remote(path) and _file_crc32c(path) != crc32c:
                found[name] = "has another checksum"
        except OSError as error:
            if is_remote(path):  # which is busy, or refuses us
                raise
            found[name] = f"cannot be read: {error.strerror or error}"
    return found


def _file_crc32c(path: str) -> int:
    crc = 0
    with open_file(path) as file:
        while data := file.read(_BLOCK_BYTES):
            crc = google_crc32c.extend(crc, data)
    return crc
