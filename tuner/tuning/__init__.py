"""One tuning run, whatever the family."""
