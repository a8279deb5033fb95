"""What a model's checkpoint says of itself."""
