"""Source `webdataset`: tar files of samples."""
