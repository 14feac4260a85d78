"""Tools: functions a model can call, the run they are called in, and the ones that come ready made."""
