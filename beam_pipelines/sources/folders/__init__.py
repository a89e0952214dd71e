"""Files, and folders of them; of class folders the source `image_folder`.

What comes in is a root; what goes out are paths below it (`file_listing`), none of which leads out of it (`roots`), and what class
and split their folders say (`layouts`). `other_files` says of files that are no images whether they are expected to be there.
"""
