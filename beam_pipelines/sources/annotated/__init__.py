"""Images with boxes or masks in files of their own: `voc` (`voc_folders`, `voc_annotation`, `image_sets`), `coco` (`coco_file`,
`coco_annotations`, `json_sections`) and `masks`.
"""
