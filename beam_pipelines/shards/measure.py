"""Measures the encoded size of inputs and finds inputs that would be rejected."""

import itertools
from typing import Iterator

from beam_pipelines.elements.dead_letters import DeadLetter
from beam_pipelines.elements.listing import Listing
from beam_pipelines.elements.references import References, unpack_chunks
from beam_pipelines.parallel.worker_processes import TaskWindow, share, shared
from beam_pipelines.shards.input_reader import InputReader
from beam_pipelines.shards.shard_writer import list_again
from beam_pipelines.shards.write_context import WriteContext, WriteSpec
from beam_pipelines.storage.files import files_at
from beam_pipelines.storage.spool import SpoolReader

# The number of inputs in a task of a worker process.
_TASK_INPUTS = 8


def measure_inputs(references: References, listing: Listing, spec: WriteSpec) -> Iterator[int | DeadLetter]:
    """Yields the encoded size in bytes, or the dead letter, of each input.

    The size is the total size of the images or, without images, the size of the serialized example.
    """
    tasks = TaskWindow(spec.run.num_processes)
    context = share(WriteContext(spec, listing))
    step = _TASK_INPUTS if spec.run.num_processes else len(references)
    for start in range(0, len(references), step):
        part = b"".join(references.slice(start, min(start + step, len(references))).chunks())
        for measurements in tasks.run(measure_batch, context, part):
            yield from measurements
    for measurements in tasks.drain():
        yield from measurements


def measure_batch(shared_context: bytes, chunks: bytes) -> list[int | DeadLetter]:
    """Returns the encoded size in bytes, or the dead letter, of each input. Runs in a worker process.

    Args:
        shared_context: A `WriteContext`, from `share`.
        chunks: The packed references of the inputs.
    """
    context: WriteContext = shared(shared_context)
    references = unpack_chunks(chunks)
    with SpoolReader(context.spec.run.spool_directory) as spool:
        reader = InputReader(context, files_at(context.listing.root), spool)
        read = reader.read_all(list_again(references, spool), itertools.repeat(False))
        return [item if isinstance(item, DeadLetter) else item.num_bytes for item in read]
