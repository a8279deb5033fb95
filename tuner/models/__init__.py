"""Read the layers of a model from its checkpoint."""
