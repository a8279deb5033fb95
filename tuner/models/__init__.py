"""Read what a model's checkpoint says about its layers."""
