"""Source `arrays`: NumPy, IDX and CIFAR files."""
