"""The state update of Mamba-2 layers: one step of decoding for each sequence."""
