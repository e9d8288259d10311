"""A page's prose, as its readers see it: without code, addresses and marks of Markdown."""

import re
from collections.abc import Iterator
from pathlib import Path

_FENCE = re.compile(r"^( *)(`{3,}|~{3,}|:{3,}).*?^\1\2\s*$", re.MULTILINE | re.DOTALL)
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
_CODE = re.compile(r"(`+).*?\1", re.DOTALL)
_BLOCK = re.compile(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.|\||#+|:) )|\n(?=\|)")
_END = re.compile(r"(?<=[.!?])[*_)\"]*\s+(?=[\"(*]*\w)")


def prose(page: Path) -> str:
    """The page without fenced code and comments."""
    return _COMMENT.sub("", _FENCE.sub("", page.read_text("utf-8")))


def sentences(page: Path) -> Iterator[str]:
    """Each sentence, list item, heading and table cell of a page; a piece of code counts as one word."""
    for block in _BLOCK.split(prose(page)):
        for cell in block.split("|") if block.lstrip().startswith("|") else [block]:
            plain = re.sub(r"\s+", " ", _LINK.sub(r"\1", _CODE.sub("Code", cell))).strip(" -*#:")
            yield from (each for each in _END.split(plain) if each)


def words(sentence: str) -> int:
    """How many words a reader counts."""
    return len(re.findall(r"[\w'$%-]*\w[\w'$%-]*", sentence))
