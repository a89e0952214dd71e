"""A look at a few inputs before anything is written: the same ones in every run, those with the smallest shuffle keys.

What they come to says how many shards there will be, where the listing does not; and where nearly all of them are refused, the folder
is a wrong one, which is told within seconds.
"""

import contextlib
import math
from typing import Callable, Iterable, Iterator, Mapping

import numpy as np

from beam_pipelines.config.prepare_job import PrepareJob
from beam_pipelines.elements.dead_letters import DeadLetter, DeadLetterCount
from beam_pipelines.elements.listing import Listing, empty_split
from beam_pipelines.elements.reference_runs import Run, read_references
from beam_pipelines.elements.references import References
from beam_pipelines.errors import DataError, UserError
from beam_pipelines.shuffle.ranks import choose_num_shards
from beam_pipelines.storage.spool import SpoolReader

# One of so many inputs is looked at, but some of a small data set, and of a large one no more than say what its images are like.
_ONE_OF = 50
MIN_SAMPLE, MAX_SAMPLE = 16, 64

# From inputs to the size of each as it would be stored, or why it would not be.
Measure = Callable[[References, Listing, PrepareJob], Iterable[int | DeadLetter]]

# So unlikely must it be that a data set, of which as many inputs are bad as may be, shows so many bad ones in the sample.
_IMPROBABLE = 1e-9


def sample_size(listing: Listing, config: PrepareJob) -> int:
    """How many inputs are looked at: where sizes are known and images stay as they are, only to see whether they are images."""
    wanted = listing.num_inputs // _ONE_OF if not _has_sizes(listing, config) else 0
    return max(MIN_SAMPLE, min(wanted, MAX_SAMPLE))


def _has_sizes(listing: Listing, config: PrepareJob) -> bool:
    return listing.has_sizes and config.images.is_kept and config.images.encoding == "file"


def smallest_of_run(run: Run, listing: Listing, config: PrepareJob) -> Iterator[bytes]:
    """Those references of a run that may be of the sample, packed."""
    num = sample_size(listing, config)
    with contextlib.closing(SpoolReader(config.spool_directory)) as spool:
        references = read_references(run.smallest(num), spool)
    # Four times as many as there should be: of one run of many it is then a few.
    below = min(2**64 - 1, 2**66 * num // max(listing.num_inputs, 1))
    yield references.slice(0, min(num, int(np.searchsorted(references.rows["order"], np.uint64(below))))).pack()


def take_sample(parts: Iterable[bytes]) -> References:
    """The `MAX_SAMPLE` with the smallest keys."""
    sample = References.concatenate([])
    for part in parts:
        sample = References.concatenate([sample, References.unpack(part)])
        sample = sample.take(np.argsort(sample.rows["order"], kind="stable")[:MAX_SAMPLE])
    return sample


def check_sample(
    sample: References, listing: Listing, counts: Mapping[str, np.ndarray], config: PrepareJob, measure: Measure
) -> dict[str, int]:
    """Reads, checks and encodes the sample, and says how many shards each split gets.

    Args:
        sample: The references of the inputs with the smallest shuffle keys, as `take_sample` gives them.
        listing: The listing of all inputs.
        counts: Split -> the histogram of its keys, as `merge_counts` gives it.
        config: The job of the run.
        measure: The function that reads, checks and encodes inputs: see `shards.measure`.

    Raises:
        UserError: None of it makes an example, or a split is empty, or the number of shards does not fit.
        DataError: So many are bad that the run cannot end well.
    """
    num_inputs = {split: int(of_split.sum()) for split, of_split in counts.items()}
    for split in listing.splits:
        if split not in num_inputs:
            raise empty_split(split, sum(num_inputs.values()), config, listing.num_moved)
    num_inputs = {split: num_inputs[split] for split in listing.splits}
    references = sample.slice(0, sample_size(listing, config))
    found = list(measure(references, listing, config))
    bad = DeadLetterCount()
    bad.add([one for one in found if isinstance(one, DeadLetter)])
    _refuse_bad(bad, len(found), listing, config)
    sizes = [one for one in found if not isinstance(one, DeadLetter)]
    known = (listing.num_bytes, listing.num_listed) if _has_sizes(listing, config) else (sum(sizes), max(len(sizes), 1))
    num_bytes = {split: count * known[0] // known[1] for split, count in num_inputs.items()}
    return choose_num_shards(config, num_inputs, num_bytes)


def _refuse_bad(bad: DeadLetterCount, num: int, listing: Listing, config: PrepareJob) -> None:
    limit = config.max_bad_fraction
    is_all = num == listing.num_listed
    if is_all and bad.num < num:  # then all of them are told of at the end, with those of the listing
        return
    if not is_all and _tail(bad.num, num, limit) > _IMPROBABLE:
        return
    root = listing.image_root(config.source)
    if bad.num == num:
        which = "no input" if is_all else f"none of the {num} inputs that were tried first"
        raise UserError(f"{which} {listing.makes_example}; among the dead letters:{bad.describe(root)}")
    raise DataError(
        f"{bad.num} of the {num} inputs that were tried first are dead letters, so more of all than "
        f"--max_bad_fraction={limit:g} allows:{bad.describe(root)}"
    )


def _tail(bad: int, num: int, fraction: float) -> float:
    """How likely at least so many bad ones are among some, where that fraction of all is bad."""
    return sum(math.comb(num, count) * fraction**count * (1 - fraction) ** (num - count) for count in range(bad, num + 1))
