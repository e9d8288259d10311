-- mint(counter): the next token of one lock's own counter, which is never deleted.
local function mint(counter)
    -- Read back as text: the number that INCR returns to Lua is not exact beyond 2^53.
    redis.call('INCR', counter)
    return redis.call('GET', counter)
end
