"""Read servers' logs and texts that people paste: their lines, and how the server was started."""
