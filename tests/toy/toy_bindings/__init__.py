"""The toy engine's bindings: the toy family in it."""
