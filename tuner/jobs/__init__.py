"""Tuning runs that somebody asked for."""
