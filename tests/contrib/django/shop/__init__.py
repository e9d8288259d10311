"""An app with one table."""
