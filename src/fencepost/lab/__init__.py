"""The lab: real processes, real pauses and kills, and what they do to a resource with and without its guard."""
