"""The protected resource: an HTTP service that holds values and refuses writes from replaced holders."""
