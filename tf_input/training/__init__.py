"""What goes on around a model while it trains: backups that remember the position, and a `PyDataset`.

What comes in are a model and what it is fed with; what goes out is a training that goes on where it was stopped, batch for batch.
Keras is imported here.
"""
