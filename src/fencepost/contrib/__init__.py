"""Adapters for frameworks, each imported by its own name: nothing here loads a framework."""
