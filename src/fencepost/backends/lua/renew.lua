-- Extend the lock if it is still this holder's under this token.
-- KEYS: lock
-- ARGV: holder:token, ttl in ms
-- Answers: 1, or 0 if it was not, and nothing changed.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
return redis.call('PEXPIRE', KEYS[1], ARGV[2])
