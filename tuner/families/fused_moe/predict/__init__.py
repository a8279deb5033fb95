"""Times of a fused-MoE layer from a model of the device."""
