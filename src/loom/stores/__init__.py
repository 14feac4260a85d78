"""Where memory is kept: one folder for each technology."""
