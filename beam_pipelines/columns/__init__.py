"""Defines the columns of tables and fields of records that become labels and features.

    column       a column, and the form of its cells
    forms        the table of forms, and the parser of options such as `--label COLUMN:KIND`
    keypoints    cells with keypoints
"""
