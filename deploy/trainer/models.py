"""Creates optimizers, and networks of keras.applications that map uint8 images to logits."""

import dataclasses
from typing import Callable

import keras
from keras import applications

import options


@dataclasses.dataclass(frozen=True)
class Network:
    """A network of keras.applications.

    Attributes:
        build: The function that creates the network.
        preprocess: The function that maps pixels (0 to 255) to the network's input range. None if the network
            preprocesses pixels itself.
        image_size: The height and width for which the network was designed.
    """

    build: Callable[..., keras.Model]
    preprocess: Callable | None
    image_size: int


NETWORKS = {
    "mobilenetv3small": Network(applications.MobileNetV3Small, None, 224),
    "resnet50": Network(applications.ResNet50, applications.resnet.preprocess_input, 224),
    "resnet101": Network(applications.ResNet101, applications.resnet.preprocess_input, 224),
    "efficientnetb0": Network(applications.EfficientNetB0, None, 224),
    "efficientnetb3": Network(applications.EfficientNetB3, None, 300),
    "efficientnetv2s": Network(applications.EfficientNetV2S, None, 384),
    "convnexttiny": Network(applications.ConvNeXtTiny, None, 224),
}


def make_model(name: str, image_size: int, num_classes: int, weights: str | None, dropout: float) -> keras.Model:
    """Returns an image classifier.

    Args:
        name: A key of `NETWORKS`.
        image_size: The height and width of the images.
        num_classes: The number of logits.
        weights: "imagenet" (downloaded on first use), or None for random weights.
        dropout: The fraction of features that a training step drops.

    Returns:
        A model that maps uint8 [batch, image_size, image_size, 3] to float32 [batch, num_classes], with any internal
        precision.
    """
    network = NETWORKS[name]
    images = keras.Input((image_size, image_size, 3), dtype="uint8", name="image")
    pixels = keras.layers.Rescaling(1.0, name="to_float")(images)
    if network.preprocess is not None:
        pixels = network.preprocess(pixels)
    base = network.build(include_top=False, weights=weights, input_shape=(image_size, image_size, 3), pooling="avg")
    features = keras.layers.Dropout(dropout)(base(pixels))
    logits = keras.layers.Dense(num_classes, dtype="float32", name="logits")(features)
    return keras.Model(images, logits, name=name)


def make_optimizer(settings: options.Options, steps_per_epoch: int) -> keras.optimizers.Optimizer:
    """Returns the requested optimizer. The learning rate increases during warmup, and then decays to 0 along a cosine
    curve."""
    peak = settings.learning_rate * settings.batch_size / 256
    warmup = max(1, round(settings.warmup_epochs * steps_per_epoch))
    rest = max(1, settings.epochs * steps_per_epoch - warmup)
    schedule = keras.optimizers.schedules.CosineDecay(0.0, rest, warmup_target=peak, warmup_steps=warmup)
    if settings.optimizer == "adamw":
        return keras.optimizers.AdamW(schedule, weight_decay=settings.weight_decay)
    return keras.optimizers.SGD(schedule, momentum=0.9, nesterov=True, weight_decay=settings.weight_decay)
