"""Long-running programs of the tests, started by make."""
