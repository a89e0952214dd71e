"""Applies the user functions `map_example`, `map_batch` and `parse`, in the same way as `tf.data.Dataset.map`."""

from __future__ import annotations

import functools
import inspect
from typing import Any, Callable

from tf_input.lazy_tensorflow import tf
from tf_input.read_config import ReadConfig

# Folded into the seed of a batch, so that the functions and the augmentation have independent random numbers.
_OF_EXAMPLES, _OF_BATCHES = 2, 3
_NUM_PARALLEL = 4  # number of examples of a batch that are processed in parallel; batches are processed in parallel, too
_ARGUMENTS = ("x", "y", "weight")
_PARSED = "Return a dictionary of tensors, x, (x, y) or (x, y, weight)."


def apply_functions(outputs: Any, seed: tf.Tensor, slots: tf.Tensor, config: ReadConfig) -> Any:
    """Applies `map_example` to each example of a batch, and then `map_batch` to the batch.

    The functions may change structure, shapes and dtypes, but not the number and order of examples. User functions are
    traced with AutoGraph. Use `tf.numpy_function` to run code that TensorFlow cannot trace. If a user function has a
    parameter `seed`, the parameter receives an int64 [2] tensor for stateless random numbers. The seed of an example
    depends on the batch's seed and the example's slot in the global batch. The seed that `map_batch` receives depends
    on the batch's seed and the host. The first of several hosts receives the seed that a single host would receive.

    Args:
        outputs: A batch `x`, `(x, y)` or `(x, y, weight)`; with `keys`, a pair (batch, keys), in which the keys do not
            change.
        seed: The seed of the batch, int64 [2].
        slots: The slots of the examples in the global batch, int64 [batch].
        config: The reading options with one or both functions. The results of `map_example` must have one shape
            within a batch, unless the batch contains ragged tensors.

    Returns:
        The results of the functions, for the same number of examples.

    Raises:
        TypeError: A function can't be called with these arguments.
        ValueError: A function returns None.
    """
    if config.map_example is not None:
        call_example = _caller("map_example", config.map_example, outputs, config.with_keys)
        of_examples = _fold_in(seed, _OF_EXAMPLES)
        is_ragged = any(isinstance(leaf, tf.RaggedTensor) for leaf in tf.nest.flatten(outputs))
        outputs = call_each(lambda example, slot: call_example(example, _fold_in(of_examples, slot)), (outputs, slots), is_ragged)
    if config.map_batch is not None:
        _, host = config.hosts or (1, 0)
        of_batch = _fold_in(seed, _OF_BATCHES)
        call_batch = _caller("map_batch", config.map_batch, outputs, config.with_keys)
        outputs = call_batch(outputs, _fold_in(of_batch, host) if host else of_batch)
    return outputs


def allow_state(data: tf.data.Dataset) -> tf.data.Dataset:
    """Allows user functions in a dataset to have state, such as lookup tables, variables and Keras layers.

    By default, TensorFlow fuses `map` and `batch`, and the fused operation fails if the function has state.
    """
    options = tf.data.Options()
    options.experimental_optimization.map_and_batch_fusion = False
    return data.with_options(options)


def _caller(name: str, function: Callable[..., Any], example: Any, has_keys: bool = False) -> Callable[[Any, tf.Tensor], Any]:
    """Returns a function with the parameters `outputs` and `seed` that calls a user function.

    Args:
        name: The name of the option, for errors.
        function: The user function.
        example: Outputs with the structure of the arguments.
        has_keys: Whether outputs are a pair of the arguments and keys. Default: False.
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
            raise TypeError(f"{name}={function!r} takes {signature}. It must take ({names}): {error}") from None
    converted = tf.function(function)  # AutoGraph for the user function only

    def call(outputs: Any, seed: tf.Tensor) -> Any:
        arguments = outputs if isinstance(outputs, tuple) else (outputs,)
        result = converted(*arguments, seed=seed) if with_seed else converted(*arguments)
        if result is None:
            raise ValueError(f"{name}={function!r} returned None. Return x, (x, y) or (x, y, weight).")
        return result

    return call


def _signature(function: Callable[..., Any]) -> inspect.Signature | None:
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):  # some built-in functions have no signature
        return None


def _has_seed(function: Callable[..., Any]) -> bool:
    return isinstance(function, functools.partial) and "seed" in function.keywords


def _fold_in(seed: tf.Tensor, number: int | tf.Tensor) -> tf.Tensor:
    return tf.random.experimental.stateless_fold_in(seed, tf.cast(number, seed.dtype))


def call_each(call: Callable[..., Any], arguments: Any, is_ragged: bool | None = None) -> Any:
    """Calls a function with each example of a batch and batches the results.

    Args:
        call: The function.
        arguments: The arguments of the function, a tuple or a single tensor, with a leading batch dimension.
        is_ragged: Whether results of varying shape become ragged tensors. None: they do if the static shape of a result
            is not fully defined.

    The examples of the batch are converted to a nested `tf.data.Dataset`. Therefore, nested structures, lists and
    unknown shapes are supported as in `Dataset.map`, in contrast to `tf.map_fn`. Unbatching the whole dataset would
    make its cardinality unknown. If corrupt records are left out, unbatching would also move examples from the next
    batch into the incomplete batch.
    """
    leaves = tf.nest.flatten(arguments)
    examples = tf.data.Dataset.from_tensor_slices(arguments)
    examples = examples.map(without_autograph(call), num_parallel_calls=_NUM_PARALLEL, deterministic=True)
    if is_ragged is None:
        results = tf.nest.flatten(examples.element_spec)
        is_ragged = any(isinstance(spec, tf.TensorSpec) and not spec.shape.is_fully_defined() for spec in results)
    batch = examples.ragged_batch if is_ragged else examples.batch
    if leaves[0].shape[0] is not None:
        return batch(leaves[0].shape[0], drop_remainder=True).get_single_element()
    results = batch(tf.maximum(tf.shape(leaves[0], tf.int64)[0], 1))
    nothing = tf.data.Dataset.from_tensors(tf.nest.map_structure(_no_examples, results.element_spec))
    # Empty if all records of a batch are corrupt.
    return results.concatenate(nothing).take(1).get_single_element()


def _no_examples(spec: tf.TensorSpec | tf.RaggedTensorSpec | tf.SparseTensorSpec) -> tf.Tensor | tf.RaggedTensor | tf.SparseTensor:
    """Returns an empty batch. Unknown dimensions are 0."""
    shape = [0] if spec.shape.rank is None else [0, *(size or 0 for size in spec.shape[1:])]
    if isinstance(spec, tf.SparseTensorSpec):
        return tf.SparseTensor(tf.zeros([0, len(shape)], tf.int64), tf.zeros([0], spec.dtype), tf.constant(shape, tf.int64))
    if isinstance(spec, tf.RaggedTensorSpec):
        inner_shape = tuple(shape[spec.ragged_rank + 1 :])
        return tf.ragged.constant([], spec.dtype, spec.ragged_rank, inner_shape, row_splits_dtype=spec.row_splits_dtype)
    return tf.zeros(shape, spec.dtype)


def parse_error(source: str, error: Exception) -> ValueError:
    """Returns the error for a function `parse` that failed."""
    lines = getattr(error, "message", str(error)).strip().splitlines() or [type(error).__name__]
    reason = lines[0 if isinstance(error, tf.errors.OpError) else -1].strip()
    return ValueError(f"{source} failed: {reason[:400].rstrip('.')}. Pass a function that takes one record, a string tensor.")


def check_parsed(source: str, spec: Any) -> None:
    """Raises ValueError if the spec of the parsed records is a tuple of more than three values."""
    if isinstance(spec, tuple) and len(spec) > 3:
        raise ValueError(f"{source} returned a tuple of {len(spec)}. {_PARSED}")


def convert_parse(parse: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps the user function for `Dataset.map`. The wrapper raises ValueError if the user function returns None."""
    converted = tf.function(parse)  # AutoGraph for the user function only

    def call(record: tf.Tensor) -> Any:
        result = converted(record)
        if not tf.nest.flatten(result) or any(item is None for item in tf.nest.flatten(result)):
            raise ValueError(f"it returned {result}, which can't be batched. {_PARSED}")
        return result

    return without_autograph(call)


def without_autograph(function: Callable) -> Callable:
    """Disables the slow AutoGraph conversion for a function whose conditions do not depend on tensors."""
    return tf.autograph.experimental.do_not_convert(function)
