-- Extend the lock, or the share of it, if this holder still has it under this token.
-- KEYS: lock
-- ARGV: holder:token, ttl in ms
-- Answers: 1; or 0 if the holder no longer has it, and nothing changed.
-- needs: clock, cover, extend
return extend(KEYS[1], ARGV[1], ARGV[2])
