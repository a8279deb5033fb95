"""An engine that exists in the tests alone; `tests/toy/disk` is what it is on disk."""
