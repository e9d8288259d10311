"""Real processes that play a scenario step by step: workers, resource services, and a record of what they said."""
