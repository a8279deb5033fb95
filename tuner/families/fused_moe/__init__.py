"""Fused mixture-of-experts layers."""
