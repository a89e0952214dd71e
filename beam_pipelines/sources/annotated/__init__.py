"""Sources for images whose boxes or masks are in separate files: `voc`, `coco` and `masks`.

The input is folders of images with Pascal VOC's XML files, COCO's JSON files, or mask files of the same names. The
output is a reference to each image, with its objects or its mask. Images and annotation files without a counterpart
become dead letters.
"""
