"""Pictures of numbers, without a library. Nothing here knows what the numbers mean."""
