"""Implements resumable checkpoints for Keras, the command `recordmill which`, and batches as a Keras `PyDataset`.

An interrupted training run resumes at the exact batch. This package imports Keras.
"""
