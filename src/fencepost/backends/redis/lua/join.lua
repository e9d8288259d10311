-- join(lock, queue, owner, most, entry, keep): take a place in the queue of a lock that others hold, unless one has it.
-- Answers as take.lua has them.
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
    -- Should all who wait die together with the holder, nothing stays behind.
    redis.call('PEXPIRE', queue, keep)
    local left = redis.call('PTTL', lock)
    local first = owner == '' and redis.call('ZRANGE', lock .. '\31shares', 0, 0, 'WITHSCORES')[2]
    if first then left = math.max(0, math.ceil((first - clock()) / 1000)) end
    return {left, place, owner and 0 or 1}
end
