"""Guards: doormen that refuse a write from a holder that has been replaced.

Each module guards one kind of resource and executes the rule in the same atomic step as the access.
"""

__all__: list[str] = []
