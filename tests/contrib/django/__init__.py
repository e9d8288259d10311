"""A Django project, each test in a process of its own: Django knows one set of settings for a whole process."""
