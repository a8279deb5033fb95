"""What each GPU is: its name, limits and peak rates."""
