"""The networks of keras.applications that the trainer knows, each with its own normalisation inside: uint8 in, logits out."""

import dataclasses
from typing import Callable

import keras
from keras import applications


@dataclasses.dataclass(frozen=True)
class Network:
    """One of keras.applications.

    Attributes:
        build: The function that makes it.
        preprocess: Pixels from 0 to 255 -> what it was trained on; None: it does that itself.
        image_size: Height and width that it was made for.
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
    """A classifier of images.

    Args:
        name: One of `NETWORKS`.
        image_size: Height and width.
        num_classes: How many logits.
        weights: "imagenet" (downloaded on first use) or None, random.
        dropout: Share of the features that a training step drops.

    Returns:
        uint8 [batch, image_size, image_size, 3] -> float32 [batch, num_classes], whatever the precision within.
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
