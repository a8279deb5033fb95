"""One archive with everything an operator needs to start an engine with the tuned configs."""
