"""Bring stored winners to a cluster, and measure their gain there."""
