"""The user's own functions on the way to a model: of one example, or of a batch, as `tf.data.Dataset.map` would call them."""

import functools
import inspect
from typing import Any, Callable

import tensorflow as tf

from tf_input.read_config import ReadConfig

# Folded into a batch's seed, so that the functions draw other numbers than the augmentation does, and than each other.
_OF_EXAMPLES, _OF_BATCHES = 2, 3
_NUM_PARALLEL = 4  # examples of one batch at a time; batches are parallel as well
_ARGUMENTS = ("x", "y", "weight")


def apply_functions(outputs: Any, seed: tf.Tensor, rows: tf.Tensor, config: ReadConfig) -> Any:
    """Passes the examples of a batch, then the batch, through the functions of a config: to be called where a batch is made, in its graph.

    They may change structure, shapes and dtypes, but not which examples are in a batch. They are traced with AutoGraph, not called for each:
    what is not TensorFlow belongs into a `tf.numpy_function`. A function with a parameter `seed` gets an int64 [2] for stateless
    random numbers. That of an example depends on the batch's seed and on its place in the batch of all hosts; that of a batch on the
    batch's seed and on the host, which has rows of its own: those of the first one are drawn as if it were alone, and no other repeats them.

    Args:
        outputs: `x`, `(x, y)` or `(x, y, weight)`, batched; with `keys`, a pair of that and keys, which stay with it.
        seed: The seed of the batch, int64 [2].
        rows: int64 [batch], the examples' places in the batch.
        config: With `map_example`, a function of one example, or `map_batch`, one of a batch after that, or both. What an example becomes
            has one shape in all of a batch; where the data set has features of any length, which are batched as ragged tensors, others
            may be so too.

    Returns:
        What they return, of as many examples.

    Raises:
        TypeError: A function can't be called with these arguments.
        ValueError: A function returns nothing.
    """
    if config.map_example is not None:
        call_example = _caller("map_example", config.map_example, outputs, config.keys)
        outputs = _call_each(call_example, outputs, _fold_in(seed, _OF_EXAMPLES), rows)
    if config.map_batch is not None:
        _, host = config.hosts or (1, 0)
        of_batch = _fold_in(seed, _OF_BATCHES)
        call_batch = _caller("map_batch", config.map_batch, outputs, config.keys)
        outputs = call_batch(outputs, _fold_in(of_batch, host) if host else of_batch)
    return outputs


def allow_state(data: tf.data.Dataset) -> tf.data.Dataset:
    """Returns the same dataset, in which functions of `apply_functions` may have state: tables, variables, layers.

    TensorFlow would join the `map` and the `batch` of each batch's examples, and fails at that if the function has state.
    """
    options = tf.data.Options()
    options.experimental_optimization.map_and_batch_fusion = False
    return data.with_options(options)


def _caller(name: str, function: Callable[..., Any], example: Any, has_keys: bool = False) -> Callable[[Any, tf.Tensor], Any]:
    """From a user's function to one of outputs and a seed.

    Args:
        name: The name of the function in errors.
        function: The function of the user's.
        example: Outputs of the structure that it will be given.
        has_keys: Whether outputs are a pair of what the function is given, and keys.
    """
    if has_keys:
        call_without = _caller(name, function, example[0])
        return lambda outputs, seed: (call_without(outputs[0], seed), outputs[1])
    signature = _signature(function)
    with_seed = signature is not None and "seed" in signature.parameters and not _has_seed(function)
    num_arguments = len(example) if isinstance(example, tuple) else 1
    names = ", ".join([*_ARGUMENTS[:num_arguments], *["seed"] * with_seed])
    if signature is not None:
        try:
            signature.bind(*[None] * num_arguments, **{"seed": None} if with_seed else {})
        except TypeError as error:
            expected = f"a function of ({names}), not of {signature}"
            raise TypeError(f"{name}={function!r}: expected {expected}: {error}") from None
    converted = tf.function(function)  # with AutoGraph, for it alone

    def call(outputs: Any, seed: tf.Tensor) -> Any:
        arguments = outputs if isinstance(outputs, tuple) else (outputs,)
        result = converted(*arguments, seed=seed) if with_seed else converted(*arguments)
        if result is None:
            raise ValueError(f"{name}={function!r}: it returned None; expected x, (x, y) or (x, y, weight)")
        return result

    return call


def _signature(function: Callable[..., Any]) -> inspect.Signature | None:
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):  # some that are not written in Python do not say
        return None


def _has_seed(function: Callable[..., Any]) -> bool:
    return isinstance(function, functools.partial) and "seed" in function.keywords


def _fold_in(seed: tf.Tensor, number: int | tf.Tensor) -> tf.Tensor:
    return tf.random.experimental.stateless_fold_in(seed, tf.cast(number, seed.dtype))


def _call_each(call: Callable[[Any, tf.Tensor], Any], outputs: Any, seed: tf.Tensor, rows: tf.Tensor) -> Any:
    """Calls a function with each example of a batch, and batches the results.

    The examples of the batch are a dataset within the dataset, so structures, lists and unknown shapes are as in any `Dataset.map`;
    `tf.map_fn` has other rules for them. Unbatching the whole dataset would lose its number of batches, and would complete a batch
    that corrupt records left short with examples of the next batch.
    """
    leaves = tf.nest.flatten(outputs)
    examples = tf.data.Dataset.from_tensor_slices((rows, outputs))
    call_one = _plain(lambda row, example: call(example, _fold_in(seed, row)))
    examples = examples.map(call_one, num_parallel_calls=_NUM_PARALLEL, deterministic=True)
    batch = examples.ragged_batch if any(isinstance(leaf, tf.RaggedTensor) for leaf in leaves) else examples.batch
    if leaves[0].shape[0] is not None:
        return batch(leaves[0].shape[0], drop_remainder=True).get_single_element()
    results = batch(tf.maximum(tf.shape(leaves[0], tf.int64)[0], 1))
    nothing = tf.data.Dataset.from_tensors(tf.nest.map_structure(_no_examples, results.element_spec))
    # Nothing where all records of a batch were damaged.
    return results.concatenate(nothing).take(1).get_single_element()


def _no_examples(spec: tf.TensorSpec | tf.RaggedTensorSpec) -> tf.Tensor | tf.RaggedTensor:
    """A batch of none; a dimension that is not known is 0."""
    shape = [0] if spec.shape.rank is None else [0, *(size or 0 for size in spec.shape[1:])]
    if isinstance(spec, tf.RaggedTensorSpec):
        inner_shape = tuple(shape[spec.ragged_rank + 1 :])
        return tf.ragged.constant([], spec.dtype, spec.ragged_rank, inner_shape, row_splits_dtype=spec.row_splits_dtype)
    return tf.zeros(shape, spec.dtype)


def _plain(function: Callable) -> Callable:
    """AutoGraph would take longer to look through this module than to convert what it is for."""
    return tf.autograph.experimental.do_not_convert(function)
