"""Lists the sources again, and plans and writes the corrupt shards of a dataset.

The plan of a run is deleted when its dataset is published. The plan of a corrupt shard is recreated from the keys of
its examples. Inputs that were added to the sources later are left out. If the keys are unknown, because a shard of
verbatim records has no catalog, all shards are planned again.
"""

import dataclasses
import functools
import json
from typing import Any, Iterable, Iterator, Mapping, Sequence

import apache_beam as beam
import numpy as np
from apache_beam.pvalue import AsIter, AsSingleton

from beam_pipelines.config.prepare_options import PrepareOptions
from beam_pipelines.config.run_paths import RunPaths
from beam_pipelines.elements.binary_column import BinaryColumn
from beam_pipelines.elements.listed import Listed
from beam_pipelines.elements.listing import Listing
from beam_pipelines.elements.plan import Plan, PlannedShard, recordmill_version
from beam_pipelines.elements.plan_files import write_plan, write_planned_shard
from beam_pipelines.elements.reference_runs import SortedRun, SpoolRange, read_references, read_run, write_run
from beam_pipelines.elements.references import References
from beam_pipelines.elements.shuffle_keys import shuffle_orders
from beam_pipelines.errors import RunError, UserError, printable
from beam_pipelines.repair.corrupt_shard import CorruptShard
from beam_pipelines.shards.hash_images import HashImages
from beam_pipelines.shards.measure import measure_inputs
from beam_pipelines.shards.write_context import WriteSpec
from beam_pipelines.shards.write_shards import WriteShards
from beam_pipelines.shuffle.global_shuffle import GlobalShuffle
from beam_pipelines.shuffle.ranks import ShuffleSpec
from beam_pipelines.sources.listing.list_images import ListImages
from beam_pipelines.splits.assign_splits import AssignSplits
from beam_pipelines.splits.split_facts import SplitSpec
from beam_pipelines.storage.files import make_folder, open_file, write_file
from beam_pipelines.storage.spool import SpoolReader
from tf_input.dataset_format import NEAR_DUPLICATES, Feature, Manifest

_LAST = np.uint64(2**64 - 1)  # Greater than all shuffle keys.


def write_again(
    root: beam.Pipeline, options: PrepareOptions, run: RunPaths, directory: str, manifest: Manifest, shards: Sequence[CorruptShard]
) -> None:
    """Extends a Beam pipeline with the steps that rewrite corrupt shards.

    Args:
        root: The pipeline.
        options: The options of the run that created the dataset, adapted for the repair.
        run: The run of the repair. Its working directory exists.
        directory: The directory of the dataset.
        manifest: The manifest of the dataset.
        shards: The shards to write. The keys of their examples must not be lost.
    """
    make_folder(run.spool_directory)
    spec, listed = WriteSpec.of(options, run), root | "ListImages" >> ListImages(options, run)
    listed = listed._replace(listing=listed.listing | "UseSchema" >> beam.Map(use_schema, manifest.schema, manifest.columns))
    if any(shard.needs_plan for shard in shards):
        _plan_all(listed, options, run, shards) | "WriteShards" >> WriteShards(spec, AsSingleton(listed.listing))
        return
    orders = [shuffle_orders(options.seed, shard.keys(directory)) for shard in shards]
    write_file(_wanted_path(run.spool_directory), np.append(np.sort(np.concatenate(orders)), _LAST).tobytes())
    listing = AsSingleton(listed.listing)
    runs, dead_letters = listed.runs | "KeepWanted" >> beam.FlatMap(keep_wanted, run.spool_directory), listed.dead_letters
    if options.duplicates:
        hashed = runs | "HashImages" >> HashImages(spec, listing)
        runs = hashed.runs | "TakeRuns" >> beam.Map(lambda hashed: hashed.run)
        dead_letters = (dead_letters, hashed.dead_letters) | "JoinDeadLetters" >> beam.Flatten()
    groups = NearDuplicateGroups.read(directory) if options.duplicates == "group" else None
    plan = beam.FlatMap(plan_shards, AsIter(runs), shards, options.seed, directory, run, groups)
    planned = root | "AfterListing" >> beam.Impulse() | "PlanShards" >> plan
    planned | "WriteShards" >> WriteShards(spec, listing)
    root | "AfterAll" >> beam.Impulse() | "WritePlan" >> beam.Map(finish_plan, listing, AsIter(dead_letters), run)


def _plan_all(listed: Listed, options: PrepareOptions, run: RunPaths, shards: Sequence[CorruptShard]) -> beam.PCollection:
    """Plans all shards of a verbatim dataset, as `prepare` does. Returns the plans of the given shards."""
    if options.resolves_splits:
        listed = listed._replace(**(listed.runs | "AssignSplits" >> AssignSplits(SplitSpec.of(options, run), listed))._asdict())
    measure = functools.partial(measure_inputs, spec=WriteSpec.of(options, run))
    planned = listed.runs | "GlobalShuffle" >> GlobalShuffle(ShuffleSpec.of(options, run), listed, measure)
    addresses = {str(shard.address) for shard in shards}
    return planned | "KeepCorrupt" >> beam.Filter(lambda planned: planned[0] in addresses)


def _wanted_path(spool_directory: str) -> str:
    """Returns the path of a file with the sorted shuffle keys of examples in corrupt shards, followed by `_LAST`."""
    return f"{spool_directory}/wanted"


def use_schema(listing: Listing, schema: Sequence[Feature], columns: tuple[Feature, ...]) -> Listing:
    """Returns a copy of a listing with the schema and the catalog columns of the dataset. New classes from the sources are
    added to the schema.

    Raises:
        UserError: The features of the sources have changed.
    """
    now, then = ({(feature.name, feature.kind) for feature in features} for features in (listing.schema, schema))
    if now != then:
        both = now - then, then - now
        added, missing = (", ".join(f"{name} ({kind})" for name, kind in sorted(some)) or "none" for some in both)
        raise UserError(
            f"the features of {printable(listing.root)} have changed: it now has {added}, but the dataset has {missing}. "
            "Restore the inputs, or prepare a new dataset."
        )
    names = {feature.name: feature.label_names for feature in listing.schema if feature.is_categorical}
    with_names = (dataclasses.replace(item, label_names=names.get(item.name, item.label_names)) for item in schema)
    return dataclasses.replace(listing, schema=tuple(with_names), columns=columns)


def keep_wanted(run: SortedRun, spool_directory: str) -> Iterator[SortedRun]:
    """Copies the references to inputs of corrupt shards into a new `SortedRun`. Yields nothing if there are none."""
    wanted = np.memmap(_wanted_path(spool_directory), np.uint64, "r")
    references = read_run(run, spool_directory)
    orders = references.rows["order"]
    kept = np.flatnonzero(wanted[np.searchsorted(wanted, orders)] == orders)
    if len(kept):
        yield write_run([references.take(kept)], spool_directory)


def plan_shards(
    unused: bytes,
    runs: Iterable[SortedRun],
    shards: Sequence[CorruptShard],
    seed: int,
    directory: str,
    repair: RunPaths,
    groups: "NearDuplicateGroups | None",
) -> Iterator[tuple[str, PlannedShard]]:
    """Writes the plan of each shard. It refers to the inputs of the shard that still exist, in record order."""
    runs = list(runs)
    for shard in shards:
        records = {key: record for record, key in enumerate(shard.keys(directory))}
        references = _read(runs, shuffle_orders(seed, list(records)), repair.spool_directory)
        numbers = np.array([records.get(key, -1) for key in references.keys], np.int64)
        order = np.argsort(numbers, kind="stable")
        references = references.take(order[np.searchsorted(numbers[order], 0) :])
        references = groups.regroup(references) if groups else references
        planned = PlannedShard(shard.address, len(references))
        yield str(shard.address), write_planned_shard(repair, planned, b"".join(references.chunks()))


def _read(runs: Sequence[SortedRun], orders: np.ndarray, spool_directory: str) -> References:
    """Returns the references whose shuffle keys are between the smallest and the largest given key, inclusive."""
    if not len(orders):
        return References.concatenate([])
    first, last = orders.min(), orders.max()
    bounds = np.array([first, last + np.uint64(1)] if last < _LAST else [first], np.uint64)
    with SpoolReader(spool_directory) as spool:
        chunks = [spool_range for run in runs for block, spool_range in run.cut(bounds) if block == 0]
        parts = [read_references(spool_range, spool) for spool_range in chunks]
    return References.concatenate([_between(part, first, last) for part in parts])


def _between(references: References, first: np.uint64, last: np.uint64) -> References:
    orders = references.rows["order"]
    return references.slice(int(np.searchsorted(orders, first)), int(np.searchsorted(orders, last, side="right")))


def finish_plan(unused: bytes, listing: Listing, dead_letters: Iterable[SpoolRange], run: RunPaths) -> None:
    """Writes the summary of the plan, which includes the dead letters and the versions of the listed files."""
    write_plan(run, Plan({}, run.is_output_new, listing, {}, tuple(dead_letters), recordmill_version()))


@dataclasses.dataclass(frozen=True)
class NearDuplicateGroups:
    """The groups into which `prepare --duplicates group` merged near-duplicates.

    Attributes:
        of_keys: A mapping from the key of an image that has near-duplicates to its group.
        of_groups: A mapping from each merged group to its new name.
    """

    of_keys: Mapping[bytes, bytes]
    of_groups: Mapping[bytes, bytes]

    @classmethod
    def read(cls, directory: str) -> "NearDuplicateGroups":
        """Reads the groups of a dataset."""
        of_keys, of_groups = {}, {}
        try:
            with open_file(f"{directory}/{NEAR_DUPLICATES}") as file:
                for line in file:
                    fields: dict[str, Any] = json.loads(line)
                    of_keys[fields["key"].encode()] = fields["group"].encode()
                    if fields["original_group"]:
                        of_groups[fields["original_group"].encode()] = fields["group"].encode()
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            path = f"{printable(directory)}/{NEAR_DUPLICATES}"
            raise RunError(f"{path} is missing or corrupt: {error}. Prepare the dataset again.") from None
        return cls(of_keys, of_groups)

    def regroup(self, references: References) -> References:
        """Returns a copy of the references, with groups merged as in the original run."""
        pairs = zip(references.keys, references.groups)
        groups = [self.of_keys.get(key) or self.of_groups.get(group, group) for key, group in pairs]
        return dataclasses.replace(references, groups=BinaryColumn.of(groups))
