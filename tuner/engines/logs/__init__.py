"""Read what servers log and what people paste of it: lines, and how the server was started."""
