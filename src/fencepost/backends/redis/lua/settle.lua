-- settle(lock, queue, counter, value, here): hand on a lock whose holder, or some of whose sharers, are over, as far as
-- they are; what it holds then, false if nobody does, and who was granted it, as hand_over says. To be asked where the
-- value is none, or that of a shared lock.
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
