"""Implements resumable checkpoints for Keras, the command `recordmill which`, and batches as a Keras `PyDataset`.

The inputs are a model and its training data. An interrupted training run resumes at the exact batch. This
package imports Keras.
"""
