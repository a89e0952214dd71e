"""Which examples a batch is made of, without a log of it: `PreparedDataset.which`."""

import numpy as np
import tensorflow as tf

from tf_input.dataset_format import KEY
from tf_input.pipeline.plan import Plan
from tf_input.selection.catalog import Catalog
from tf_input.storage.record_reader import RecordReader


def find_examples(plan: Plan, reader: RecordReader, catalog: Catalog, epoch: int, step: int) -> dict[str, np.ndarray]:
    """The examples of a batch, as `PreparedDataset.which` returns them.

    Args:
        plan: How a split is read.
        reader: Of all of its records.
        catalog: Of the split.
        epoch, step: Which batch.

    Raises:
        OSError: A record or a catalog can't be read.
        ValueError: There is no such batch, or without a seed nobody knows it; or a record, or a catalog, is damaged.
    """
    for name, value in (("epoch", epoch), ("step", step)):
        if not isinstance(value, (int, np.integer)) or isinstance(value, bool) or value < 0:
            raise ValueError(f"{name}={value!r}: expected 0 or more")
    if step >= plan.num_batches:
        raise ValueError(f"step={step}: an epoch of {plan.share.split} has {plan.num_batches} batches; expected one below")
    if plan.kind is not None and plan.config.seed is None:
        raise ValueError("seed=None: expected the seed of the training; without one, each has batches of its own")
    with plan.open_inputs() as inputs:
        numbers, rows = inputs.numbers(int(epoch), int(step))
    numbers = numbers[rows >= 0]
    records = [record for record in reader.read(numbers) if record is not None]
    keys = [key.decode("utf-8", "backslashreplace") for key in plan.decoder.parse_keys(tf.constant(records, tf.string)).numpy()]
    paths = {reader.place(number)[0] for number in numbers.tolist()}
    reader.release()
    columns, wanted = catalog.row_columns(), set(keys)
    told = {row[0]: row for row in catalog.rows(columns, paths) if row[0] in wanted} if columns else {key: (key,) for key in keys}
    if missing := [key for key in keys if key not in told]:
        raise catalog.no_row(missing[0])
    return {name: np.array([told[key][place] for key in keys], object) for place, name in enumerate((KEY, *columns))}
