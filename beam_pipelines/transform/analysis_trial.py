"""The graph of an analysis, run on a few records before it is published: much fails only when it runs.

An engine runs what the analyzers need. What comes after the last of them, nobody has run yet.
"""

import dataclasses
from typing import Any, Collection

import tensorflow as tf
from tfx_bsl.tfxio.tensor_adapter import TensorAdapter

from beam_pipelines.transform.record_batches import ReadRecordBatches, read_batch, tensor_adapter_config
from beam_pipelines.transform.traced_preprocessing import BadOutputsError
from tf_input.transform.transform_graph import TransformGraph

_ONE_BY_ONE = 1 << 62  # bytes of an example


def try_graph(graph: TransformGraph, reader: ReadRecordBatches, names: Collection[str]) -> None:
    """Applies a graph to the first batch, and to the first record alone: an output must not be as long by accident.

    Args:
        graph: As it was written.
        reader: Of the records that were analysed.
        names: Of the outputs, as they were when the preprocessing was traced before any work.

    Raises:
        tf.errors.OpError: It fails.
        BadOutputsError: There are other outputs now, or one has not as many rows as there are records.
    """
    if set(graph.output_names) != set(names):
        found = f"{', '.join(sorted(names))} first and {', '.join(graph.output_names)} later"
        raise BadOutputsError(f"preprocessing_fn returned {found}; expected the same outputs each time")
    adapter = TensorAdapter(tensor_adapter_config(reader.schema))
    shard = next(shard for shard in reader.shards if shard.num_examples)
    for example_bytes in (reader.example_bytes, _ONE_BY_ONE):
        batch = read_batch(next(dataclasses.replace(reader, example_bytes=example_bytes).pointers(shard)))
        outputs = graph.model.transform_fn(adapter.ToBatchTensors(batch))
        for name in names:
            if (num_rows := _num_rows(outputs[name])) != batch.num_rows:
                raise BadOutputsError(f"output {name!r} has {num_rows} rows for {batch.num_rows} examples; expected as many")


def _num_rows(value: Any) -> int:
    return int(value.nrows()) if isinstance(value, tf.RaggedTensor) else value.shape[0]
