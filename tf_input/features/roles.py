"""Answers questions about the role of a feature, which depends on its kind and its shape."""

from tf_input.dataset_format import IMAGE, Feature

NUM_DENSE_DIMENSIONS = 3


def is_other_image(feature: Feature) -> bool:
    """Returns whether a feature is an image, but not the feature `image`. Such images have their own crops."""
    return feature.name != IMAGE and feature.is_image


def depends_on_crop(feature: Feature) -> bool:
    """Returns whether the values of a feature depend on the crop of the image."""
    return feature.is_image or feature.is_spatial or is_dense_target(feature)


def is_dense_target(feature: Feature) -> bool:
    """Returns whether a feature has the shape of a dense target. Image tensors and transformed images have it too."""
    return feature.may_be_dense and not feature.is_ragged and len(feature.shape) == NUM_DENSE_DIMENSIONS


def is_list(feature: Feature) -> bool:
    """Returns whether a feature is a variable-length list of numbers or strings.

    Returns False for lists of class labels, which become multi-hot vectors, and for features of objects.
    """
    if feature.is_tensor:  # three-dimensional tensors are dense targets
        return feature.shape[:1] == (None,) and None not in feature.shape[1:] and not is_dense_target(feature)
    return feature.is_ragged and feature.is_plain and not feature.is_of_objects


def is_grid(feature: Feature) -> bool:
    """Returns whether a feature is a tensor with an unknown dimension after the first, but not a dense target."""
    return feature.is_tensor and None in feature.shape[1:] and not is_dense_target(feature)


def is_of_any_size(feature: Feature) -> bool:
    """Returns whether a feature is a dense target or an image tensor whose size varies between examples."""
    return feature.is_tensor and None in feature.shape and is_dense_target(feature)
