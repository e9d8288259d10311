-- KEYS: lock, queue
-- Answers: {value, ms left or -1, queue entries}; nil if nobody holds the lock.
local value = redis.call('GET', KEYS[1])
if not value then return false end
return {value, redis.call('PTTL', KEYS[1]), redis.call('ZRANGE', KEYS[2], 0, -1)}
