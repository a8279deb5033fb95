"""Times of attention from a model of the device."""
