"""Draw pictures of numbers, without a library. Nothing here knows the numbers' meaning."""
