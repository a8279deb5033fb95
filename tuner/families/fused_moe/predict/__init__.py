"""Predict a fused-MoE layer's times with a model of the device."""
