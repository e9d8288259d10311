"""Text for a terminal: what comes from a store may hold escape sequences, and is shown, never obeyed."""


def escaped(text: str) -> str:
    """The text with everything that a terminal would not print as one character written as an escape."""
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)


def say(line: str) -> None:
    """Print one line, at once."""
    print(escaped(line), flush=True)
