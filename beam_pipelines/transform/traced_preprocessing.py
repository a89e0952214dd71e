"""Traces a preprocessing function before any data is read, to determine its outputs.

The trace also records which line of the user's module created each operation. If an operation fails later, the error
message contains this line.
"""

import dataclasses
import re
from typing import Any, Callable, Collection, Iterator, Mapping, Sequence

import tensorflow as tf
from tfx_bsl.tfxio.tensor_adapter import TensorAdapter, TensorAdapterConfig

from beam_pipelines.columns.forms import COLUMN_PATTERN
from beam_pipelines.transform.record_batches import ReadRecordBatches, read_batch, tensor_adapter_config
from beam_pipelines.transform.tft_modules import impl_helper
from tf_input.dataset_format import OBJECTS, Feature
from tf_input.transform.transform_graph import TransformGraph

# Types that TensorFlow Transform supports as outputs.
_KINDS = {tf.int64: "integer", tf.float32: "float", tf.string: "text"}
_NAME = re.compile(f"{COLUMN_PATTERN.pattern}(/{COLUMN_PATTERN.pattern})*")
_IN_PYTHON = ("PyFunc", "PyFuncStateless", "EagerPyFunc")
_RANDOM = (
    *("RandomUniform", "RandomUniformInt", "RandomStandardNormal", "TruncatedNormal", "ParameterizedTruncatedNormal"),
    *("RandomGamma", "RandomPoisson", "RandomPoissonV2", "RandomShuffle", "RandomCrop", "Multinomial", "RngReadAndSkip"),
    *("SampleDistortedBoundingBox", "SampleDistortedBoundingBoxV2", "RngSkip"),
)


@dataclasses.dataclass(frozen=True)
class Traced:
    """The outputs of a traced preprocessing function.

    Attributes:
        schema: The features of a transformed example, sorted by name.
        targets: The names of the features that a model predicts.
        lines: A mapping from the name of each operation to the line of the module that created it.
    """

    schema: tuple[Feature, ...]
    targets: tuple[str, ...]
    lines: Mapping[str, int]


class BadOutputsError(ValueError):
    """Raised if outputs of a preprocessing function cannot be stored as features.

    Attributes:
        line: The line of the user's module that caused the problem, or None if it is unknown.
    """

    def __init__(self, reason: str, line: int | None = None) -> None:
        super().__init__(reason)
        self.line = line


def trace(
    preprocessing_fn: Callable[[Mapping[str, Any]], Any],
    config: TensorAdapterConfig,
    schema: Sequence[Feature],
    targets: Sequence[str],
    temporary_directory: str,
    file: str | None = None,
) -> Traced:
    """Calls a preprocessing function with symbolic tensors.

    Args:
        preprocessing_fn: The function from parsed features to transformed features. Both are dictionaries by name.
        config: The configuration for parsing records.
        schema: The features of an example.
        targets: The names of the features that a model predicts.
        temporary_directory: The directory for temporary files of TensorFlow Transform.
        file: The path of the module whose lines are recorded.

    Raises:
        BadOutputsError: The outputs are invalid, or an operation cannot be part of a saved graph.
    """
    traced = []

    def recorded(inputs: Mapping[str, Any]) -> Any:
        given = dict(inputs)
        outputs = preprocessing_fn(inputs)
        _check(outputs)
        features = {name: _describe(name, outputs[name], given, schema) for name in sorted(outputs)}
        operations = list(_operations(tf.compat.v1.get_default_graph()))
        _check_operations(operations, file)
        lines = {operation.name: line for operation in operations if (line := _line(operation, file))}
        traced.append(Traced(tuple(features.values()), tuple(_targets(targets, outputs, given)), lines))
        return outputs

    specs = TensorAdapter(config).OriginalTypeSpecs()
    impl_helper.trace_preprocessing_function(recorded, specs, use_tf_compat_v1=False, base_temp_dir=temporary_directory)
    return traced[-1]


def _check(outputs: Any) -> None:
    if not isinstance(outputs, dict) or not outputs:
        output_type = f"a {type(outputs).__name__}" if not isinstance(outputs, dict) else "an empty dict"
        raise BadOutputsError(f"preprocessing_fn returned {output_type}. Return a non-empty dict of tensors by name.")
    for name in outputs:
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise BadOutputsError(
                f"an output is named {name!r}. Use letters, digits, '_', '.' and '-', optionally in parts separated "
                "by '/'."
            )


def _describe(name: str, value: Any, inputs: Mapping[str, Any], schema: Sequence[Feature]) -> Feature:
    """Returns the feature that describes an output. An unchanged input keeps its feature."""
    for feature in schema:
        if value is inputs[feature.name]:
            return dataclasses.replace(feature, name=name)
    if not isinstance(value, (tf.Tensor, tf.RaggedTensor)):
        hint = " (use tf.sparse.to_dense or tf.RaggedTensor.from_sparse)" if isinstance(value, tf.SparseTensor) else ""
        raise BadOutputsError(f"output {name!r} is a {type(value).__name__}. Return a Tensor or RaggedTensor{hint}.")
    if value.dtype not in _KINDS:
        dtype = value.dtype.name
        raise BadOutputsError(f"output {name!r} has dtype {dtype}. Use tf.cast to int64 or float32, or return strings.")
    return Feature(name, _KINDS[value.dtype], _example_shape(name, value))


def _example_shape(name: str, value: tf.Tensor | tf.RaggedTensor) -> tuple[int | None, ...]:
    """Returns the shape of an output without the batch dimension."""
    shape = value.shape
    if shape.rank is None:
        raise BadOutputsError(f"output {name!r} has unknown dimensions. Set its shape with tf.ensure_shape.")
    sides = tuple(shape)
    if not sides or sides[0] is not None:
        raise BadOutputsError(f"output {name!r} has shape {shape}. Return [batch, ...], with one row per example.")
    num_ragged = value.ragged_rank if isinstance(value, tf.RaggedTensor) else 0
    if num_ragged > 1 or None in sides[1 + num_ragged :]:
        raise BadOutputsError(
            f"output {name!r} has shape {shape}. Only the dimension after the batch may be ragged, and all others "
            "must be "
            "known. Set known dimensions with tf.ensure_shape."
        )
    return sides[1:]


def _targets(targets: Sequence[str], outputs: Mapping[str, Any], inputs: Mapping[str, Any]) -> Iterator[str]:
    """Yields the targets among the outputs of the preprocessing function. An unchanged target can have a new name."""
    for target in targets:
        if target in outputs or target == OBJECTS and any(name.startswith(f"{OBJECTS}/") for name in outputs):
            yield target
        else:
            yield from (name for name, value in sorted(outputs.items()) if value is inputs.get(target))


def _operations(graph: tf.Graph) -> Iterator[tf.Operation]:
    """Yields the operations of a graph and of the functions that the graph calls, such as loop bodies."""
    yield from graph.get_operations()
    for function in graph._functions.values():  # TensorFlow has no public API for these functions.
        yield from _operations(function.graph)


def _line(operation: tf.Operation, file: str | None) -> int | None:
    """Returns the line of the user's module that created an operation, or None if the line is unknown."""
    if file is None:
        return None  # Return early, because reading the traceback of an operation is slow.
    lines = [frame.lineno for frame in operation.traceback or () if frame.filename == file]
    return lines[-1] if lines else None


def _check_operations(operations: Sequence[tf.Operation], file: str | None) -> None:
    """Checks that the operations work in other processes, where the graph is loaded from a file."""
    for operation in operations:
        if operation.type in _IN_PYTHON:
            reason = "Python functions (tf.py_function, tf.numpy_function) can't be saved. Use TensorFlow operations."
            raise BadOutputsError(reason, _line(operation, file))
        if operation.type in _RANDOM:
            reason = f"{operation.type} returns different values each time, but serving must match training"
            raise BadOutputsError(f"{reason}. Use tf.random.stateless_*, or no random numbers.", _line(operation, file))


def find_line(operation: str, lines: Mapping[str, int]) -> int | None:
    """Returns the line of the user's module that created an operation, or None if the line is unknown.

    An operation of an inlined function has a name such as `map/while/body/_20/map/while/Decode`. For such a name, the
    longest known suffix is used.
    """
    parts = operation.split("/")
    return next((result for start in range(len(parts)) if (result := lines.get("/".join(parts[start:])))), None)


_ONE_BY_ONE = 1 << 62  # Size of an example that exceeds the size of a batch, so that each batch has one record.


def try_graph(graph: TransformGraph, reader: ReadRecordBatches, names: Collection[str]) -> None:
    """Checks the number of output rows of a graph, for the first batch and for the first record alone.

    A single batch is not enough, because a wrong number of rows may happen to equal the batch size. The check is needed
    because the analysis does not execute the operations after the last analyzer.

    Args:
        graph: The graph that was written.
        reader: The reader of the analyzed records.
        names: The names of the outputs in the first trace.

    Raises:
        tf.errors.OpError: The graph fails.
        BadOutputsError: The outputs have changed, or the number of rows differs from the number of records.
    """
    if set(graph.output_names) != set(names):
        names_text = f"{', '.join(sorted(names))} first and {', '.join(graph.output_names)} later"
        raise BadOutputsError(f"preprocessing_fn returned {names_text}. Return the same outputs each time.")
    adapter = TensorAdapter(tensor_adapter_config(reader.schema))
    shard = next(shard for shard in reader.shards if shard.num_examples)
    for example_bytes in (reader.example_bytes, _ONE_BY_ONE):
        batch = read_batch(next(dataclasses.replace(reader, example_bytes=example_bytes).pointers(shard)))
        outputs = graph.model.transform_fn(adapter.ToBatchTensors(batch))
        for name in names:
            if (num_rows := _num_rows(outputs[name])) != batch.num_rows:
                raise BadOutputsError(
                    f"output {name!r} has {num_rows} rows for {batch.num_rows} examples. Return one row per example."
                )


def _num_rows(value: Any) -> int:
    return int(value.nrows()) if isinstance(value, tf.RaggedTensor) else value.shape[0]
