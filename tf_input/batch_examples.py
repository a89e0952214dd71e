"""Recomputes the examples of an earlier training batch, for `PreparedDataset.which` and `Mixture.which`."""

import dataclasses

import numpy as np

from tf_input.dataset_format import KEY
from tf_input.example_values import find_key
from tf_input.pipeline.plan import MixedPlan, Plan
from tf_input.read_config import ReadConfig
from tf_input.selection.catalog import Catalog
from tf_input.storage.record_reader import RecordReader


def config_of_any(config: ReadConfig) -> ReadConfig:
    """Returns the reading options with `with_keys=True`. If `hosts` is None, the examples of all hosts are read.

    Raises:
        ValueError: The option `keys` is set.
    """
    if config.with_keys:
        raise ValueError("with_keys=True is invalid here, because the keys are always returned. Omit it.")
    return dataclasses.replace(config, with_keys=True, hosts=config.hosts or (1, 0))


def check_batch(plan: Plan | MixedPlan, epoch: int, step: int) -> None:
    """Raises ValueError if the step is out of range, or if batches can't be recomputed because no seed is given."""
    for name, value in (("epoch", epoch), ("step", step)):
        if not isinstance(value, (int, np.integer)) or isinstance(value, bool) or value < 0:
            raise ValueError(f"{name}={value!r} is invalid. Pass an integer of 0 or more.")
    if step >= plan.num_batches:
        raise ValueError(
            f"step={step} is out of range: an epoch of {plan.share.split} has {plan.num_batches} batches. Pass a "
            "smaller step."
        )
    if plan.config.seed is None and any(part.kind in ("window", "exact") for part in plan.components):
        raise ValueError("seed=None: the order is random without a seed. Pass the seed of the training.")


def find_examples(reader: RecordReader, catalog: Catalog, numbers: np.ndarray) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Returns the keys and catalog columns of the given examples.

    Args:
        reader: The reader of all records of a split.
        catalog: The catalog of the split.
        numbers: The indices of the examples in the split, int64 [n].

    Returns:
        A dictionary of object arrays of str, with `key` and the catalog columns, without the examples of corrupt
        records; and a mask, bool [n], that is False for corrupt records. They occur only with `skip_corrupt=True`.

    Raises:
        OSError, ValueError: A record or a catalog can't be read, or is corrupt.
    """
    with reader.users:
        read = reader.read(numbers)
        paths = {reader.locate(number)[0] for number in numbers.tolist()}
    is_sound = np.array([record is not None for record in read], bool)
    records = [record for record in read if record is not None]
    stored = map(find_key, records) if reader.keys is None else reader.keys[numbers[is_sound]]
    keys = [key.decode("utf-8", "backslashreplace") for key in stored]
    columns, wanted = catalog.row_columns(), set(keys)
    rows_by_key = {row[0]: row for row in catalog.rows(columns, paths) if row[0] in wanted} if columns else {key: (key,) for key in keys}
    if missing := [key for key in keys if key not in rows_by_key]:
        raise catalog.no_row(missing[0])
    return {name: np.array([rows_by_key[key][column] for key in keys], object) for column, name in enumerate((KEY, *columns))}, is_sound
