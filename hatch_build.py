"""The README as a package index shows it: an index knows no files beside it, so no link and no picture is relative.

With ``[project.urls] Source``, each leads to the file of this version there. Without one, a link is its words, and a
picture is its description.
"""

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

# A fence, in which nothing is a link; or [words](target), ![description](target).
_PART = re.compile(r"(?ms)^(`{3,}|~{3,}).*?^\1[ \t]*$|(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^()\s]+)\)")


def absolute(text: str, source: str | None, version: str) -> str:
    """A document whose relative links lead to ``source``, or nowhere."""

    def part(found: re.Match[str]) -> str:
        fence, picture, words, target = found.groups()
        if fence:
            return found[0]
        words = _PART.sub(part, words)
        if re.match(r"https?:|mailto:|#", target):
            return f"{picture}[{words}]({target})"
        if source is None:
            return f"*{words}*" if picture else words
        return f"{picture}[{words}]({source.rstrip('/')}/{'raw' if picture else 'blob'}/v{version}/{target})"

    return _PART.sub(part, text)


class CustomMetadataHook(MetadataHookInterface):
    """Writes the description of the distribution."""

    def update(self, metadata: dict[str, Any]) -> None:
        readme = Path(self.root, "README.md").read_text("utf-8")
        source = metadata.get("urls", {}).get("Source")
        text = absolute(readme, source, metadata["version"])
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
