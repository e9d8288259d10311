-- Free the lock, or the share of it, if it is still this holder's under this token, and hand it on.
-- KEYS: lock, queue, counter
-- ARGV: holder:token
-- Answers: 1, or 0 if it was not, and nothing changed.
-- needs: clock, mint, tell, cover, hand_over
local value = redis.call('GET', KEYS[1])
if value == ARGV[1] then
    hand_over(KEYS[1], KEYS[2], KEYS[3])
    return 1
end
if value ~= ':0' then return 0 end
-- needs: settle
local shares = KEYS[1] .. '\31shares'
local deadline = redis.call('ZSCORE', shares, ARGV[1])
if not deadline or tonumber(deadline) <= clock() then return 0 end
redis.call('ZREM', shares, ARGV[1])
settle(KEYS[1], KEYS[2], KEYS[3], value)
return 1
