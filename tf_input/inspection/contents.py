"""Returns the metadata of a dataset as tables for a terminal, or as plain values for JSON."""

import json
import os
from typing import Any, Iterator, Mapping

from tf_input import overview
from tf_input.dataset_format import FORMAT_VERSION, RUN, STATISTICS, Manifest
from tf_input.overview import Table, printable
from tf_input.storage.files import FILE_MISSING_ERRORS, Files
from tf_input.storage.paths import join

_NUM_CLASSES, _NUM_SHARDS = 20, 10  # numbers of rows in tables
_MAX_VALUE = 100  # largest number of characters of a value
_PACKAGES = ("recordmill", "apache-beam", "pyarrow", "pillow", "simplejpeg", "tensorflow")


class Contents:
    """The metadata of a dataset.

    Args:
        directory: The directory of the dataset, a path or a URL.
        files: The reader of the files.
        manifest: The manifest of the dataset.

    Raises:
        OSError, ValueError: The statistics are missing or corrupt.
    """

    def __init__(self, directory: str | os.PathLike[str], files: Files, manifest: Manifest) -> None:
        self._directory, self._files, self._manifest = directory, files, manifest
        self._statistics = self._read(STATISTICS)
        try:
            self._run = self._read(RUN)
        except FILE_MISSING_ERRORS:  # the file is optional, because it does not affect the examples
            self._run = {}

    def describe(self) -> str:
        """Returns the metadata as tables for a terminal."""
        return self._checked(lambda: "\n\n".join([overview.heading(self._manifest, self._directory), *self._blocks()]))

    def to_json(self) -> dict[str, Any]:
        """Returns the metadata as plain values: the manifest, the statistics, and the options of the run that wrote the
        dataset."""
        return self._checked(self._to_json)

    def _blocks(self) -> Iterator[str]:
        manifest = self._manifest
        tables = [*overview.overview_tables(manifest), *self._class_tables(), self._images(), self._tensors(), self._shards(), self._made()]
        yield from ("\n".join(overview.lines(table)) for table in tables if table.rows)
        inputs = f"{manifest.num_inputs:,} inputs, {manifest.num_dead_letters:,} of them dead letters"
        yield f"{inputs}; seed {manifest.seed}, format version {FORMAT_VERSION}"

    def _class_tables(self) -> Iterator[Table]:
        splits = list(self._manifest.splits)
        for name, counts in self._class_counts().items():
            names = self._manifest.features[name].label_names
            rows = [(printable(entry), *(f"{counts[split].get(entry, 0):,}" for split in splits)) for entry in names[:_NUM_CLASSES]]
            if more := names[_NUM_CLASSES:]:
                rows.append((f"and {len(more):,} more", *(f"{sum(counts[split].get(item, 0) for item in more):,}" for split in splits)))
            yield Table((f"{name}", *map(printable, splits)), rows, 1)

    def _class_counts(self) -> dict[str, dict[str, Mapping[str, int]]]:
        """Returns the number of examples of each class in a nested dictionary: feature -> split -> class -> number."""
        all_counts = {}
        for feature in self._manifest.schema:
            if feature.is_categorical:
                splits = {split: self._statistics["splits"][split] for split in self._manifest.splits}
                all_counts[feature.name] = {
                    split: item.get("other_label_counts", {}).get(feature.name) or item["label_counts"] for split, item in splits.items()
                }
        return all_counts

    def _images(self) -> Table:
        facts = {"image": self._statistics.get("images", {}), **self._statistics.get("other_images", {})}
        rows = []
        for name, image_facts in facts.items():
            if name in self._manifest.features and image_facts.get("bytes"):
                formats = ", ".join(f"{image_format} {count:,}" for image_format, count in (image_facts.get("formats") or {}).items())
                rows.append(
                    (
                        printable(name),
                        printable(formats) or "not checked",
                        *(_range(image_facts.get(side)) for side in ("height", "width", "bytes")),
                    )
                )
        return Table(("images", "formats of the sources", "height", "width", "stored bytes"), rows, 2)

    def _tensors(self) -> Table:
        rows = []
        for split in self._manifest.splits:
            for name, tensor_facts in self._statistics["splits"][split].get("tensors", {}).items():
                feature, numbers = self._manifest.features[name], [tensor_facts[fact_name] for fact_name in ("min", "max", "mean", "std")]
                shape = f"{feature.dtype}[{','.join('?' if side is None else str(side) for side in feature.shape)}]"
                shown = ("" if number is None else f"{number:,}" if isinstance(number, int) else f"{number:.6g}" for number in numbers)
                rows.append(
                    (
                        printable(name),
                        shape,
                        printable(split),
                        f"{tensor_facts['num_examples']:,}",
                        *shown,
                        f"{tensor_facts['num_not_finite']:,}",
                    )
                )
        return Table(("tensors", "", "split", "examples", "min", "max", "mean", "std", "not finite"), rows, 3)

    def _shards(self) -> Table:
        shards = [(split, shard) for split, some in self._manifest.splits.items() for shard in some]
        rows = [
            (printable(shard.name), f"{shard.num_examples:,}", overview.size(shard.num_bytes), f"{shard.crc32c:08x}")
            for _, shard in shards[:_NUM_SHARDS]
        ]
        if more := [shard for _, shard in shards[_NUM_SHARDS:]]:
            rows.append(
                (
                    f"and {len(more):,} more",
                    f"{sum(item.num_examples for item in more):,}",
                    overview.size(sum(entry.num_bytes for entry in more)),
                    "",
                )
            )
        return Table(("shard", "examples", "bytes", "CRC-32C"), rows, 1)

    def _made(self) -> Table:
        """Returns a table with the version and the options of the run that wrote the dataset."""
        run = self._run
        facts = {name: run.get(name) for name in ("started", "host", "python")}
        facts |= {name: run.get("versions", {}).get(name) for name in _PACKAGES}
        facts |= {f"--{name}": value for name, value in run.get("options", {}).items()}
        rows = [(printable(name), _value(value)) for name, value in facts.items() if value not in (None, "", False, [], {})]
        return Table(("made by", ""), rows, 2)

    def _to_json(self) -> dict[str, Any]:
        manifest = json.loads(self._manifest.to_json())
        manifest.pop("checksum")
        run = {name: self._run.get(name) for name in ("run_id", "started", "host", "python", "versions", "options")}
        return {
            "directory": os.fspath(self._directory),
            **manifest,
            "statistics": self._statistics,
            "run": run,
        }

    def _read(self, name: str) -> dict[str, Any]:
        path = join(self._directory, name)
        data = self._files.read(path)
        try:
            self._manifest.check_file(name, data)
        except ValueError as error:
            raise ValueError(join(self._directory, str(error))) from None
        try:
            value = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path} is not JSON: {error}") from None
        if not isinstance(value, dict):
            raise ValueError(f"{path} does not contain a JSON object")
        return value

    def _checked(self, make: Any) -> Any:
        try:
            return make()
        except (AttributeError, KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
            problem = f"{STATISTICS} and {RUN} have unexpected contents ({type(error).__name__}: {error})"
            raise ValueError(
                f"{join(self._directory, problem)}. To find corrupt files, run `recordmill verify`."
            ) from None


def _range(side_range: Mapping[str, Any] | None) -> str:
    if not side_range:
        return "unknown"
    return (
        f"{side_range['min']:,}"
        if side_range["min"] == side_range["max"]
        else f"{side_range['min']:,} to {side_range['max']:,}, {side_range['mean']:,.0f} on average"
    )


def _value(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return printable(text if len(text) <= _MAX_VALUE else f"{text[: _MAX_VALUE - 1]}…")
