-- Extend the lock, or the share of it, if it is still this holder's under this token.
-- KEYS: lock
-- ARGV: holder:token, ttl in ms
-- Answers: 1, or 0 if it was not, and nothing changed.
-- needs: clock, cover, extend
return extend(KEYS[1], ARGV[1], ARGV[2])
