"""Source `tfrecord`: TFRecord and ArrayRecord files."""
