"""Training with Keras: resumable checkpoints, `recordmill which`, and batches as a Keras `PyDataset`.

The input is a model and its training data. The output is a training that resumes at the exact batch after an
interruption. This package imports Keras.
"""
