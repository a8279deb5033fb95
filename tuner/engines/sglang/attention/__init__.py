"""The attention of sglang."""
