"""Finds the source formats: the subclasses of `Source` in the modules of `sources.formats`. A format in a folder, such as
`coco`, is in the module of the same name, `coco.coco`."""

import functools
import importlib
import pkgutil
from typing import Mapping

from beam_pipelines.config.source_kinds import SourceKind
from beam_pipelines.sources import formats
from beam_pipelines.sources.source import Source


@functools.cache
def source_classes() -> Mapping[str, type[Source]]:
    """Returns a mapping from the value of `--source` to the class of the format, in ascending order."""
    classes = []
    for module in pkgutil.iter_modules(formats.__path__, f"{formats.__name__}."):
        name = f"{module.name}.{module.name.rpartition('.')[2]}" if module.ispkg else module.name
        for item in vars(importlib.import_module(name)).values():
            if isinstance(item, type) and issubclass(item, Source) and "kind" in vars(item) and item.__module__ == name:
                classes.append(item)
    return {source.kind.name: source for source in sorted(classes, key=lambda source: source.kind.name)}


def find_kind(name: str) -> SourceKind:
    """Returns the `SourceKind` of the format that `--source` selects by `name`."""
    return source_classes()[name].kind


def synonyms() -> dict[str, str]:
    """Returns a mapping from the names of file formats and of other tools to the value of `--source`."""
    return {synonym: name for name, source in source_classes().items() for synonym in source.kind.synonyms}


def formats_with(field: str) -> list[str]:
    """Returns the values of `--source` to which the option in a field of `SourceConfig` applies."""
    return [name for name, source in source_classes().items() if field in source.kind.options]
