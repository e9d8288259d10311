"""Small programs around fencepost, executed by the tests."""
