"""Source `masks`: images and segmentation masks."""
