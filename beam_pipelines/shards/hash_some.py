"""Computes content hashes and perceptual hashes of images in a worker process."""

from typing import NamedTuple

import numpy as np

from beam_pipelines.elements.dead_letters import DeadLetter
from beam_pipelines.elements.reference_runs import SpoolRange, read_references
from beam_pipelines.elements.references import References
from beam_pipelines.images.visual_groups import hash_rows
from beam_pipelines.parallel.worker_processes import shared
from beam_pipelines.shards.input_reader import InputReader
from beam_pipelines.shards.shard_writer import list_again
from beam_pipelines.shards.write_context import WriteContext
from beam_pipelines.storage.files import files_at
from beam_pipelines.storage.spool import SpoolReader


class HashedPart(NamedTuple):
    """The hashes of some images of a `SortedRun`.

    Attributes:
        spool: The number of the temporary file that contains the references.
        first: The index of the first image in the `SortedRun`.
        num_inputs: The number of images.
        rows: The `HASH_ROW`s of the accepted images, as bytes.
        rejected: The indices of the rejected images, counted from the first image.
        dead_letters: The dead letters of the rejected images.
    """

    spool: int
    first: int
    num_inputs: int
    rows: bytes
    rejected: list[int]
    dead_letters: list[DeadLetter]


def hash_some(shared_context: bytes, spool_range: SpoolRange, first: int, start: int, stop: int) -> HashedPart:
    """Reads and hashes images.

    Args:
        shared_context: A `WriteContext`, from `share`.
        spool_range: The byte range of a chunk of references.
        first: The index of the chunk's first reference in the `SortedRun`.
        start: The index of the first image to hash, counted from the start of the chunk.
        stop: The index after the last image to hash, counted from the start of the chunk.
    """
    context: WriteContext = shared(shared_context)
    with SpoolReader(context.spec.run.spool_directory) as spool:
        references = read_references(spool_range, spool).slice(start, stop)
        rows, rejected, dead_letters = hash_references(context, references, spool)
    return HashedPart(spool_range.spool, first + start, stop - start, rows.tobytes(), rejected, dead_letters)


def hash_references(context: WriteContext, references: References, spool: SpoolReader) -> tuple[np.ndarray, list[int], list[DeadLetter]]:
    """Returns the hashes of the accepted images, and the indices and dead letters of the rejected images."""
    contents, visual_hashes, rejected, dead_letters = [], [], [], []
    for number, digests in enumerate(InputReader(context, files_at(context.listing.root), spool).digest_all(list_again(references, spool))):
        if type(digests) is DeadLetter:
            rejected.append(number)
            dead_letters.append(digests)
        else:
            contents.append(digests.content)
            visual_hashes.append(digests.descriptor)
    return hash_rows(contents, visual_hashes), rejected, dead_letters
