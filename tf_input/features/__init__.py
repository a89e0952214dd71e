"""Defines how the reader handles feature kinds, one module per kind.

    feature_kind               the base class through which other packages use a kind, with the defaults for numbers and text
    kinds                      the registry: name of a kind -> kind
    image mask tensor          arrays and image files, which are decoded
    class_label bbox keypoints class indices, boxes of objects, points in an image
    roles                      questions about features, such as whether a feature is a list or a dense target
    lists                      padding of lists, and the checks of its options
    decode_images              decoding and cropping of image files
    crop_geometry augment      the crops of images, and random crops, flips and color changes
    colors                     the color transformation of augmentation and of Keras layers
"""
