"""Tools for training with Keras: resumable checkpoints, `recordmill which`, and batches as a Keras `PyDataset`.

The input is a model and its training data. After an interruption, the training resumes at the exact batch. This package
imports Keras.
"""
