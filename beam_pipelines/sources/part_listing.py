"""Lists one part of a source: its inputs become references, a few thousand at a time."""

import dataclasses
import functools
import threading
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Iterator, Sequence

import numpy as np

from beam_pipelines.config.prepare_job import PrepareJob
from beam_pipelines.elements.dead_letters import DeadLetter
from beam_pipelines.elements.labeled_image import LabeledImage
from beam_pipelines.elements.listed_values import ValueWriter, value_writer
from beam_pipelines.elements.references import ROW, References
from beam_pipelines.elements.shuffle_keys import shuffle_orders
from beam_pipelines.elements.split_hashes import SplitByGroup
from beam_pipelines.elements.texts import Texts, no_texts
from beam_pipelines.errors import printable
from beam_pipelines.parallel import progress
from beam_pipelines.parallel.light_processes import shared
from beam_pipelines.sources.groups_and_strata import GroupReader, StrataReader
from beam_pipelines.sources.listed_part import ListedPart, list_part
from beam_pipelines.sources.listed_runs import ListedRuns
from beam_pipelines.sources.open_source import open_source
from beam_pipelines.sources.source import Source
from beam_pipelines.storage.input_errors import listing_error
from beam_pipelines.storage.versions import noting_versions
from tf_input.dataset_format import Feature

_Listed = list[LabeledImage] | DeadLetter

# As many light processes may each gather this share of a full run: together they hold no more than one worker would.
_MAX_SHARES = 4

# Parts of a store that are listed at a time: a page takes it as long as this process takes for a dozen.
_NUM_THREADS = 8


def open_to_list(config: PrepareJob) -> Source:
    """The source of a run, that spools what can't be read again by range."""
    return open_source(config, spool_directory=config.spool_directory)


class ReferenceMaker:
    """Makes references of what is listed: their shuffle keys, and mostly their splits, follow from key and group alone.

    Args:
        config: The job of the run.
        features: The features that its source gives of each input.
    """

    def __init__(self, config: PrepareJob, features: Sequence[Feature] = ()) -> None:
        self._seed = config.seed
        self._by_group = None if config.settles_splits else SplitByGroup(config.shares)
        self._groups = GroupReader(config)
        self._strata = StrataReader(features, config)

    def make(self, images: Sequence[LabeledImage], values: ValueWriter, found: ListedPart) -> References:
        """Makes the references of some inputs.

        Args:
            images: The inputs that were listed.
            values: The writer of large values, which are kept aside.
            found: The facts that were found so far; it takes up what these inputs add.
        """
        listed = list(zip(*images))
        keys, paths, labels, splits, num_bytes, _, offsets, raws, spools, others = listed
        encoded = [key.encode() for key in keys]
        rows = np.zeros(len(keys), ROW)
        rows["order"] = shuffle_orders(self._seed, encoded)
        for name, column in (("num_bytes", num_bytes), ("spool", spools), ("offset", offsets)):
            rows[name] = column[0] if len(set(column)) == 1 else column  # mostly one for all
        layouts = tuple(dict.fromkeys(raw for raw in raws if raw is not None))
        if layouts:
            places = {None: 0, **{raw: place for place, raw in enumerate(layouts, 1)}}
            rows["raw"] = [places[raw] for raw in raws]
        own_paths = () if paths == keys else [b"" if path == key else path.encode() for path, key in zip(paths, keys)]
        groups = self._groups.read(images, encoded, found)
        rows["split"], names = self._splits(splits, [group or key for group, key in zip(groups, encoded)] if groups else encoded)
        strata = self._strata.read(images, found)
        references = References(
            rows,
            names,
            layouts,
            Texts.of(encoded),
            Texts.of(own_paths) if own_paths else no_texts(len(keys)),
            _encode_names(labels),
            Texts.of(groups) if groups else no_texts(len(keys)),
            Texts.of(list(map(values.encode, others))) if any(others) else no_texts(len(keys)),
            _encode_names(strata) if strata else no_texts(len(keys)),
            no_texts(len(keys)),
        )
        found.reference_bytes += references.num_bytes
        return references

    def _splits(self, given: Sequence[str | None], groups: Sequence[bytes]) -> tuple[np.ndarray, tuple[str, ...]]:
        """A place for each of them, and the names: empty where nobody has said it, as long as the listing is not refused for that."""
        if given[0] is None and self._by_group:
            return self._by_group(groups), self._by_group.names
        names = tuple(dict.fromkeys(name or "" for name in given))
        places = {name: place for place, name in enumerate(names)}
        return np.array([places[name or ""] for name in given]), names


def _encode_names(names: Sequence[str]) -> Texts:
    return Texts.of(list(map({name: name.encode() for name in set(names)}.__getitem__, names)))


def list_in_batches(source: Source, part: str, config: PrepareJob) -> Iterator[References | DeadLetter | ListedPart]:
    """The inputs of a part while they are found, and at last what was found of it."""
    found = ListedPart()
    maker = ReferenceMaker(config, source.features)
    with value_writer(config.spool_directory) as values:
        path = f"{source.root}/{'' if config.source.can.has_class_folders else part}"  # whose parts are no files
        for listed in _with_trouble_told(list_part(source, part, found), path):
            yield listed if isinstance(listed, DeadLetter) else maker.make(listed, values, found)
    yield found


def _with_trouble_told(listed: Iterator[_Listed], path: str) -> Iterator[_Listed]:
    """What no source took for a fact about an input fails the bundle, by name."""
    try:
        yield from listed
    except OSError as error:
        raise listing_error(error, path, f"{printable(path)} could not be listed: {error.strerror or error}") from error


@dataclasses.dataclass(frozen=True)
class PartContext:
    """What the parts of one bundle share.

    Attributes:
        config: The job of the run, which says the source.
    """

    config: PrepareJob

    @functools.cached_property
    def source(self) -> Source:
        """Looking at the same files again for each part would take the square of their number."""
        return open_to_list(self.config)


def list_shared_part(context: bytes, part: str) -> ListedRuns:
    """Lists one part in a light process: `list_whole_part` of a context as `share` gives it."""
    return list_whole_part(shared(context), part)


def list_side_by_side(config: PrepareJob, parts: Sequence[str]) -> Iterator[ListedRuns]:
    """Lists parts in threads, a few at a time: `list_whole_part` of each, as they are done. After an error of one none goes on."""
    is_over, pool = threading.Event(), ThreadPoolExecutor(_NUM_THREADS)
    try:  # each with a source of its own, as that lists one part after the other
        for done in as_completed([pool.submit(list_whole_part, PartContext(config), part, is_over) for part in parts]):
            yield done.result()
    finally:
        is_over.set()
        pool.shutdown(cancel_futures=True)


def list_whole_part(context: PartContext, part: str, is_over: threading.Event | None = None) -> ListedRuns:
    """Lists one part. Its runs are written; what waits, since it makes none, is little.

    Args:
        context: The context of the bundle that the part is in.
        part: The name of the part, as the source has it.
        is_over: An event that is set once nobody wants the part any more; None: somebody always does.
    """
    config, stopwatch = context.config, progress.Stopwatch("list")
    num_shares = _NUM_THREADS if is_over else min(max(config.num_processes, 1), _MAX_SHARES)
    listed = ListedRuns(config.spool_directory, 1 / num_shares)
    with noting_versions(listed.found.versions):
        for one in list_in_batches(context.source, part, config):
            if is_over and is_over.is_set():
                break
            if isinstance(one, References):
                progress.count(config.progress_directory, stopwatch.lap(), listed=len(one))
            elif isinstance(one, DeadLetter):
                progress.count_in_beam({"dead_letters": 1, f"dead_letters_{one.reason}": 1})
            listed.add(one)
    listed.write()
    return listed
