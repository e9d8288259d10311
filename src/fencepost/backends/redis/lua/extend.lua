-- extend(lock, own, ms): extend a lock, or a share of it, if this holder still has it under this token.
-- Returns 1, or 0 if it does not.
local function extend(lock, own, ms)
    local value = redis.call('GET', lock)
    if value == own then return redis.call('PEXPIRE', lock, ms) end
    if value ~= ':0' then return 0 end
    local shares, now = lock .. '\31shares', clock()
    local deadline = redis.call('ZSCORE', shares, own)
    if not deadline or tonumber(deadline) <= now then return 0 end
    redis.call('ZADD', shares, now + ms * 1000, own)
    cover(lock, now)
    return 1
end
