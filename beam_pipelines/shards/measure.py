"""Inputs as they would be stored: how large each is, or why it would be refused."""

import contextlib
import itertools
from typing import Iterator

from beam_pipelines.config.prepare_job import PrepareJob
from beam_pipelines.elements.dead_letters import DeadLetter
from beam_pipelines.elements.listing import Listing
from beam_pipelines.elements.references import References, unpack_pieces
from beam_pipelines.parallel.light_processes import TaskWindow, share, shared
from beam_pipelines.shards.input_reader import InputReader
from beam_pipelines.shards.shard_writer import list_again
from beam_pipelines.shards.write_context import WriteContext
from beam_pipelines.storage.files import files_at
from beam_pipelines.storage.spool import SpoolReader

# What a task of a light process looks at.
_TASK_INPUTS = 8


def measure_inputs(references: References, listing: Listing, config: PrepareJob) -> Iterator[int | DeadLetter]:
    """The size of each input's images as they would be stored, or of an example without one, or why it would not be stored."""
    tasks = TaskWindow(config.num_processes)
    context = share(WriteContext(config, listing))
    step = _TASK_INPUTS if config.num_processes else len(references)
    for start in range(0, len(references), step):
        part = b"".join(references.slice(start, min(start + step, len(references))).pieces())
        for found in tasks.run(look_at, context, part):
            yield from found
    for found in tasks.drain():
        yield from found


def look_at(shared_context: bytes, pieces: bytes) -> list[int | DeadLetter]:
    """Measures some inputs in a light process: their sizes as they would be stored in bytes, or their dead letters.

    Args:
        shared_context: A `WriteContext`, as `share` gives it.
        pieces: The references of the inputs, packed.
    """
    context: WriteContext = shared(shared_context)
    references = unpack_pieces(pieces)
    with contextlib.closing(SpoolReader(context.config.spool_directory)) as spool:
        reader = InputReader(context, files_at(context.listing.root), spool)
        read = reader.read_all(list_again(references, spool), itertools.repeat(False))
        return [one if isinstance(one, DeadLetter) else one.num_bytes for one in read]
