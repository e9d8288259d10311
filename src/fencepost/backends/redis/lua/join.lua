-- join(lock, queue, owner, most, entry, keep): add an entry to the queue of a lock that others hold, if it is missing.
-- Answers: as take.lua does.
local function join(lock, queue, owner, most, entry, keep)
    most = tonumber(most)
    if most < 0 then return 0 end
    local place = redis.call('ZRANK', queue, entry)
    if not place then
        place = redis.call('ZCARD', queue)
        if place >= most then return -1 end
        local last = redis.call('ZRANGE', queue, -1, -1, 'WITHSCORES')[2]
        redis.call('ZADD', queue, (last or 0) + 1, entry)
    end
    -- If all waiters die together with the holder, the queue expires.
    redis.call('PEXPIRE', queue, keep)
    local left = redis.call('PTTL', lock)
    local first = owner == '' and redis.call('ZRANGE', lock .. '\31shares', 0, 0, 'WITHSCORES')[2]
    if first then left = math.max(0, math.ceil((first - clock()) / 1000)) end
    return {left, place, owner and 0 or 1}
end
