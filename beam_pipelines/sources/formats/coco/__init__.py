"""Source `coco`: COCO's JSON files."""
