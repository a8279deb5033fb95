"""From winners to the files that servers load: what is worth it, what is advised, the files."""
