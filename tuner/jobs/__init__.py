"""Define jobs: tuning runs that a client or the nightly round asked for."""
