"""Source `yolo`: YOLO's text files in the layouts of Ultralytics, Roboflow and Darknet."""
