"""Real processes that go step by step: workers, resource services, and a record of what they said."""
