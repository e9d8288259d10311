-- mint(counter, now): a token larger than every one before it in the namespace.
-- If the counter was lost, the clock keeps tokens growing; if the clock was set back, the counter does.
local function mint(counter, now)
    local last = tonumber(redis.call('GET', counter) or 0)
    if last < 9e15 then
        local token = string.format('%.0f', math.max(last + 1, now))
        redis.call('SET', counter, token)
        return token
    end
    -- Beyond 2^53 Lua's numbers are not exact, not even the one that INCR returns: read the text instead.
    redis.call('INCR', counter)
    return redis.call('GET', counter)
end
