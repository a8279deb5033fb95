"""Turn winners into the files that servers load: choose them, advise on them, write them."""
