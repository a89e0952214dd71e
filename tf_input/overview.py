"""Creates the summary of a dataset for `print` and notebooks."""

import html
import os
from typing import Iterator, NamedTuple, Sequence

from tf_input.dataset_format import Feature, Manifest

_NUM_CLASSES = 5  # number of class names that are shown
_NAME_LENGTH = 24


class Table(NamedTuple):
    """A table with column titles. The first `num_texts` columns are left-aligned, all others right-aligned."""

    titles: Sequence[str]
    rows: Sequence[Sequence[str]]
    num_texts: int


def title(manifest: Manifest, directory: str | os.PathLike[str]) -> str:
    """Returns one line with the name, the directory, and the number of examples in each split."""
    counts = ", ".join(f"{printable(split)} {manifest.num_examples(split):,}" for split in manifest.splits)
    return f"{printable(manifest.name)} at {printable(os.fspath(directory))}: {counts or 'no splits'}"


def text(manifest: Manifest, directory: str | os.PathLike[str]) -> str:
    """Returns the summary for a terminal."""
    blocks = [heading(manifest, directory), *("\n".join(lines(table)) for table in overview_tables(manifest))]
    return "\n\n".join(blocks)


def html_text(manifest: Manifest, directory: str | os.PathLike[str]) -> str:
    """Returns the summary as HTML for a notebook. Markup in names is escaped."""
    shown = "".join(_html_table(table) for table in overview_tables(manifest))
    return f"<div><p>{html.escape(heading(manifest, directory))}</p>{shown}</div>"


def heading(manifest: Manifest, directory: str | os.PathLike[str]) -> str:
    """Returns a heading with the name and the directory of the dataset."""
    return f"{printable(manifest.name)} at {printable(os.fspath(directory))}"


def overview_tables(manifest: Manifest) -> Iterator[Table]:
    """Yields a table of the splits, and a table of the features."""
    splits = [
        (printable(split), f"{manifest.num_examples(split):,}", f"{len(shards):,}", size(sum(shard.num_bytes for shard in shards)))
        for split, shards in manifest.splits.items()
    ]
    yield Table(("split", "examples", "shards", "bytes"), splits, 1)
    if manifest.is_verbatim:
        yield Table(("records",), [("of any kind, stored unchanged",)], 1)
        return
    features = [
        (
            printable(feature.name),
            f"{feature.kind} {feature.dtype}".rstrip(),
            _shape(feature),
            _role(feature, manifest),
            _classes(feature.label_names),
        )
        for feature in manifest.schema
    ]
    yield Table(("feature", "kind", "shape", "", "classes"), features, 5)


def _role(feature: Feature, manifest: Manifest) -> str:
    is_target = feature.name in manifest.targets or feature.name.partition("/")[0] in manifest.targets
    return "target" if is_target else ""


def _shape(feature: Feature) -> str:
    return " × ".join("any" if size is None else str(size) for size in feature.shape)


def _classes(names: Sequence[str]) -> str:
    if not names:
        return ""
    shown = [printable(name if len(name) <= _NAME_LENGTH else name[: _NAME_LENGTH - 1] + "…") for name in names[:_NUM_CLASSES]]
    return f"{len(names):,}: {', '.join(shown)}{', …' if len(names) > _NUM_CLASSES else ''}"


def size(num_bytes: int) -> str:
    """Formats a number of bytes with a unit, such as `12.3 MB`."""
    left, units = float(num_bytes), ["B", "kB", "MB", "GB", "TB", "PB"]
    while left >= 999.5 and len(units) > 1:
        left, units = left / 1000, units[1:]
    return f"{left:.3g} {units[0]}"


def printable(name: str) -> str:
    """Escapes line breaks and control characters, so that untrusted names can't control the terminal."""
    return "".join(item if item.isprintable() else item.encode("unicode_escape").decode("ascii") for item in name)


def lines(table: Table) -> Iterator[str]:
    """Yields the lines of a table for a terminal."""
    widths = [max(map(len, column)) for column in zip(table.titles, *table.rows)]
    for row in (table.titles, *table.rows):
        cells = [
            cell.ljust(width) if index < table.num_texts else cell.rjust(width) for index, (cell, width) in enumerate(zip(row, widths))
        ]
        yield "  ".join(cells).rstrip()


def _html_table(table: Table) -> str:
    def cells(row: Sequence[str], tag: str) -> str:
        sides = ["left" if index < table.num_texts else "right" for index in range(len(row))]
        return "".join(f'<{tag} style="text-align:{side}">{html.escape(cell)}</{tag}>' for cell, side in zip(row, sides))

    body = "".join(f"<tr>{cells(row, 'td')}</tr>" for row in table.rows)
    return f"<table><thead><tr>{cells(table.titles, 'th')}</tr></thead><tbody>{body}</tbody></table>"
