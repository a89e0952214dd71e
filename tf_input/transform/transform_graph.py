"""Runs the graph from `recordmill analyze` in training, in serving and in `recordmill transform`.

The graph is loaded with TensorFlow alone, because importing TensorFlow Transform would change `tf.keras` to Keras 2.
"""

from __future__ import annotations

import functools
import os
from typing import Any, Collection, Iterable, Mapping

from tf_input.lazy_tensorflow import tf


_ARITHMETIC = ("Add", "AddV2", "Sub", "Mul", "MulNoNan", "RealDiv", "Div", "DivNoNan", "Pow")


class TransformGraph:
    """The graph of a transform. Keep the object as long as its results are used, because it owns the lookup tables of
    the graph.

    Args:
        directory: The path of the SavedModel, `OUT/transform_fn`.

    Attributes:
        model: The SavedModel, which models that export the graph must track.
        input_specs: The specs of the inputs by name: tensors [batch, ...], ragged for variable-length features.
        output_names: The names of the outputs.

    Raises:
        OSError: The SavedModel can't be read.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.model = tf.saved_model.load(os.fspath(directory))
        function = self.model.transform_fn
        # The function has one signature. TensorFlow restores it as a concrete function, or as a container of one.
        self._function = function.concrete_functions[0] if hasattr(function, "concrete_functions") else function
        (self.input_specs,), _ = self._function.structured_input_signature
        self.output_names = tuple(sorted(self._function.structured_outputs))
        graph_inputs = self._function.inputs
        num_captured = len(self._function.captured_inputs)
        self._arguments = graph_inputs[: len(graph_inputs) - num_captured]
        self._captures = graph_inputs[len(graph_inputs) - num_captured :]

    def inputs_of(self, outputs: Collection[str]) -> tuple[str, ...]:
        """Returns the names of the inputs on which the given outputs depend.

        Raises:
            ValueError: An output does not exist.
        """
        self._check(outputs)
        needed = _reachable(tensor.op for tensor in _flat(self._tensors(outputs)))
        components = self._components()
        return tuple(name for name in self.input_specs if any(component.op.name in needed for component in components[name]))

    def apply(self, inputs: Mapping[str, Any], outputs: Collection[str]) -> dict[str, Any]:
        """Computes the given outputs within a `tf.function`, and omits operations that the outputs do not need.

        Args:
            inputs: The features of a batch, at least those of `inputs_of`.
            outputs: The names of the outputs to compute, from `output_names`.

        Returns:
            The outputs by name: tensors [batch, ...], ragged or sparse if the preprocessing returns such tensors.

        Raises:
            ValueError: An output does not exist, or an input is missing.
        """
        missing = [name for name in self.inputs_of(outputs) if name not in inputs]
        if missing:
            raise ValueError(
                f"{', '.join(outputs)} depends on {', '.join(missing)}, and the given inputs are "
                f"{', '.join(inputs) or 'none'}"
            )
        fed = {}
        for name, components in self._components().items():
            if name in inputs:
                fed |= {entry.op.name: value for entry, value in zip(components, _flat(inputs[name]), strict=True)}
        fed |= {item.op.name: value for item, value in zip(self._captures, self._function.captured_inputs)}
        wanted = {name: self._function.structured_outputs[name] for name in outputs}
        tensors = _flat(self._tensors(outputs))
        computed = self._compute(tensors, fed)
        for value, tensor in zip(computed, tensors):
            value.set_shape(tensor.shape)
        return tf.nest.pack_sequence_as(wanted, computed, expand_composites=True)

    def value(self, name: str) -> Any:
        """Returns the value of a constant tensor in the graph as a NumPy array.

        Raises:
            KeyError: The tensor does not exist.
        """
        tensor = self._function.graph.get_tensor_by_name(f"{name}:0")
        captured = {item.op.name: value for item, value in zip(self._captures, self._function.captured_inputs)}
        compute = tf.function(lambda: self._compute([tensor], captured)[0], autograph=False)
        return compute.get_concrete_function()().numpy()

    def _compute(self, tensors: list[tf.Tensor], fed: Mapping[str, tf.Tensor]) -> list[tf.Tensor]:
        """Copies the operations for the given tensors from the transform's graph to the current graph.

        Calling the whole graph as a function would compute all outputs, and would fail if inputs are missing.
        """
        needed = _needed(tensors, self._arguments)
        part = tf.compat.v1.GraphDef()
        part.CopyFrom(self._graph_def)
        del part.node[:]
        part.node.extend(node for node in self._graph_def.node if node.name in needed)
        for node in part.node:
            node.input[:] = [item for item in node.input if not item.startswith("^") or item[1:] in needed - fed.keys()]
        _keep_constants(part.node)
        # `tf.identity` converts captured eager tensors to tensors of this graph.
        input_map = {f"{name}:0": tf.identity(value) for name, value in fed.items() if name in needed}
        return tf.graph_util.import_graph_def(part, input_map, [tensor.name for tensor in tensors], name="transform")

    @functools.cached_property
    def _graph_def(self) -> tf.compat.v1.GraphDef:
        return self._function.graph.as_graph_def()

    def _tensors(self, outputs: Collection[str]) -> dict[str, Any]:
        """Returns outputs by name, as tensors of the function's graph."""
        function = self._function
        all_outputs = tf.nest.pack_sequence_as(function.structured_outputs, function.outputs, expand_composites=True)
        return {name: all_outputs[name] for name in outputs}

    def _components(self) -> dict[str, list[tf.Tensor]]:
        """Returns the placeholders of each input. A ragged input has several placeholders."""
        flat = iter(self._arguments)
        return {name: [next(flat) for _ in _flat(spec)] for name, spec in sorted(self.input_specs.items())}

    def _check(self, outputs: Collection[str]) -> None:
        if unknown := [name for name in outputs if name not in self.output_names]:
            raise ValueError(f"the transform has no feature {', '.join(unknown)}, only {', '.join(self.output_names)}")


def _flat(structure: Any) -> list[Any]:
    return tf.nest.flatten(structure, expand_composites=True)


def _needed(tensors: Collection[tf.Tensor], given: Collection[tf.Tensor]) -> set[str]:
    """Returns the names of all operations that are required to compute the given tensors, including assertions on their
    inputs.

    In the original graph, each output depends on all assertions. Assertions on unrelated inputs are omitted here.
    """
    placeholders = {tensor.op.name for tensor in given}
    needed = _reachable(tensor.op for tensor in tensors)
    inputs = needed.keys() & placeholders
    waiting, seen = list(needed.values()), set(needed)
    while waiting:
        for awaited in waiting.pop().control_inputs:
            if awaited.name not in seen:
                seen.add(awaited.name)
                reachable = _reachable([awaited])
                if reachable.keys() & placeholders <= inputs:
                    waiting += [operation for name, operation in reachable.items() if name not in needed]
                    needed |= reachable
    return set(needed)


def _reachable(operations: Iterable[tf.Operation]) -> dict[str, tf.Operation]:
    """Returns the given operations and all operations on which they depend, by name."""
    reachable: dict[str, tf.Operation] = {}
    waiting = list(operations)
    while waiting:
        operation = waiting.pop()
        if operation.name not in reachable:
            reachable[operation.name] = operation
            waiting += [tensor.op for tensor in operation.inputs]
    return reachable


def _keep_constants(nodes: Any) -> None:
    """Prevents the graph optimizer from folding floating-point constants, because folding would change rounding in
    serving.

    For example, the optimizer would replace x / 3 with x * (1 / 3), and x * 2 * 3 with x * 6. A barrier operation is
    inserted between each constant and the arithmetic operations that use the constant. The bodies of loops and
    conditions are separate functions and are not changed.
    """
    constants = {
        node.name: node for node in nodes if node.op == "Const" and tf.as_dtype(node.attr["dtype"].type).is_floating
    }
    kept = set()
    for node in nodes:
        for input_number, name in enumerate(node.input if node.op in _ARITHMETIC else ()):
            if name in constants:
                kept.add(name)
                node.input[input_number] = f"{name}/kept"
    for name in sorted(kept):
        barrier = nodes.add(name=f"{name}/kept", op="PlaceholderWithDefault", input=[name])
        barrier.attr["dtype"].CopyFrom(constants[name].attr["dtype"])
        barrier.attr["shape"].shape.CopyFrom(constants[name].attr["value"].tensor.tensor_shape)
