"""Exports a model together with its preprocessing as one SavedModel.

The export needs a trained model and the dataset on which the model was trained. A server loads the SavedModel
directory, which maps encoded images to class names and scores. Images are decoded with the same functions as in
training, from `tf_input.decoding`.
"""
