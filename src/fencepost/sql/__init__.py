"""SQL through the connection that the caller has, whatever library it comes from."""
