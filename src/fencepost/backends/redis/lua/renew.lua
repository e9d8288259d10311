-- Extend the lock, or the share of it, if it is still this holder's under this token.
-- KEYS: lock
-- ARGV: holder:token, ttl in ms
-- Answers: 1, or 0 if it was not, and nothing changed.
local value = redis.call('GET', KEYS[1])
if value == ARGV[1] then return redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
if value ~= ':0' then return 0 end
-- needs: clock, cover
local shares, now = KEYS[1] .. '\31shares', clock()
local deadline = redis.call('ZSCORE', shares, ARGV[1])
if not deadline or tonumber(deadline) <= now then return 0 end
redis.call('ZADD', shares, now + ARGV[2] * 1000, ARGV[1])
cover(KEYS[1], now)
return 1
