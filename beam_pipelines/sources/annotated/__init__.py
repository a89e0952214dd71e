"""Images whose boxes or masks lie in files of their own: the sources `voc`, `coco` and `masks`.

What comes in are folders of images with Pascal VOC's XML files, with COCO's JSON files, or with masks of the same names; what goes out are
references to the images with their objects or masks, and dead letters for those that do not fit together.
"""
