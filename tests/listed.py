"""Lists all parts of an input."""

import os
import pathlib
from typing import Any, Mapping

from beam_pipelines.config.prepare_options import PrepareOptions
from beam_pipelines.config.source_config import SourceConfig
from beam_pipelines.elements.dead_letters import DeadLetter
from beam_pipelines.elements.input_record import InputRecord
from beam_pipelines.sources.files.sizes import add_sizes
from beam_pipelines.sources.open_source import open_source
from beam_pipelines.sources.registry import find_kind
from beam_pipelines.sources.source import Source, other_images


def open_kind(path: str | os.PathLike[str], kind: str, source: Mapping[str, Any] = {}, options: Mapping[str, Any] = {}, **opened: Any) -> Source:
    """Opens a source. `source` sets fields of `SourceConfig`, and `options` sets fields of `PrepareOptions`."""
    config = PrepareOptions(os.fspath(path), "out", "made", source=SourceConfig(kind=find_kind(kind), **source), **options)
    return open_source(config, **opened)


class Listing:
    """The result of listing an input. Each part is listed with a new source object, as on Beam workers.

    Attributes:
        images: The inputs by their keys.
        letters: The dead letters by their paths.
        label_names: The lists of class names that the source defines.
        noted: The number of occurrences of each warning.
        unused: The names of fields that are not stored.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        kind: str,
        *,
        source: Mapping[str, Any] = {},
        with_sizes: bool = False,
        spool: pathlib.Path | None = None,
        **options: Any,
    ) -> None:
        first = open_kind(path, kind, source, options)
        self.detected, self.root, self.parts = first.detected, first.root, first.parts()
        self.images: dict[str, InputRecord] = {}
        self.letters: dict[str, DeadLetter] = {}
        self.label_names: set[tuple[str, ...]] = set()
        self.noted: dict[str, int] = {}
        self.unused: set[str] = set()
        self.num_ignored = 0
        for part in self.parts:
            lister = open_kind(path, kind, source, options, spool_directory=os.fspath(spool) if spool else None)
            for result in add_sizes(lister.list(part), lister.root, other_images(lister)) if with_sizes else lister.list(part):
                into, name = (self.letters, result.path) if isinstance(result, DeadLetter) else (self.images, result.key)
                assert name not in into
                into[name] = result
            self.label_names.update(map(tuple, lister.label_names().values()))
            self.num_ignored += lister.num_ignored
            self.unused |= lister.unused_fields.names if lister.unused_fields else set()
            for warning, num in lister.noted.items():
                self.noted[warning] = self.noted.get(warning, 0) + num

    @property
    def reasons(self) -> dict[str, str]:
        return {path: letter.reason for path, letter in self.letters.items()}

    @property
    def splits(self) -> dict[str, str | None]:
        return {key: image.split for key, image in self.images.items()}

    def objects(self, key: str) -> Any:
        return self.images[key].values["objects"]

    def labels(self, key: str) -> tuple[str, ...]:
        return self.objects(key).labels
