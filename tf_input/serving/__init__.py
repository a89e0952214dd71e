"""Exports a model together with its preprocessing as one SavedModel.

The inputs are a trained model and the dataset on which the model was trained. The output is a SavedModel directory for
a server, which maps encoded images to class names and scores. Images are decoded with the same functions as in
training, from `tf_input.decoding`.
"""
