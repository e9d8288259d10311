-- mint(counter, now): a token larger than every one before it in the namespace.
-- The clock carries it past what a lost counter had reached; the counter past a clock that was set back.
local function mint(counter, now)
    local last = tonumber(redis.call('GET', counter) or 0)
    if last < 9e15 then
        local token = string.format('%.0f', math.max(last + 1, now))
        redis.call('SET', counter, token)
        return token
    end
    -- Beyond 2^53 Lua's numbers are no longer exact, also the one that INCR returns to it.
    redis.call('INCR', counter)
    return redis.call('GET', counter)
end
