-- cover(lock, now): let a shared lock last as long as the last of its sharers.
-- While it is shared it holds ':0', so nobody else takes it, and its sharers are a sorted set beside it: holder:token
-- by deadline, in us. When it holds anything else, what may be left of that set means nothing.
local function cover(lock, now)
    local shares = lock .. '\31shares'
    local last = redis.call('ZRANGE', shares, -1, -1, 'WITHSCORES')[2]
    local ms = math.floor((last - now) / 1000) + 1
    redis.call('SET', lock, ':0', 'PX', ms)
    redis.call('PEXPIRE', shares, ms)
end
