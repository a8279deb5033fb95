"""Bring stored winners to a cluster, and check what they gain there."""
