"""Files and folders: listings, roots, patterns, sizes, and names of folders."""
