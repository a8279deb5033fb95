"""Predict attention's times with a model of the device."""
