"""Source `image_folder`: class folders."""
