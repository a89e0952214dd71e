"""Tools for training with Keras: resumable checkpoints, `recordmill which`, and batches as a Keras `PyDataset`.

The input is a model and its training data. If the training is interrupted, it resumes at the exact batch. This package
imports Keras.
"""
