"""Sources for images whose boxes or masks are stored in separate files: `voc`, `coco` and `masks`.

Supported annotation files are Pascal VOC's XML files, COCO's JSON files, and mask images. Each source yields references
to images with their objects or masks. An image without annotations, or an annotation file without an image, becomes a
dead letter.
"""
