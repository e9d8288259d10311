-- cover(lock, now): set the expiry of a shared lock to the last deadline of its sharers.
-- The value of a shared lock is ':0', so that no other client takes it. Its sharers are in a sorted set of their own:
-- holder:token by deadline, in us. While the lock has another value, what may be left of that set means nothing.
local function cover(lock, now)
    local shares = lock .. '\31shares'
    local last = redis.call('ZRANGE', shares, -1, -1, 'WITHSCORES')[2]
    local ms = math.floor((last - now) / 1000) + 1
    redis.call('SET', lock, ':0', 'PX', ms)
    redis.call('PEXPIRE', shares, ms)
end
