"""Object stores: `object_store` is what the rest of the house sees of them, by way of `files`; `s3` and `gcs` make the single requests."""
