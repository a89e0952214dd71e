"""The fingerprint of batches, by which a checkpoint recognizes the batches that it was saved with."""

import dataclasses
import hashlib
import json
from numbers import Integral, Real
from typing import Any, Mapping, Sequence

from tf_input.dataset_format import Manifest
from tf_input.read_config import ReadConfig


def fingerprint(
    manifest: Manifest, split: str, config: ReadConfig, resolved_options: Mapping[str, Any], fold: tuple[int, int] | None = None
) -> dict[str, Any] | None:
    """Returns the fingerprint of batches: all values that determine a batch, except the epoch and the step. A
    training run can resume from a checkpoint only if the checkpoint contains the same fingerprint.

    Args:
        manifest, split, config: The manifest of the dataset, the name of the split with its slice, and the reading options.
        resolved_options: Options with defaults filled in, and further values that determine the batches.
        fold: The argument `fold` that was passed to `open`; None if there is no fold.

    Returns:
        JSON values by name: the dataset, the split, and the relevant options. None if there is no seed.
    """
    if config.seed is None:
        return None
    options = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    for name in ("cache_in_memory", "hosts", "with_keys", "transform"):
        del options[name]
    options["augment"] = config.augmentation and dataclasses.asdict(config.augmentation)
    options["padding"] = config.padding and dataclasses.asdict(config.padding)
    options["inputs"] = config.input_names
    options |= resolved_options
    if options["shuffle"] != "window":
        del options["read_buffer"]
    for name in ("interpolation", "parse"):  # compatible with checkpoints from before these options
        if getattr(config, name) == getattr(ReadConfig, name):
            del options[name]
    digest = hashlib.sha256(manifest.to_json().encode()).hexdigest()
    # The digest detects a changed manifest. The other values explain the change in messages.
    dataset = {"name": manifest.name, "seed": manifest.seed, "features": [feature.name for feature in manifest.schema]}
    dataset[f"the number of examples in {split}"] = manifest.num_examples(split.partition("[")[0])
    if fold is not None:
        dataset["fold"] = fold
    return json.loads(json.dumps({"manifest": digest, "dataset": dataset, "split": split, **options}, default=_comparable))


def fingerprint_mix(
    parts: Mapping[str, Mapping[str, Any]], config: ReadConfig, weights: Sequence[int], stop: str | int, class_names: Sequence[str]
) -> dict[str, Any]:
    """Returns the fingerprint of a mixture's batches: all values that determine a batch, except the epoch and the step.

    Args:
        parts: The fingerprint of each component, from `fingerprint`.
        config: The reading options.
        weights, stop: The weights of the components, in the order of `parts`, and the end of an epoch.
        class_names: The class names in label order.

    Returns:
        JSON values by name, as from `fingerprint`. Values that differ between components are stored by component.
    """
    of_dataset = {f"{fact} of {name}": value for name, entry in parts.items() for fact, value in entry["dataset"].items()}
    identity: dict[str, Any] = {"dataset": of_dataset, "weights": [*zip(parts, weights)], "stop": stop, "class_names": class_names}
    for option in dict.fromkeys(option for part in parts.values() for option in part if option not in identity):
        values = {name: item.get(option) for name, item in parts.items()}
        first = next(iter(values.values()))
        is_same = option not in ("manifest", "split") and all(value == first for value in values.values())
        identity[option] = first if is_same else values
    of_mix = {name: getattr(config, name) for name in ("seed", "drop_remainder", "class_weight", "map_example", "map_batch")}
    return json.loads(json.dumps({**identity, **of_mix}, default=_comparable))


def _comparable(value: Any) -> Any:
    """Converts NumPy numbers to Python numbers, and functions to their names, so that options can be saved and
    compared.

    Raises:
        TypeError: The value has an unsupported type, so that different values could not be distinguished.
    """
    if callable(value):
        return getattr(value, "__qualname__", type(value).__qualname__)
    if isinstance(value, Real):
        return int(value) if isinstance(value, Integral) else float(value)
    raise TypeError(f"{value!r} can't be saved in a checkpoint. Pass a value that JSON can store, or a function.")
