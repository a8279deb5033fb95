"""The fused-MoE layers of sglang."""
