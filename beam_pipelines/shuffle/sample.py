"""Tests a sample of the inputs before any shard is written.

The sample consists of the inputs with the smallest shuffle keys, so it is the same in every run. If nearly all sampled
inputs are rejected, the run fails early, because the input folder is probably wrong. If image sizes are unknown, the
number of shards is computed from the sizes in the sample.
"""

import math
from typing import Callable, Iterable, Iterator, Mapping

import numpy as np

from beam_pipelines.elements.dead_letters import DeadLetter, DeadLetterCount
from beam_pipelines.elements.listing import Listing, empty_split
from beam_pipelines.elements.reference_runs import SortedRun, read_references
from beam_pipelines.elements.references import References
from beam_pipelines.errors import DataError
from beam_pipelines.shuffle.ranks import ShuffleSpec, choose_num_shards
from beam_pipelines.storage.spool import SpoolReader

# One in 50 inputs is sampled, within the limits below. The upper limit is enough to estimate the image sizes of a large
# dataset.
_ONE_OF = 50
MIN_SAMPLE, MAX_SAMPLE = 16, 64

# A function that returns, for each input, its encoded size in bytes or its dead letter.
Measure = Callable[[References, Listing], Iterable[int | DeadLetter]]

# Upper bound of the probability that the early check rejects a dataset within `--max_bad_fraction`.
_IMPROBABLE = 1e-9


def sample_size(listing: Listing, spec: ShuffleSpec) -> int:
    """Returns the number of inputs to sample. A small sample is enough if image sizes are known."""
    wanted = listing.num_inputs // _ONE_OF if not _has_sizes(listing, spec) else 0
    return max(MIN_SAMPLE, min(wanted, MAX_SAMPLE))


def _has_sizes(listing: Listing, spec: ShuffleSpec) -> bool:
    return listing.has_sizes and spec.images.is_kept and spec.images.encoding == "file"


def smallest_of_run(run: SortedRun, listing: Listing, spec: ShuffleSpec) -> Iterator[bytes]:
    """Yields the references in a `SortedRun` that may belong to the sample."""
    num = sample_size(listing, spec)
    with SpoolReader(spec.run.spool_directory) as spool:
        references = read_references(run.smallest(num), spool)
    # Take four times the expected number. Usually, there are many runs, so few references remain.
    below = min(2**64 - 1, 2**66 * num // max(listing.num_inputs, 1))
    yield references.slice(0, min(num, int(np.searchsorted(references.rows["order"], np.uint64(below))))).pack()


def take_sample(parts: Iterable[bytes]) -> References:
    """Returns the `MAX_SAMPLE` references with the smallest shuffle keys."""
    sample = References.concatenate([])
    for part in parts:
        sample = References.concatenate([sample, References.unpack(part)])
        sample = sample.take(np.argsort(sample.rows["order"], kind="stable")[:MAX_SAMPLE])
    return sample


def check_sample(
    sample: References, listing: Listing, counts: Mapping[str, np.ndarray], spec: ShuffleSpec, measure: Measure
) -> dict[str, int]:
    """Reads and checks the sample. Returns the number of shards of each split.

    Args:
        sample: The references with the smallest shuffle keys, from `take_sample`.
        listing: The listing of all inputs.
        counts: A mapping from split to the histogram of its keys, from `merge_counts`.
        spec: The options and the run.
        measure: A function that reads, checks and encodes inputs. See `shards.measure`.

    Raises:
        UserError: Every input of the sample was rejected, a split is empty, or the number of shards is invalid.
        DataError: So many inputs were rejected that the run cannot stay within `--max_bad_fraction`.
    """
    num_inputs = {split: int(of_split.sum()) for split, of_split in counts.items()}
    for split in listing.splits:
        if split not in num_inputs:
            raise empty_split(split, sum(num_inputs.values()), listing.num_groups)
    num_inputs = {split: num_inputs[split] for split in listing.splits}
    references = sample.slice(0, sample_size(listing, spec))
    measured = list(measure(references, listing))
    bad = DeadLetterCount()
    bad.add([item for item in measured if isinstance(item, DeadLetter)])
    _check_bad_fraction(bad, len(measured), listing, spec)
    sizes = [entry for entry in measured if not isinstance(entry, DeadLetter)]
    known = (listing.num_bytes, listing.num_listed) if _has_sizes(listing, spec) else (sum(sizes), max(len(sizes), 1))
    num_bytes = {split: count * known[0] // known[1] for split, count in num_inputs.items()}
    return choose_num_shards(spec.num_shards, spec.shard_bytes, num_inputs, num_bytes)


def _check_bad_fraction(bad: DeadLetterCount, num: int, listing: Listing, spec: ShuffleSpec) -> None:
    limit = spec.max_bad_fraction
    is_all = num == listing.num_listed
    # The sample contains all inputs. The end of the run reports their dead letters together with those of the listing.
    if is_all and bad.num < num:
        return
    if not is_all and _tail(bad.num, num, limit) > _IMPROBABLE:
        return
    if bad.num == num:
        which = "no input" if is_all else f"none of the first {num} inputs"
        raise listing.reject_all(bad, which)
    raise DataError(
        f"{bad.num} of the first {num} inputs are dead letters, so the total will exceed --max_bad_fraction={limit:g}. "
        f"Correct the inputs, or pass a --max_bad_fraction well above {bad.num / num:.2g}, the fraction among these "
        f"inputs (1 allows any number).{bad.describe(listing.image_root)}"
    )


def _tail(bad: int, num: int, fraction: float) -> float:
    """Returns the probability that at least `bad` of `num` inputs are invalid, given the fraction of invalid inputs."""
    return sum(math.comb(num, count) * fraction**count * (1 - fraction) ** (num - count) for count in range(bad, num + 1))
