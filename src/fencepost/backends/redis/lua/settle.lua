-- settle(lock, queue, counter, value): hand on a lock whose holder, or some of whose sharers, are over, as far as they
-- are; what it holds then, false if nobody does. To be asked where the value is none, or that of a shared lock.
local function settle(lock, queue, counter, value)
    local count = 0
    if value then
        local shares = lock .. '\31shares'
        redis.call('ZREMRANGEBYSCORE', shares, '-inf', clock())
        count = redis.call('ZCARD', shares)
    end
    return hand_over(lock, queue, counter, count) and redis.call('GET', lock)
end
