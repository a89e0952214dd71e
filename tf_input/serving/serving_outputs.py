"""Converts the predictions of a model to the outputs of a server, which are class names, scores or values."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping  # not from typing: Keras wraps dictionaries in this Mapping
from typing import Any, Sequence

import numpy as np

from tf_input.dataset_format import Feature
from tf_input.lazy_tensorflow import tf
from tf_input.model_outputs import predicts_logits


@dataclasses.dataclass(frozen=True)
class ModelOutput:
    """An output of a model, with its target and class names.

    Attributes:
        target: The name of the target.
        label_names: The class names of the target; empty for a target with values.
        is_multi_label: Whether an example has any number of labels.
        from_logits: Whether predictions are logits.
        threshold: The lowest score of returned labels, for targets with any number of labels.
    """

    target: str
    label_names: tuple[str, ...] = ()
    is_multi_label: bool = False
    from_logits: bool = False
    threshold: float = 0.5

    def outputs(self, predictions: tf.Tensor) -> dict[str, tf.Tensor]:
        """Converts predictions to class names, scores or values for the response of a server.

        Args:
            predictions: The predictions of the model, [batch, ...].

        Returns:
            For a target without class names, `value`, float32 [batch, ...]. Otherwise `scores`, float32 [batch,
            classes], and `label`, string [batch], the class with the highest score. For any number of labels, `label`
            is string [batch, n], sorted by descending score and padded with "".
        """
        predictions = tf.cast(predictions, tf.float32)
        if not self.label_names:
            return {"value": predictions}
        names, scores = tf.constant(self.label_names), self._scores(predictions)
        if not self.is_multi_label:
            return {"label": tf.gather(names, tf.argmax(scores, axis=1)), "scores": scores}
        best, order = tf.math.top_k(scores, len(self.label_names))
        is_label = best >= self.threshold
        most = tf.reduce_max(tf.concat([[0], tf.reduce_sum(tf.cast(is_label, tf.int32), axis=1)], axis=0))
        return {"label": tf.where(is_label, tf.gather(names, order), "")[:, :most], "scores": scores}

    def _scores(self, predictions: tf.Tensor) -> tf.Tensor:
        if self.is_multi_label:
            return tf.sigmoid(predictions) if self.from_logits else predictions
        if predictions.shape[-1] == 1:  # the second of two classes
            second = tf.sigmoid(predictions) if self.from_logits else predictions
            return tf.concat([1 - second, second], axis=1)
        return tf.nn.softmax(predictions) if self.from_logits else predictions

    def check(self, predictions: Any) -> None:
        """Checks that predictions have the expected shape and range.

        Args:
            predictions: The predictions of the model, an array.

        Raises:
            ValueError: The predictions are not finite, have another number of classes, or are not scores.
        """
        if not np.isfinite(np.asarray(predictions, np.float32)).all():
            raise ValueError(
                f"{self.target}: the model predicts NaN or infinity for examples of the dataset. Fix its training."
            )
        if not self.label_names:
            return
        num_classes = len(self.label_names)
        shapes = [(num_classes,), *([(1,)] if num_classes == 2 and not self.is_multi_label else [])]
        if tuple(predictions.shape[1:]) not in shapes:
            problem = f"{self.target}: the model predicts shape {predictions.shape[1:]}"
            raise ValueError(f"{problem}. It must predict one value for each of {num_classes} classes.")
        scores = self.outputs(tf.constant(predictions))["scores"].numpy()
        totals = [] if self.is_multi_label else scores.sum(axis=1)
        if not ((scores >= 0) & (scores <= 1 + 1e-3)).all() or any(abs(total - 1) > 1e-2 for total in totals):
            raise ValueError(
                f"{self.target}: the predictions are not probabilities. If they are logits, pass from_logits=True."
            )


def make_outputs(
    model: Any,
    features: Mapping[str, Feature],
    targets: Sequence[str],
    predictions: Any,
    label_names: Sequence[str] | None,
    from_logits: bool | None,
    threshold: float,
) -> dict[str, ModelOutput]:
    """Returns the outputs of a model by target name.

    Args:
        model: The Keras model.
        features: The features of the dataset by name, which include the targets.
        targets: The names of the features that the model predicts.
        predictions: The predictions for some examples: a tensor, or tensors by name.
        label_names: The class names of the only target. None uses the class names of the feature.
        from_logits: Whether predictions are logits. None uses the loss of the compiled model.
        threshold: The lowest score of returned labels, for targets with any number of labels.

    Raises:
        ValueError: The meaning of a prediction is unknown, or a prediction does not fit its target.
    """
    if set(predictions) != set(targets):
        problem = f"the model predicts {', '.join(predictions)}, and the targets are {', '.join(targets) or 'none'}"
        raise ValueError(f"{problem}. Give the outputs of the model the names of the targets.")
    if label_names is not None and len(targets) > 1:
        raise ValueError(
            f"label_names={label_names!r} works only with one target; there are {', '.join(targets)}. Omit label_names."
        )
    outputs = {}
    for name in targets:
        feature = features.get(name)
        is_class = feature is not None and feature.is_categorical
        names = tuple(label_names or (feature.label_names if is_class else ()))
        is_logits = predicts_logits(model, name) if names and from_logits is None else bool(names) and from_logits
        if is_logits is None:
            problem = f"the loss of the model does not show whether {name} is predicted as logits"
            raise ValueError(f"from_logits=None: {problem}. Pass True or False.")
        outputs[name] = ModelOutput(name, names, is_class and feature.is_ragged, is_logits, threshold)
        outputs[name].check(predictions[name])
    return outputs


def name_predictions(model: Any, predictions: Any, targets: Sequence[str]) -> dict[str, Any]:
    """Returns the predictions of a model by target name. Several outputs are matched by name.

    Raises:
        ValueError: The prediction for a target is not a single tensor.
    """
    if isinstance(predictions, (list, tuple)):
        predictions = dict(zip(getattr(model, "output_names", ()), predictions))
    elif not isinstance(predictions, Mapping):
        predictions = {targets[0] if len(targets) == 1 else "one output": predictions}
    if nested := [name for name, value in predictions.items() if isinstance(value, (Mapping, list, tuple))]:
        raise ValueError(
            f"The model predicts nested values for {', '.join(nested)}. It must predict one tensor for each target."
        )
    return dict(predictions)
