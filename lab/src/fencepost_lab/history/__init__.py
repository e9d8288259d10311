"""What happened in a run, as a file of JSON lines: its format, what can be gathered from it, and the checks."""
