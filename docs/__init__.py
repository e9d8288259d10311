"""The documents, and how the site is made of them."""
