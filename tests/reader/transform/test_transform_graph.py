"""Tests that a loaded transform graph returns bit-identical results in tf.data and in a serving function."""

import numpy as np
import pytest
import tensorflow as tf

from tf_input.transform.transform_graph import TransformGraph


class Model(tf.Module):
    """A module with a function that takes a dictionary of features, like a SavedModel of TensorFlow Transform."""

    @tf.function(input_signature=[{"x": tf.TensorSpec([None], tf.float32), "y": tf.TensorSpec([None], tf.float32)}])
    def transform_fn(self, inputs):
        scaled = (inputs["x"] / 127.5 - 1) * 0.3 * 7.1 / 3 + 0.1 + 0.7
        return {"scaled": scaled, "cubed": inputs["x"] ** 3.0 / 0.7, "both": inputs["x"] + inputs["y"]}


@pytest.mark.slow
def test_arithmetic_with_constants_rounds_equally(tmp_path):
    """The graph optimizer would replace a division by a multiplication in the serving function, but not in tf.data."""
    tf.saved_model.save(Model(), str(tmp_path))
    graph = TransformGraph(tmp_path)
    x = np.random.default_rng(0).uniform(0, 255, 10_000).astype(np.float32)
    outputs = ["scaled", "cubed"]
    assert graph.inputs_of(outputs) == ("x",)

    def apply(x: tf.Tensor) -> dict[str, tf.Tensor]:
        return graph.apply({"x": x}, outputs)

    served = tf.function(apply, input_signature=[tf.TensorSpec([None], tf.float32)])(x)
    (trained,) = tf.data.Dataset.from_tensors(x).map(apply)
    for name in outputs:
        assert served[name].numpy().tobytes() == trained[name].numpy().tobytes(), name
    np.testing.assert_allclose(trained["scaled"], (x / 127.5 - 1) * 0.3 * 7.1 / 3 + 0.8, rtol=1e-5, atol=1e-6)
