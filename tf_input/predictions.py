"""Implements `PreparedDataset.predict`, which returns a model's predictions together with the keys of the examples."""

from __future__ import annotations

import collections.abc
import contextlib
import csv
import dataclasses
import logging
import operator
import os
import pathlib
import sys
from typing import Any, Collection, Iterable, Iterator, Sequence

import numpy as np

from tf_input.dataset_format import KEY
from tf_input.decoding import class_weights
from tf_input.decoding.example_decoder import ExampleDecoder
from tf_input.lazy_tensorflow import tf
from tf_input.mapped_batches import describe, is_other_scale
from tf_input.model_outputs import predicts_logits, predicts_scores
from tf_input.read_config import ReadConfig
from tf_input.selection.catalog import Catalog
from tf_input.storage.packages import import_package

# Options for training: they change the examples, their order, their number or their weights.
OF_TRAINING = ("augment", "drop_remainder", "class_weight", "one_hot", "with_keys", "balance")
OUTPUT, PREDICTED = "output", "predicted"
_NUM_CHECKED = 32  # number of examples of the first batch that are checked
_logger = logging.getLogger("tf_input")
_GROUP_BYTES = 32 << 20  # size of a Parquet row group

Columns = dict[str, np.ndarray]  # name -> array [n, ...]


def prediction_config(config: ReadConfig) -> ReadConfig:
    """Returns the options for reading each example of a split once with its key, in shard order or sorted by key.

    Raises:
        ValueError: An option conflicts with reading each example once in one of these orders.
    """
    if config.shuffle not in (None, False, "key"):
        raise ValueError(f"shuffle={config.shuffle!r} is invalid for predictions. Use shuffle=False or shuffle='key'.")
    for name in OF_TRAINING:
        value, default = getattr(config, name), getattr(ReadConfig, name)
        if value != default and value is not False:
            raise ValueError(
                f"{name}={value!r} is invalid: predictions are made for each example once, without changes. Use "
                f"{name}={default!r}."
            )
    return dataclasses.replace(config, shuffle=config.shuffle or False, with_keys=True, hosts=config.hosts or (1, 0))


def predict(
    model: Any, batches: Iterable[Any], decoder: ExampleDecoder, catalog: Catalog, dataset: Any = None
) -> Iterator[Columns]:
    """Yields the columns of `PreparedDataset.predict`, batch by batch.

    Args:
        model: The model, as in `PreparedDataset.predict`.
        batches: The batches of a split in shard order or sorted by key, with keys.
        decoder: The decoder of the batches. Its option `shuffle` defines their order.
        catalog: The catalog of the split.
        dataset: The `PreparedDataset`, for a warning if the model may have been trained on the results of `map`.
    """
    call = getattr(model, "predict_on_batch", model)
    columns = catalog.row_columns()
    rows = catalog.rows(columns) if columns else iter(())
    if decoder.config.shuffle == "key":
        rows = iter(sorted(rows, key=operator.itemgetter(0)))
    class_targets = class_weights.class_targets(decoder.features, decoder.targets)
    class_names = {f"{OUTPUT}/{name}": decoder.features[name].label_names for name in class_targets}
    if len(decoder.targets) == len(class_targets) == 1:
        class_names[OUTPUT] = decoder.features[class_targets[0]].label_names
    shapes: dict[str, tuple[int, ...]] = {}
    for number, (batch, keys) in enumerate(batches):
        x = tf.nest.map_structure(_to_numpy, batch[0] if isinstance(batch, tuple) else batch)
        if not number:
            _check_inputs(model, x, dataset)
        outputs = _name_outputs(model, call(x), len(keys))
        for name, values in outputs.items():
            if values.shape[1:] != shapes.setdefault(name, values.shape[1:]):
                differing = " and then ".join(str(list(shape)) for shape in (shapes[name], values.shape[1:]))
                raise ValueError(
                    f"{name} has shapes {differing} in one split. Pass padding=LENGTH to pad lists to one length."
                )
        is_example = keys.numpy() != b""  # False for padding examples
        texts = [key.decode("utf-8", "backslashreplace") for key in keys.numpy()[is_example]]
        columns_of_batch = {KEY: np.array(texts, object)}
        known = [_find_row(key, rows, catalog) for key in texts] if columns else []
        for column, name in enumerate(columns, start=1):
            columns_of_batch[f"label_{name}" if name in (OUTPUT, PREDICTED) else name] = np.array([row[column] for row in known], object)
        numbers = _numeric_targets(decoder, batch, columns_of_batch)
        columns_of_batch |= {name: values[is_example] for name, values in numbers.items()}
        for name, values in outputs.items():
            if (best := _best(model, name, values[is_example], class_names.get(name, ()), not number)) is not None:
                columns_of_batch[name.replace(OUTPUT, PREDICTED, 1)] = best
        yield columns_of_batch | {name: values[is_example] for name, values in outputs.items()}


def collect(parts: Iterable[Columns]) -> Columns:
    """Concatenates the columns of all parts."""
    all_parts = [*parts]
    return {name: np.concatenate([part[name] for part in all_parts]) for name in all_parts[0]}


def check_output(model: Any, output: str | os.PathLike[str] | None) -> None:
    """Checks that the model can be called and that predictions can be written to `output`.

    Raises:
        FileNotFoundError: The folder of `output` does not exist.
        ImportError: The package that writes Parquet is missing.
        TypeError: The model can't be called.
        ValueError: The output is not a local path that ends in .parquet or .csv.
    """
    if not callable(getattr(model, "predict_on_batch", model)):
        raise TypeError(f"model={model!r} is invalid. Pass a Keras model, or a function of a batch.")
    if output is None:
        return
    path = pathlib.Path(output)
    if path.suffix not in _WRITERS or "://" in os.fspath(output):
        raise ValueError(
            f"output={os.fspath(output)!r} is invalid. Pass a local file, such as predictions.parquet or "
            "predictions.csv."
        )
    if not path.parent.is_dir():
        raise FileNotFoundError(
            f"output={os.fspath(output)!r}: the folder {path.parent} does not exist. Create it first."
        )
    if path.suffix == ".parquet":
        import_package("pyarrow.parquet", "writing Parquet (and not .csv)", "pyarrow")


def write(parts: Iterable[Columns], output: str | os.PathLike[str]) -> None:
    """Writes the predictions to a temporary file and renames the file when it is complete.

    Raises:
        OSError: The file can't be written.
        ValueError: An output has too many dimensions for a CSV file.
    """
    path = pathlib.Path(output)
    unfinished = path.with_name(f"{path.name}.unfinished")
    try:
        _WRITERS[path.suffix](parts, unfinished)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def _write_csv(parts: Iterable[Columns], path: pathlib.Path) -> None:
    """Writes one column per number. Strings that a spreadsheet program would treat as formulas are not escaped."""
    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        for part_number, part in enumerate(parts):
            cells: dict[str, Any] = {}
            for name, values in part.items():
                if values.ndim > 2:
                    raise ValueError(
                        f"{name} has {' x '.join(map(str, values.shape[1:]))} numbers per example, which CSV can't "
                        "store. "
                        "Pass an output that ends in .parquet."
                    )
                texts = values if values.dtype == object else values.astype(str)
                cells |= {name: texts} if values.ndim == 1 else {f"{name}/{index}": texts[:, index] for index in range(values.shape[1])}
            if not part_number:
                writer.writerow(cells)
            writer.writerows(zip(*(column.tolist() for column in cells.values())))


def _write_parquet(parts: Iterable[Columns], path: pathlib.Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    def column(values: np.ndarray) -> pa.Array:
        array = pa.array(values.reshape(-1), pa.string() if values.dtype == object else None)
        for size in reversed(values.shape[1:]):
            array = pa.FixedSizeListArray.from_arrays(array, size)
        return array

    with contextlib.ExitStack() as stack:
        writer, tables = None, []
        for part in parts:
            tables.append(pa.table({name: column(values) for name, values in part.items()}))
            writer = writer or stack.enter_context(pq.ParquetWriter(path, tables[0].schema))
            if sum(table.nbytes for table in tables) >= _GROUP_BYTES:
                writer.write_table(pa.concat_tables(tables))
                tables.clear()
        if tables:
            writer.write_table(pa.concat_tables(tables))


_WRITERS = {".csv": _write_csv, ".parquet": _write_parquet}


def _to_numpy(value: Any) -> Any:
    """Converts a numeric tensor to a NumPy array, because Keras models accept NumPy arrays on all backends. String
    tensors are unchanged."""
    return value.numpy() if isinstance(value, tf.Tensor) and value.dtype != tf.string else value


def _find_row(key: str, rows: Iterator[tuple[str | None, ...]], catalog: Catalog) -> tuple[str | None, ...]:
    """Returns the next row with this key. Rows of examples without predictions are skipped."""
    for row in rows:
        if row[0] == key:
            return row
    raise catalog.no_row(key)


def _numeric_targets(decoder: ExampleDecoder, batch: Any, taken: Collection[str]) -> Columns:
    """Returns the targets of a batch that are numbers or vectors of numbers, by column name.

    The result is empty if a user function has replaced the targets.

    Args:
        decoder: The decoder of the batch.
        batch: The batch as `batches` returns it, without keys.
        taken: The names of columns that exist already. A target with such a name gets the prefix `label_`.
    """
    if decoder.config.has_functions or not isinstance(batch, tuple):
        return {}
    targets = batch[1] if isinstance(batch[1], collections.abc.Mapping) else dict.fromkeys(decoder.targets, batch[1])
    features = {name: decoder.features[name] for name in targets if name in decoder.features}
    numbers = {name: feature.shape for name, feature in features.items() if feature.is_numeric and not feature.is_tensor}
    names = [name for name, shape in numbers.items() if len(shape) < 2 and None not in shape]
    return {f"label_{name}" if name in (*taken, OUTPUT, PREDICTED) else name: targets[name].numpy() for name in names}


def _name_outputs(model: Any, outputs: Any, num_examples: int) -> Columns:
    if isinstance(outputs, (list, tuple)):
        names = getattr(model, "output_names", ())
        outputs = dict(zip(names if len(names) == len(outputs) else map(str, range(len(outputs))), outputs))
    if isinstance(outputs, collections.abc.Mapping):
        named = {f"{OUTPUT}/{name}": _array(value) for name, value in outputs.items()}
    else:
        named = {OUTPUT: _array(outputs)}
    for name, values in named.items():
        if values.shape[:1] != (num_examples,):
            raise ValueError(
                f"{name}: the model returned shape {values.shape} for {num_examples} examples. It must return one row "
                "for each."
            )
    return named


def _check_inputs(model: Any, x: Any, dataset: Any) -> None:
    """Logs a warning if a Keras model seems to have been trained on inputs with a different range."""
    keras = sys.modules.get("keras")
    if keras is None or not isinstance(model, keras.Model):
        return
    from tf_input.model_inputs import RESCALED, describe_misfit, scales_itself  # imports Keras

    first = tf.nest.map_structure(lambda item: item[:_NUM_CHECKED], x)
    if reason := describe_misfit(model, first):
        _logger.warning("predict: the model was probably not trained on such inputs: %s", reason)
        return
    if scales_itself(model) or not isinstance(first, np.ndarray) or first.dtype.kind not in "iuf":
        return
    differences = [(entry.name, entry.difference(dataset)) for entry in [*getattr(dataset, "mapped", ())]]
    scaled = [(name, value) for name, value in differences if value is not None and value.is_other_scale]
    if scaled and all(is_other_scale(result.values, first) for _, result in scaled):  # the inputs match no mapped scale
        name, difference = scaled[0]
        option = "map_batch" if name == "map" else name
        message = "predict: `%s` made %s from other batches, but here the model gets %s. If the model was trained on "
        message += "the result of `%s`, pass its function as %s=FUNCTION. %s"
        _logger.warning(message, name, difference.actual, describe(first), name, option, RESCALED)


def _best(model: Any, name: str, values: np.ndarray, names: Sequence[str], is_first: bool) -> np.ndarray | None:
    """Returns the predicted class name of each row, or None for a row with NaN.

    Args:
        model: The model.
        name: The name of the output.
        values: The output, [n, ...].
        names: The class names of the target; empty if there are none.
        is_first: Whether this is the first batch. A warning is logged only once.

    Returns:
        Object array of str, [n]; None if the outputs are not class scores.
    """
    if not names or values.dtype == object:
        return None
    if values.shape[1:] == (len(names),):
        best = values.argmax(axis=1)
    elif values.shape[1:] == (1,) and len(names) == 2:  # one score, for the second class
        from_logits = predicts_logits(model, name.removeprefix(f"{OUTPUT}/"))
        if from_logits is None and not predicts_scores(model):
            if is_first:
                message = "predict: %s has one score for two classes, and without a loss it may be a logit. "
                message += "Compile the model to get class names."
                _logger.warning(message, name)
            return None
        best = (values[:, 0] > (0 if from_logits else 0.5)).astype(int)
    else:
        return None
    best_names = np.array(names, object)[best]
    best_names[np.isnan(values).any(axis=1)] = None  # for such rows, argmax returned the index of NaN
    return best_names


def _array(value: Any) -> np.ndarray:
    """Converts a model output to a NumPy array. Values of dtype float16 or bfloat16 become float32."""
    array = np.asarray(value.detach().cpu() if hasattr(value, "detach") else value)
    if array.dtype.kind in "OSU":  # TensorFlow returns strings as bytes
        texts = [text.decode("utf-8", "backslashreplace") if isinstance(text, bytes) else text for text in array.reshape(-1).tolist()]
        return np.array(texts, object).reshape(array.shape)
    return array.astype(np.float32) if array.dtype.kind == "V" or array.dtype == np.float16 else array
