"""Reads several datasets as a single dataset, with fixed proportions in each batch."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import itertools
import logging
import math
import os
from fractions import Fraction
from numbers import Integral, Real
from typing import Any, Iterator, Literal, Mapping, NamedTuple, Sequence, Unpack

import numpy as np

from tf_input.batch_examples import check_batch, config_of_any
from tf_input.batches import NumpyBatches, Reading, as_batches, read_plan
from tf_input.dataset import PreparedDataset
from tf_input.dataset import open as open_dataset
from tf_input.dataset_format import LABEL, OBJECTS, Feature
from tf_input.decoding import class_weights
from tf_input.decoding.batch_decoder import BatchDecoder
from tf_input.decoding.example_decoder import ExampleDecoder
from tf_input.epochs import hosts
from tf_input.epochs.mixed_order import MixedOrder, epoch_length, component_seed, to_weights
from tf_input.epochs.fingerprint import fingerprint_mix
from tf_input.epochs.share import Share
from tf_input.process import check_fork
from tf_input.lazy_tensorflow import tf
from tf_input.options import suggest_option, named_options
from tf_input.pipeline import file_pipeline
from tf_input.pipeline.plan import MixedPlan, Plan, draw_seed, make_share
from tf_input.read_config import ReadConfig
from tf_input.read_options import ReadOptions, make_config
from tf_input.split_reader import SplitReader

Stop = Literal["first", "all"] | int
# (dataset or directory, split, proportion), optionally followed by options for this component.
Part = (
    tuple[PreparedDataset | str | os.PathLike[str], str, float] | tuple[PreparedDataset | str | os.PathLike[str], str, float, ReadOptions]
)

_NAME = "the mix"  # for messages
_PART = "part"  # key in the result of `which`: the component of each example
# Options that apply to the whole mixture. A component can't override them.
_OF_ALL = (
    *("batch_size", "seed", "drop_remainder", "skip_corrupt", "hosts", "class_weight"),
    *("cache_in_memory", "read_buffer", "map_example", "map_batch", "with_keys"),
)
_MAX_BATCHES = 1 << 40  # in an epoch, because indices in a mixture are 64-bit integers
_ROUNDED_ROWS = 16  # the largest number of examples that are decoded together is rounded up to a multiple of this
_logger = logging.getLogger("tf_input")


class _Component(NamedTuple):
    dataset: PreparedDataset
    split: str
    share: Fraction
    options: Mapping[str, Any]

    @property
    def reader(self) -> SplitReader:
        return self.dataset.split_reader(self.split)


@named_options(ReadConfig)
def mix(
    parts: Mapping[str, Part],
    config: ReadConfig | None = None,
    *,
    stop: Stop = "first",
    class_names: Sequence[str] | None = None,
    **options: Unpack[ReadOptions],
) -> tf.data.Dataset:
    """Returns batches that mix several datasets in fixed proportions, like `Mixture(parts, ...).batches(...)`.

    `Mixture` describes epochs and proportions. `mix` has the same return value and raises the same errors as
    `Mixture.batches`.

    Examples:
        ```python
        parts = {"photos": (photos, "train", 0.7), "sketches": (sketches, "train", 0.3)}
        train = tf_input.mix(parts, batch_size=128, image_size=224, augment=True, seed=0)
        model = make_model(num_classes=len(train.class_names))
        model.fit(train, epochs=10)
        ```

    Args:
        parts: The components and their proportions, as in `Mixture`.
        config: The reading options, as in `Mixture.batches`. Default: None.
        stop: The end of an epoch: "first", "all" or a number of batches, as in `Mixture`. Default: "first".
        class_names: The class names in label order, as in `Mixture`. Default: None.
        **options: The attributes of `ReadConfig`, as in `Mixture.batches`.
    """
    return Mixture(parts, stop=stop, class_names=class_names).batches(config, **options)


@named_options()
class Mixture:
    """A mixture of several datasets, or of splits of one dataset, which is read like a single dataset.

    Proportions are exact, not only on average. With two components, the number of examples from a component always
    equals its share of the examples so far, rounded to an integer. With three or four components, the number differs
    from this share by at most one. The examples of a component are spread over the slots of a batch. Therefore, the
    proportions of the components in a full batch are the same on each host, and nearly the same on each replica.

    All epochs have the same number of batches. Each component has its own epochs, in which every example occurs once,
    in a new random order. An epoch of the mixture continues each component after the last example of the previous
    epoch. Therefore, every example of a component is read once before any example is repeated. As with a single split,
    a batch depends only on the seed, the epoch and the step.

    `image_size` brings images to the same size. Classes are matched by name. The first component keeps its class
    indices. Classes that occur only in later components get the next class indices. If only some components have
    example weights, the examples of all other components have weight 1.

    Examples:
        ```python
        parts = {"photos": (photos, "train", 0.7), "sketches": (sketches, "train", 0.3)}
        mixture = tf_input.Mixture(parts, stop="all")
        mixture.batches(batch_size=128, image_size=224, augment=True, seed=0)
        tf_input.Sequence(mixture, batch_size=128, image_size=224, seed=0)
        ```

    Args:
        parts: The components by name. A component is a tuple (dataset or directory, split, proportion), optionally
            followed by a dictionary of options, such as {"select": "width >= 64"}. Proportions are relative: 0.7 and 0.3
            are equivalent to 7 and 3. If the proportions are the numbers of examples and `stop` is "all", an epoch
            contains each example of all components exactly once.
        stop: The length of an epoch. "first": until the first component has been read once. "all": until every
            component has been read at least once. An integer: this number of batches. In the first epoch, "first"
            repeats no example and "all" omits no example. Later epochs can repeat or omit examples, because each
            component continues where the previous epoch stopped. Default: "first".
        class_names: The class names of `label`, or else of `objects`, in label order, for example the class names of
            another mixture. Default: None, the classes of the first component, followed by additional classes of the
            other components.

    Attributes:
        features: The features that all components share, by name. Class labels have the class names of all components.

    Raises:
        FileNotFoundError, OSError: A dataset can't be opened.
        ValueError: There are no components, or an argument has a wrong value.
    """

    def __init__(self, parts: Mapping[str, Part], *, stop: Stop = "first", class_names: Sequence[str] | None = None) -> None:
        if not isinstance(parts, Mapping) or not parts:
            raise ValueError(
                f"parts={parts!r} is invalid. Pass components by name, such as "
                f"{{'photos': (photos, 'train', 0.7), ...}}."
            )
        is_count = isinstance(stop, Integral) and not isinstance(stop, bool) and 0 < stop < _MAX_BATCHES
        if not is_count and not (isinstance(stop, str) and stop in ("first", "all")):
            raise ValueError(f"stop={stop!r} is invalid. Pass 'first', 'all' or a number of batches.")
        if class_names is not None and (isinstance(class_names, str) or len(set(class_names)) < len(class_names)):
            raise ValueError(f"class_names={class_names!r} is invalid. List each class name once, or pass None.")
        self._stop: str | int = int(stop) if is_count else stop
        self._given_names = tuple(class_names or ())
        self._components = {name: _to_component(name, component) for name, component in parts.items()}
        self._weights = to_weights([component.share for component in self._components.values()])
        self.features, _ = self._unite([component.dataset.features for component in self._components.values()])

    def __repr__(self) -> str:
        descriptions = [
            f"{share:.3g} of {name}, {component.split}"
            for share, (name, component) in zip(self._shares, self._components.items())
        ]
        return f"<Mixture: {'; '.join(descriptions)}>"

    @property
    def class_names(self) -> tuple[str, ...]:
        """The class names of all components, for the feature `label` or, without `label`, for `objects`."""
        label = self.features.get(LABEL) or self.features.get(f"{OBJECTS}/{LABEL}")
        return label.label_names if label else ()

    @named_options(ReadConfig)
    def batches(self, config: ReadConfig | None = None, **options: Unpack[ReadOptions]) -> tf.data.Dataset:
        """Returns batches of all components as a `tf.data.Dataset`, for `model.fit`, `evaluate` and `predict`.

        Args:
            config: The reading options. Default: None, which uses only `options`.
            **options: The attributes of `ReadConfig`. `read_buffer` and `cache_in_memory`, in bytes,
                are divided equally among the components. `class_weight` refers to the classes of the mixture, and
                "balanced" uses the class frequencies in the mixture. `select` and `balance` apply to each component.

        Returns:
            The return value of `PreparedDataset.batches`, with a further attribute `class_names`. The order of the
            examples within a batch is unspecified.

        Raises:
            TypeError: An option does not exist; the message suggests a similar name.
            ValueError: An option has a wrong value, or components have different features; the message lists them. All
                other errors are those of `PreparedDataset.batches`.
        """
        check_fork()
        config = self.resolve(make_config(config, options))
        plan = self.plan(config)
        data = read_plan(plan, self.fingerprint(config, plan))
        data.reading, data.class_names = Reading(self, None, config), self.class_names
        return as_batches(data, f"mix of {', '.join(self._components)}", config.batch_size, config.hosts)

    @named_options(ReadConfig)
    def as_numpy(self, config: ReadConfig | None = None, **options: Unpack[ReadOptions]) -> NumpyBatches:
        """Returns batches of all components as NumPy arrays, for training loops; see `PreparedDataset.as_numpy`."""
        return NumpyBatches(self.batches(config, **options))

    @named_options(ReadConfig, without=("with_keys",))
    def which(self, config: ReadConfig | None = None, *, epoch: int, step: int, **options: Unpack[ReadOptions]) -> dict[str, np.ndarray]:
        """Returns the keys of the examples in an earlier training batch; see `PreparedDataset.which`.

        Examples:
            ```python
            mixture.which(epoch=3, step=9_000, batch_size=128, image_size=224, seed=0)["key"]
            ```

        Args:
            config: The reading options in the training run, as in `batches`. Default: None.
            epoch: The number of the epoch, from 0.
            step: The number of the batch in the epoch, from 0.
            **options: The attributes of `ReadConfig` in the training run, as in `batches`. With `hosts=None`, examples of
                all hosts are returned.

        Returns:
            Object arrays of str in batch order: `component`, the name of the example's component, and the columns that
                `PreparedDataset.which` returns. A column is None if the catalog of the example's component does not
                have it.

        Raises:
            ValueError: The batch does not exist. All other errors are those of `batches` and `PreparedDataset.which`.
        """
        check_fork()
        config = self.resolve(config_of_any(make_config(config, options)))
        plan = self.plan(config, holds=False)
        check_batch(plan, epoch, step)
        with plan.make_inputs() as inputs:
            wanted = inputs.numbers(int(epoch), int(step))
        all_columns, all_slots = [], []
        for (name, component), component_plan, (numbers, slots) in zip(self._components.items(), plan.components, wanted):
            examples, is_sound = component.reader.find_examples(component_plan, numbers)
            all_slots.append(slots[is_sound])
            nothing = np.full(len(all_slots[-1]), None, object)
            named = {f"{LABEL}_{column}" if column == _PART else column: values for column, values in examples.items()}
            all_columns.append(
                collections.defaultdict(
                    lambda nothing=nothing: nothing, {_PART: np.full(len(nothing), name, object), **named}
                )
            )
        order, columns = np.argsort(np.concatenate(all_slots)), dict.fromkeys(itertools.chain(*all_columns))
        return {column: np.concatenate([component_columns[column] for component_columns in all_columns])[order] for column in columns}

    @named_options(ReadConfig)
    def example_spec(self, config: ReadConfig | None = None, **options: Unpack[ReadOptions]) -> Any:
        """Returns the shapes and dtypes of the batches that `batches` returns. No record is read."""
        config = self.resolve(make_config(config, options))
        self._spec(config)  # raises if the components differ
        sizes = [component.reader.num_chosen(self._config_of(name, config)) for name, component in self._components.items()]
        return self._spec(config, self._share(config, sizes).has_padding)

    def split_reader(self, split: None) -> "Mixture":
        """Returns the mixture itself, so that mixtures and datasets have the same interface.

        Raises:
            ValueError: `split` is not None.
        """
        if split is not None:
            raise ValueError(f"split={split!r}: each component of a mixture has its own split. Pass None.")
        return self

    def resolve(self, config: ReadConfig) -> ReadConfig:
        """Returns `config` with detected `hosts`; see `SplitReader.resolve`.

        Raises:
            ValueError: An option does not apply to a mixture.
        """
        if config.drop_remainder and self._has_full_batches:
            raise ValueError(
                f"drop_remainder=True: with stop={self._stop} all batches are full. Use drop_remainder=False."
            )
        return dataclasses.replace(config, hosts=hosts.hosts_of(_NAME) if config.hosts is None else config.hosts)

    def fingerprint(self, config: ReadConfig, plan: MixedPlan) -> dict[str, Any] | None:
        """Returns the values that identify the batches in a checkpoint; see `epochs.fingerprint.fingerprint_mix`. None if
        there is no seed."""
        if config.seed is None:
            return None
        identities = {
            name: component.reader.fingerprint(component_plan.config, component_plan) for (name, component), component_plan in zip(self._components.items(), plan.components)
        }
        return fingerprint_mix(identities, config, plan.order.weights, self._stop, self.class_names)

    def plan(self, config: ReadConfig, *, holds: bool = True) -> MixedPlan:
        """Returns the plan, which defines the records of each batch. `holds` is as in `SplitReader.plan`."""
        seed, plans = draw_seed() if config.seed is None else config.seed, []
        decoders = self._decoders(config)
        decoder = self._joined(config, decoders)
        if not _have_equal_options(decoder.decoders):
            self._spec(dataclasses.replace(config, map_example=None, map_batch=None))  # raises if components differ
        for (name, component), own in zip(self._components.items(), decoders):
            with _naming(name):
                component_config = dataclasses.replace(self._config_of(name, config), seed=component_seed(seed, name))
                plans.append(component.reader.plan(component.reader.resolve(component_config), holds=holds, decoder=own))
        sizes = tuple(plan.share.num_examples for plan in plans)
        share = self._share(config, sizes, plans[0].decoder.has_targets)
        num_slots = share.num_batches * config.batch_size if config.drop_remainder else share.num_examples
        order = MixedOrder(self._weights, sizes, config.batch_size, num_slots)
        for name, count, share_of in zip(self._components, order.counts, self._shares):
            if not count:
                problem = f"a share of {share_of:.3g} of the {num_slots} examples in an epoch is less than one example"
                raise ValueError(f"{name}: {problem}. Use a larger share, or stop='all'.")
        decoder = decoder.pad(share.has_padding)
        self._warn_of_objects(plans, decoder)
        component_plans = [
            dataclasses.replace(
                plan,
                decoder=component_decoder,
                share=dataclasses.replace(plan.share, hosts=share.hosts),
                virtual_shards=functools.partial(order.virtual_shards, number),
            )
            for number, (plan, component_decoder) in enumerate(zip(plans, decoder.decoders))
        ]
        return MixedPlan(config, seed, order, share, tuple(component_plans), decoder)

    def _share(self, config: ReadConfig, sizes: Sequence[int], has_targets: bool = True) -> Share:
        """Returns the part of each batch that this host reads, given the number of examples in each component."""
        length = config.batch_size * self._stop if self._has_full_batches else epoch_length(self._weights, sizes, self._stop)
        return make_share(_NAME, length, config, has_targets)

    def batch_decoder(self, config: ReadConfig, has_padding: bool) -> BatchDecoder:
        """Returns the decoder of batches, without reading records. `has_padding` is as in `ExampleDecoder`."""
        return self._joined(config, self._decoders(config)).pad(has_padding)

    def _decoders(self, config: ReadConfig) -> list[ExampleDecoder]:
        """Returns the decoder of each component as a separate dataset."""
        decoders = []
        for name, component in self._components.items():
            with _naming(name):
                decoders.append(component.reader.make_decoder(self._config_of(name, config)))
        return decoders

    def _joined(self, config: ReadConfig, decoders: Sequence[ExampleDecoder]) -> BatchDecoder:
        """Combines the decoders of the components to a decoder of batches without padding."""
        self._check_compatible(decoders)
        features, numbers = self._unite([decoder.features for decoder in decoders])
        tables = {}
        if config.class_weight is not None:
            counts = self._count_classes(config, decoders, features)
            tables = class_weights.weight_tables(config.class_weight, features, decoders[0].targets, counts, _NAME)
        has_weights = any(decoder.has_weights for decoder in decoders)
        mask_dtype = max((decoder.mask_dtype for decoder in decoders), key=lambda dtype: dtype.itemsize)
        changed = {"class_weights": tables, "has_padding": has_weights, "mask_dtype": mask_dtype}
        with_changes = [
            dataclasses.replace(
                decoder,
                features=_renamed(decoder.features, features),
                max_examples=self._max_component_size(share, config),
                **changed,
            )
            for decoder, share in zip(decoders, self._shares)
        ]
        has_size = self._are_full(config) and not config.skip_corrupt
        size = config.batch_size // _num_hosts(config) if has_size else None
        return BatchDecoder(tuple(with_changes), tuple(self._components), tuple(numbers), size)

    def _warn_of_objects(self, plans: Sequence[Plan], decoder: BatchDecoder) -> None:
        """Logs the names of object features that are omitted because some components do not have these features."""
        if OBJECTS not in (*plans[0].decoder.config.input_names, *plans[0].decoder.targets):
            return
        for name, plan, own in zip(self._components, plans, decoder.decoders):
            if lost := [feature for feature in plan.decoder.features if feature not in own.features]:
                _logger.warning("%s: %s are left out, because not all components have them", name, ", ".join(lost))

    @property
    def _shares(self) -> list[float]:
        return [weight / sum(self._weights) for weight in self._weights]

    @property
    def _has_full_batches(self) -> bool:
        return not isinstance(self._stop, str)

    def _are_full(self, config: ReadConfig) -> bool:
        return config.drop_remainder or self._has_full_batches

    def _max_component_size(self, share: float, config: ReadConfig) -> int:
        """Returns the maximum number of examples of a component in a batch on this host, or 1 if it is unknown."""
        if _num_hosts(config) > 1 and not self._are_full(config):  # an incomplete last batch may be divided in any way
            return 1
        most = (config.batch_size * share + len(self._components)) / _num_hosts(config) + 2
        return min(config.batch_size // _num_hosts(config), math.ceil(most / _ROUNDED_ROWS) * _ROUNDED_ROWS)

    def _config_of(self, name: str, config: ReadConfig) -> ReadConfig:
        """Returns the options for reading one component as a separate dataset, on one host."""
        if (shuffle := self._components[name].options.get("shuffle", config.shuffle)) == "key":
            raise ValueError(
                f"shuffle={shuffle!r} is not available in a mixture. Use True, False, 'window' or 'exact'."
            )
        num_components = len(self._components)
        alone = {"drop_remainder": False, "hosts": (1, 0), "class_weight": None}
        alone |= {"cache_in_memory": config.cache_in_memory // num_components, "read_buffer": max(1, config.read_buffer // num_components)}
        return dataclasses.replace(config, **alone, map_example=None, map_batch=None, **self._components[name].options)

    def _spec(self, config: ReadConfig, has_padding: bool = False) -> Any:
        decoder = self.batch_decoder(config, has_padding)

        def decode(records: tf.Tensor, seed: tf.Tensor | None, rows: tf.Tensor) -> Any:
            return decoder([records] * len(self._components), seed, [rows] * len(self._components))

        augment = any(item.config.augment for item in decoder.decoders)
        return file_pipeline.example_spec(decode, dataclasses.replace(config, drop_remainder=False, augment=augment))

    def _check_compatible(self, decoders: Sequence[ExampleDecoder]) -> None:
        """Raises ValueError if components have different inputs or targets, or features of different kinds."""
        for option, names_of_all in (
            ("inputs", [decoder.config.input_names for decoder in decoders]),
            ("targets", [decoder.targets for decoder in decoders]),
        ):
            if any(set(names) != set(names_of_all[0]) for names in names_of_all):
                descriptions = [f"{component} has {', '.join(names) or 'none'}" for component, names in zip(self._components, names_of_all)]
                raise ValueError(
                    f"{option}=None: the components differ: {'; '.join(descriptions)}. Pass {option}=... with names that all "
                    "have."
                )
        names = [*decoders[0].config.input_names, *decoders[0].targets]
        for name in [*names, f"{OBJECTS}/{LABEL}"] if OBJECTS in names else names:
            kinds = [_kind(decoder.features[name]) for decoder in decoders if name in decoder.features]
            if len(set(kinds)) > 1:
                descriptions = [f"{component} has {kind}" for component, kind in zip(self._components, kinds)]
                raise ValueError(f"{name} must be of one kind in all components: {', '.join(descriptions)}")

    def _unite(self, features: Sequence[Mapping[str, Feature]]) -> tuple[dict[str, Feature], list[dict[str, tuple[int, ...]]]]:
        """Returns the features that all components share, and the new class indices of the labels in each component.

        The returned class labels have the class names of all components. The second return value contains only the
        labels whose class indices change in the mixture.
        """
        united = {
            name: feature
            for name, feature in features[0].items()
            if all(name in component_features and _kind(component_features[name]) == _kind(feature) for component_features in features)
        }
        numbers: list[dict[str, tuple[int, ...]]] = [{} for _ in features]
        class_feature = LABEL if LABEL in united else f"{OBJECTS}/{LABEL}"
        for name, class_label in united.items():
            label_names = [component_features[name].label_names for component_features in features]
            given = self._given_names if name == class_feature else ()
            for component_name, names in zip(self._components, label_names):
                if given and (unknown := [item for item in names if item not in given]):
                    raise ValueError(
                        f"class_names={[*given]!r} does not have the class {unknown[0]!r} of {component_name}. List the classes "
                        "of all components."
                    )
            union = tuple(dict.fromkeys(itertools.chain(given, *label_names)))
            united[name] = dataclasses.replace(class_label, label_names=union)
            position = {label: number for number, label in enumerate(union)}
            for numbers_by_name, names in zip(numbers, label_names):
                if names != union[: len(names)]:
                    numbers_by_name[name] = tuple(position[label] for label in names)
        return united, numbers

    def _count_classes(
        self, config: ReadConfig, decoders: Sequence[ExampleDecoder], features: Mapping[str, Feature]
    ) -> dict[str, Any] | None:
        """Returns the class counts in the format of `statistics.json`; None if a transform changed the labels."""
        counts: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
        for (component, given), decoder, share in zip(self._components.items(), decoders, self._shares):
            counting = dataclasses.replace(self._config_of(component, config), class_weight="balanced")
            facts = given.reader.counted(counting)["splits"][given.split]
            for name in class_weights.class_targets(features, decoder.targets):
                if decoder.features[name] != given.dataset.features.get(name):
                    return None
                label_counts = facts["label_counts"] if name == LABEL else facts["other_label_counts"][name]
                for label, count in label_counts.items():
                    counts[name][label] += count * share / max(1, sum(label_counts.values()))
        return {"splits": {_NAME: {"label_counts": counts[LABEL], "other_label_counts": counts}}}


def _to_component(name: Any, given: Any) -> _Component:
    expected = "Pass (dataset, split, share), and optionally a dictionary of options."
    if not isinstance(name, str) or not name:
        raise ValueError(f"parts: {name!r} is not a name. Use a non-empty string.")
    if not isinstance(given, (tuple, list)) or len(given) not in (3, 4):
        raise ValueError(f"{name}={given!r}: {expected}")
    dataset, split, share, *options = given
    if isinstance(dataset, (str, os.PathLike)):
        dataset = open_dataset(dataset)
    if not isinstance(dataset, PreparedDataset):
        raise ValueError(f"{name}: {dataset!r} has no index, which a mixture needs. Pass a prepared dataset.")
    with _naming(name):
        dataset.split_reader(split)
    if not isinstance(share, Real) or isinstance(share, bool) or not 0 < share < float("inf"):
        raise ValueError(f"{name}: share={share!r} is invalid. Pass a number above 0.")
    component_options = options[0] if options else {}
    if not isinstance(component_options, Mapping):
        raise ValueError(f"{name}: {component_options!r} is invalid. Pass options as a dictionary, such as {{'augment': False}}.")
    known = [field.name for field in dataclasses.fields(ReadConfig) if field.name not in _OF_ALL]
    if unknown := [option for option in component_options if option not in known]:
        problem = "this option must be the same for all components. Pass it to `batches`."
        problem = problem if unknown[0] in _OF_ALL else f"there is no such option{suggest_option(unknown[0], known)}"
        raise ValueError(f"{name}: {unknown[0]}={component_options[unknown[0]]!r}: {problem}")
    # The fraction is made from the decimal notation: 0.7 becomes 7/10, not the nearest binary fraction.
    return _Component(dataset, split, Fraction(str(share)), component_options)


@contextlib.contextmanager
def _naming(name: str) -> Iterator[None]:
    """Context manager that adds the name of a component to error messages."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error


def _kind(feature: Feature) -> str:
    """Returns the properties of a feature that must be equal in all components. Encoded images match raw pixels."""
    if feature.is_categorical:
        return ("any number of classes" if feature.is_ragged else "one class") + " without names" * (not feature.label_names)
    return "image" if feature.is_image else feature.kind


def _have_equal_options(decoders: Sequence[ExampleDecoder]) -> bool:
    """Returns whether all components have the same features and options. Comparing their output specs is slower."""
    asked = [
        (
            dataclasses.replace(decoder.config, select=None),
            {name: dataclasses.replace(feature, label_names=(), description="") for name, feature in decoder.features.items()},
            (decoder.targets, decoder.image_size, decoder.others, decoder.stored_channels),
        )
        for decoder in decoders
    ]
    return all(other == asked[0] for other in asked)


def _renamed(features: Mapping[str, Feature], united: Mapping[str, Feature]) -> dict[str, Feature]:
    """Returns a component's features with the mixture's class names. Object features that the mixture lacks are
    omitted."""
    return {
        name: dataclasses.replace(feature, label_names=united[name].label_names) if name in united else feature
        for name, feature in features.items()
        if name in united or not name.startswith(f"{OBJECTS}/")
    }


def _num_hosts(config: ReadConfig) -> int:
    return (config.hosts or (1, 0))[0]
