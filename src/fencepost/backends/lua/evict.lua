-- Take the lock from whoever holds it, also from a client that is not ours, and hand it on.
-- KEYS: lock, queue, counter
-- Answers: {value, ms left or -1, queue entries} as they were; nil if nobody held it.
-- needs: clock, mint, tell, hand_over
local value = redis.call('GET', KEYS[1])
if not value then return false end
local found = {value, redis.call('PTTL', KEYS[1]), redis.call('ZRANGE', KEYS[2], 0, -1)}
hand_over(KEYS[1], KEYS[2], KEYS[3])
return found
