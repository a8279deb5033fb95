"""Draw pictures and tables of winners: the engine's, the tuned and the least possible time."""
