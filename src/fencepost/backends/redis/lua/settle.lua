-- settle(lock, queue, counter, value, here): hand over a lock whose holder, or some of whose sharers, are gone.
-- Returns the lock's value after that, false if it is not held, and who was granted it, as hand_over does. Call it only
-- if the lock has no value, or that of a shared lock.
local function settle(lock, queue, counter, value, here)
    local count = 0
    if value then
        local shares = lock .. '\31shares'
        redis.call('ZREMRANGEBYSCORE', shares, '-inf', clock())
        count = redis.call('ZCARD', shares)
    end
    local held, served = hand_over(lock, queue, counter, count, here)
    return held and redis.call('GET', lock), served
end
