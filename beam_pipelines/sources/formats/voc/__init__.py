"""Source `voc`: Pascal VOC's XML files."""
