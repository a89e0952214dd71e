"""Hashes the images of some references, in a light process: a plain function."""

import contextlib
from typing import NamedTuple

import numpy as np

from beam_pipelines.elements.dead_letters import DeadLetter
from beam_pipelines.elements.reference_runs import SpoolStretch, read_references
from beam_pipelines.elements.references import References
from beam_pipelines.images.look_alikes import hash_rows
from beam_pipelines.parallel.light_processes import shared
from beam_pipelines.shards.input_reader import InputReader
from beam_pipelines.shards.shard_writer import list_again
from beam_pipelines.shards.write_context import WriteContext
from beam_pipelines.storage.files import files_at
from beam_pipelines.storage.spool import SpoolReader


class HashedPart(NamedTuple):
    """The hashes of images that follow each other in a run.

    Attributes:
        spool: The number of the spool that the run lies in.
        first: The place in the run of the first image.
        num_inputs: The number of the images.
        rows: The bytes of rows of `HASH_ROW`, one for each image that was not refused.
        refused: The places of the images that were refused, counted from the first.
        dead_letters: The dead letters of the images that were refused.
    """

    spool: int
    first: int
    num_inputs: int
    rows: bytes
    refused: list[int]
    dead_letters: list[DeadLetter]


def hash_some(shared_context: bytes, stretch: SpoolStretch, first: int, start: int, stop: int) -> HashedPart:
    """Reads and hashes images.

    Args:
        shared_context: A `WriteContext`, as `share` gives it.
        stretch: A piece of a run, which begins at its place `first`.
        first: The place in the run where `stretch` begins.
        start: The first reference of the piece to look at.
        stop: The reference behind the last one to look at.
    """
    context: WriteContext = shared(shared_context)
    with contextlib.closing(SpoolReader(context.config.spool_directory)) as spool:
        references = read_references(stretch, spool).slice(start, stop)
        rows, refused, dead_letters = hash_references(context, references, spool)
    return HashedPart(stretch.spool, first + start, stop - start, rows.tobytes(), refused, dead_letters)


def hash_references(context: WriteContext, references: References, spool: SpoolReader) -> tuple[np.ndarray, list[int], list[DeadLetter]]:
    """The `HASH_ROW`s of the images of some references, without those that are refused; the places of these, and their dead letters."""
    contents, looks, refused, dead_letters = [], [], [], []
    for place, found in enumerate(InputReader(context, files_at(context.listing.root), spool).see_all(list_again(references, spool))):
        if type(found) is DeadLetter:
            refused.append(place)
            dead_letters.append(found)
        else:
            contents.append(found.content)
            looks.append(found.look)
    return hash_rows(contents, looks), refused, dead_letters
