"""Facts and standing instructions."""
