"""SQL that several parts of fencepost need."""
