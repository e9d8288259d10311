-- Free the lock, or the share of it, if this holder still has it under this token, and hand it over.
-- KEYS: lock, queue, counter
-- ARGV: holder:token; the channel of the process that asks, if it has waiters for this lock
-- Answers: 1; or 0 if the holder no longer had it, and nothing changed; or the waiters at that channel that got the
--          lock by this: holder, token, holder, token and so on.
-- needs: clock, mint, alive, cover, hand_over
local value, held, served = redis.call('GET', KEYS[1])
if value == ARGV[1] then
    held, served = hand_over(KEYS[1], KEYS[2], KEYS[3], 0, ARGV[2])
else
    if value ~= ':0' then return 0 end
    -- needs: settle
    local shares = KEYS[1] .. '\31shares'
    local deadline = redis.call('ZSCORE', shares, ARGV[1])
    if not deadline or tonumber(deadline) <= clock() then return 0 end
    redis.call('ZREM', shares, ARGV[1])
    held, served = settle(KEYS[1], KEYS[2], KEYS[3], value, ARGV[2])
end
return #served > 0 and served or 1
