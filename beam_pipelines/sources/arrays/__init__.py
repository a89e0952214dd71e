"""Pixels without a format: `array_files` (NumPy, IDX, CIFAR: `numpy_files`, `idx`, `cifar`, paired up in `named_arrays`) and
`fixed_length`.

`array_streams` reads records of one length wherever they lie, `array_images` lists images in them, `array_columns` what stands
beside these.
"""
