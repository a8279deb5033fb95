"""Make bundles: an archive with everything needed to start an engine with tuned configs."""
